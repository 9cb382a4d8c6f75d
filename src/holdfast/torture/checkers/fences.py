"""Nothing is accepted from a former holder once a later one was told that it holds, nor behind its writes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Acquired(msgspec.Struct, frozen=True):
    """A holder was told its fence at this time."""

    fence: int
    answered_ns: int


class Accepted(msgspec.Struct, frozen=True):
    """A write under a fence was accepted, as the `place`-th of all writes to what the lease protects."""

    fence: int
    place: int
    sent_ns: int


def check_fences(acquired: Sequence[Acquired], accepted: Sequence[Accepted]) -> list[str]:
    """What is wrong with the writes that were accepted; empty if nothing is."""
    wrong: list[str] = []
    seen: dict[int, Acquired] = {}
    for one in acquired:
        if one.fence in seen:
            wrong.append(f"fence {one.fence} was given out twice")
        seen[one.fence] = one
    for write in accepted:
        later = [one for one in acquired if one.fence > write.fence and one.answered_ns < write.sent_ns]
        if later:
            wrong.append(
                f"place {write.place} was written under fence {write.fence}, after fence {later[0].fence} was held"
            )
    highest = 0
    for write in sorted(accepted, key=lambda write: write.place):
        if write.fence < highest:
            wrong.append(f"place {write.place} was written under fence {write.fence}, after fence {highest}")
        highest = max(highest, write.fence)
    return wrong
