"""A replacement whose answer was lost is never applied a second time over a later value."""

from __future__ import annotations

from holdfast.errors import ReplacementUncertain


def is_stored(stored: object | None, wanted: object, what: str) -> bool:
    """Return True if the wanted value is stored, so that an earlier try replaced it; False if nothing is stored.

    Raise `ReplacementUncertain` if another value is stored: the try was lost, or applied and replaced since.
    """
    if stored is not None and stored != wanted:
        raise ReplacementUncertain(what, "something else is stored now")
    return stored is not None


def uncertain(what: str) -> ReplacementUncertain:
    """Return the error for a missing value: the try may have been lost, or applied and deleted since."""
    return ReplacementUncertain(what, "it is not there now")
