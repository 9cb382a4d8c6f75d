"""What happens behind the caller's back is told to the standard loggers, by class and number, never by content."""

from __future__ import annotations

import logging

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

# Without a handler of anybody's, `logging` would print warnings to standard error by itself.
logging.getLogger("holdfast").addHandler(logging.NullHandler())


def note(logger: str, level: int, message: str, **fields: str | float | None) -> None:
    """Tell the logger `holdfast.<logger>`; the fields become attributes of the record, and fill the message."""
    target = logging.getLogger(f"holdfast.{logger}")
    if target.isEnabledFor(level):
        # Nothing to fill in must be no argument at all: an empty mapping is not taken for one.
        target.log(level, message, *([fields] if fields else ()), extra=fields)
