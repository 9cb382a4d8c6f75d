"""Checks that no write of a former holder is accepted once a later one knew its fence, nor after its writes.

No two writes may be accepted at the same place: one of them would be lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import msgspec


class Acquired(msgspec.Struct, frozen=True):
    """A holder received its fence at this time."""

    fence: int
    answered_ns: int


class Accepted(msgspec.Struct, frozen=True):
    """A write under a fence was accepted, as the `place`-th of all writes to what the lease protects."""

    fence: int
    place: int
    sent_ns: int


def check_fences(acquired: Sequence[Acquired], accepted: Sequence[Accepted]) -> list[str]:
    """Return the problems of the accepted writes."""
    wrong: list[str] = []
    fences: set[int] = set()
    for one in acquired:
        if one.fence in fences:
            wrong.append(f"fence {one.fence} was given out twice")
        fences.add(one.fence)
    reported = sorted(acquired, key=lambda one: one.answered_ns)
    times = [one.answered_ns for one in reported]
    # The highest fence that any client knew, after each time.
    known = [0, *accumulate((one.fence for one in reported), max)]
    highest = 0
    places: set[int] = set()
    for write in sorted(accepted, key=lambda write: write.place):
        if write.place in places:
            wrong.append(f"place {write.place} was written twice")
        places.add(write.place)
        later = known[bisect_left(times, write.sent_ns)]
        if later > write.fence:
            wrong.append(f"place {write.place} was written under fence {write.fence}, after fence {later} was held")
        if write.fence < highest:
            wrong.append(f"place {write.place} was written under fence {write.fence}, after fence {highest}")
        highest = max(highest, write.fence)
    return wrong
