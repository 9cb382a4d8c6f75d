"""What happens behind the caller's back is told to the standard loggers, by class and number, never by content.

The `logging` module is loaded by the first note, so that a program in which nothing goes wrong never waits for it.
"""

from __future__ import annotations

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""The levels of `logging`."""


def note(logger: str, level: int, message: str, **fields: str | float | None) -> None:
    """Tell the logger `holdfast.<logger>`; the fields become attributes of the record, and fill the message."""
    import logging

    # Without a handler of anybody's, `logging` would print warnings to standard error by itself.
    root = logging.getLogger("holdfast")
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    target = root.getChild(logger)
    if target.isEnabledFor(level):
        target.log(level, message, fields, extra=fields)
