"""What happens behind the caller's back is told to the standard loggers, by class and number, never by content.

What a caller declares and can hardly mean is a warning at the caller's own line.
"""

from __future__ import annotations

import logging
import sys
import warnings

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

# Without a handler of anybody's, `logging` would print warnings to standard error by itself.
logging.getLogger("holdfast").addHandler(logging.NullHandler())


def note(logger: str, level: int, message: str, **fields: str | float | None) -> None:
    """Tell the logger `holdfast.<logger>`; the fields become attributes of the record, and fill the message."""
    target = logging.getLogger(f"holdfast.{logger}")
    if target.isEnabledFor(level):
        # Nothing to fill in must be no argument at all: an empty mapping is not taken for one.
        target.log(level, message, *([fields] if fields else ()), extra=fields)


_warned: dict[str | tuple[str, type[Warning], int], int] = {}


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the nearest line that is not ours; on a thread of ours there is none."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # `inspect` takes long to load
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame = frame.f_back
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, registry=_warned)
