"""Internal logging to the standard loggers: classes and numbers, never user data.

A declaration that can hardly be intended is a warning at the caller's line, even if another thread does the work.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from logging import Logger

T = TypeVar("T")

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""The levels of `logging`."""


def logger_of(name: str) -> Logger:
    """Return a logger of `logging`, which is loaded with any backend, and not with the public names."""
    import logging

    top = logging.getLogger("holdfast")
    if not top.handlers:
        # Without any handler, `logging` would print warnings to standard error by itself.
        top.addHandler(logging.NullHandler())
    return logging.getLogger(name)


def log_event(logger: str, level: int, message: str, /, **fields: str | float | None) -> None:
    """Log to `holdfast.<logger>`. The fields become attributes of the record, and fill the message.

    A field that is named like an attribute of every record, such as `name`, becomes `holdfast_name`.
    """
    target = logger_of(f"holdfast.{logger}")
    if target.isEnabledFor(level):
        # Without fields there must be no argument at all: `logging` does not treat an empty mapping as one.
        target.log(level, message, *([fields] if fields else ()), extra=_as_attributes(fields))


def _as_attributes(fields: dict[str, str | float | None]) -> dict[str, str | float | None]:
    """Return the fields under names that `logging` accepts: it refuses those that it sets itself."""
    import logging

    reserved = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    return {f"holdfast_{name}" if name in reserved else name: value for name, value in fields.items()}


class _Line(NamedTuple):
    """A line of code, and the globals of its module."""

    file: str
    number: int
    names: dict[str, Any]


_CALLER: ContextVar[_Line | None] = ContextVar("caller", default=None)
_LOOP = "asyncio"


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _calling_line() -> _Line | None:
    """Return the nearest line outside Holdfast; None if an event loop or a thread of Holdfast's began this code."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # `inspect` takes long to load
    while frame is not None and _module_of(frame) == __package__:
        frame = frame.f_back
    if frame is None or _module_of(frame) in {_LOOP, "threading"}:
        return None
    return _Line(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def called_here(work: Callable[[], T]) -> T:
    """Do the work, and let it warn at the caller's line, in whichever thread it runs: the context goes with it."""
    place = _CALLER.set(_calling_line())
    try:
        return work()
    finally:
        _CALLER.reset(place)


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the caller, once for each line as the filters of `warnings` say.

    A coroutine that was handed to an event loop as a task has no such line: then each warning is shown.
    """
    line = _CALLER.get() or _calling_line()
    if line is None:
        warnings.warn_explicit(message, category, "holdfast", 0, registry={})
    else:
        registry = line.names.setdefault("__warningregistry__", {})
        module = str(line.names.get("__name__", "")) or None
        warnings.warn_explicit(message, category, line.file, line.number, module, registry)
