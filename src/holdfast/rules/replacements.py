"""A replacement whose answer was lost is never applied a second time over what came after it."""

from __future__ import annotations

from holdfast.errors import Unavailable


def is_stored(stored: object | None, wanted: object, what: str) -> bool:
    """Judge by what is stored now whether an earlier try replaced it: True if it did, False if nothing ever did.

    Raises `Unavailable` of unknown outcome if something else is stored: the try may have been lost, or applied and
    replaced since.
    """
    if stored is not None and stored != wanted:
        raise unknown(what)
    return stored is not None


def unknown(what: str) -> Unavailable:
    """Return the error for a replacement of which nothing stored can tell whether it was applied."""
    return Unavailable(
        f"{what}: the answer was lost, and something else is stored now: look at it before you repeat the call",
        outcome="unknown",
    )
