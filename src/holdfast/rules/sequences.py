"""Numbers that are counted without gaps: the events of a process, and the revisions of a session."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import Corrupt


def require_gapless(
    table: str, owner: object, numbers: Iterable[int], *, after: int | None = None, upto: int | None = None
) -> None:
    """Raise `Corrupt`, naming the first lost row, if ascending numbers leave one out.

    `after` is the number before the first one; without it the first may be any, because those before it may have been
    pruned. `upto` is the number that the last one must have reached.
    """
    last = after
    for number in numbers:
        if last is not None and number != last + 1:
            raise _lost(table, owner, last + 1)
        last = number
    if upto is not None and upto > (last or 0):
        raise _lost(table, owner, (last or 0) + 1)


def _lost(table: str, owner: object, number: int) -> Corrupt:
    return Corrupt(table, f"{owner}/{number}", "is missing, though later ones were written")
