"""Stretches of a view: the places where nodes must be stored, so that a lost node is not taken for a tombstone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.errors import Corrupt, InvalidRequest
from holdfast.rows import POSITION_BITS, NodeRow, Segment
from holdfast.rules import graph


class Stretch(NamedTuple):
    """Adjacent places of one session's nodes. Each holds a node of the epoch, whatever its mark."""

    epoch: int
    first_key: int
    last_key: int

    @property
    def session_key(self) -> int:
        """The key of the session that wrote the nodes."""
        return self.first_key >> POSITION_BITS

    @property
    def whole(self) -> int:
        """The number of nodes if none is lost."""
        return self.last_key - self.first_key + 1


def place_in(field: str, epoch: int, place: tuple[int, int]) -> int:
    """Return the node key of a place in a listing, if it still belongs to the graph with this epoch."""
    node_key, listed_epoch = place
    if listed_epoch != epoch:
        raise InvalidRequest(
            field,
            "is a place in a graph that was replaced since: list the nodes anew, or give `at` to keep to a revision",
        )
    return node_key


def stretches_of(
    segments: Iterable[Segment], *, first_key: int | None = None, last_key: int | None = None
) -> list[Stretch]:
    """Return the parts of a view between two keys, both included."""
    found = (
        Stretch(
            segment.epoch,
            segment.first_key if first_key is None else max(segment.first_key, first_key),
            segment.last_key if last_key is None else min(segment.last_key, last_key),
        )
        for segment in segments
    )
    return [stretch for stretch in found if stretch.whole > 0]


def unread(stretches: Iterable[Stretch], rows: Iterable[NodeRow]) -> list[Stretch]:
    """Return the stretches with nodes that were not read: hidden, left out, or lost. No turn removes a row."""
    read = Counter(row.node_key >> POSITION_BITS for row in rows)
    return [stretch for stretch in stretches if read[stretch.session_key] < stretch.whole]


def lost(stretch: Stretch, count: int) -> str | None:
    """Return a message with the number of nodes left in a stretch, None if none is lost."""
    if count == stretch.whole:
        return None
    first, last = graph.position_of(stretch.first_key), graph.position_of(stretch.last_key)
    return f"{count} of the {stretch.whole} nodes from position {first} to {last} are there"


def require_stored(stretch: Stretch, count: int) -> None:
    """Raise `Corrupt` if a node is lost: otherwise it would look tombstoned."""
    problem = lost(stretch, count)
    if problem is not None:
        raise Corrupt("nodes", f"{stretch.session_key}/{stretch.epoch}", problem)
