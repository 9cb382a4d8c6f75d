"""Ranges of keys in a view: where nodes must be stored, so that a lost node is not mistaken for a tombstone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from holdfast.errors import Corrupt, InvalidRequest
from holdfast.label_rows import FIRST_CHARACTER
from holdfast.records.graph import IdRange
from holdfast.records.limits import Limits
from holdfast.rows import POSITION_BITS, NodeRow, Segment
from holdfast.rules import checks, graph


class KeyRange(NamedTuple):
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


K = TypeVar("K", int, str)


def place_in(field: str, epoch: int, place: tuple[K, int]) -> K:
    """Return the node of a place in a listing, by key or id, if it still belongs to the graph with this epoch."""
    node, listed_epoch = place
    if listed_epoch != epoch:
        raise InvalidRequest(
            field,
            "is a place in a graph that was replaced since: list the nodes again, or give `at` to keep to a revision",
        )
    return node


def check_ids(field: str, value: object, limits: Limits) -> IdRange:
    """Check a range of ids. Its bounds need not be ids themselves."""
    given = checks.instance(field, value, IdRange)
    checks.text(f"{field}.first", given.first, limits)
    if given.before is not None:
        checks.text(f"{field}.before", given.before, limits)
    return given


def rest_of(ids: IdRange, place: str | None, *, descending: bool) -> IdRange:
    """Return the part of a range that follows a place in a listing."""
    if place is None:
        return ids
    if descending:
        return IdRange(ids.first, place if ids.before is None else min(place, ids.before))
    return IdRange(max(ids.first, place + FIRST_CHARACTER), ids.before)


def merged(reads: Iterable[tuple[Sequence[NodeRow], bool]], *, descending: bool) -> tuple[list[NodeRow], bool]:
    """Return the nodes of several segments by id, and whether some were left out.

    Each read has a flag: more of its segment may follow. Nodes beyond the end of such a read are left out.
    """
    held = list(reads)
    ends = [rows[-1].node_id for rows, is_cut in held if is_cut and rows]
    found = sorted((row for rows, _ in held for row in rows), key=lambda row: row.node_id, reverse=descending)
    if not ends:
        return found, False
    end = max(ends) if descending else min(ends)
    rows = [row for row in found if (row.node_id >= end if descending else row.node_id <= end)]
    return rows, len(rows) < len(found)


def key_ranges_of(
    segments: Iterable[Segment], *, first_key: int | None = None, last_key: int | None = None
) -> list[KeyRange]:
    """Return the parts of a view between two keys, both included."""
    found = (
        KeyRange(
            segment.epoch,
            segment.first_key if first_key is None else max(segment.first_key, first_key),
            segment.last_key if last_key is None else min(segment.last_key, last_key),
        )
        for segment in segments
    )
    return [keys for keys in found if keys.whole > 0]


def unread(ranges: Iterable[KeyRange], rows: Iterable[NodeRow]) -> list[KeyRange]:
    """Return the ranges with nodes that were not read: hidden, left out, or lost. No turn removes a row."""
    read = Counter(row.node_key >> POSITION_BITS for row in rows)
    return [keys for keys in ranges if read[keys.session_key] < keys.whole]


def lost(keys: KeyRange, count: int) -> str | None:
    """Return a message with the number of nodes left in a range, None if none is lost."""
    if count == keys.whole:
        return None
    first, last = graph.position_of(keys.first_key), graph.position_of(keys.last_key)
    return f"{count} of the {keys.whole} nodes from position {first} to {last} are there"


def require_stored(keys: KeyRange, count: int) -> None:
    """Raise `Corrupt` if a node is lost: otherwise it would look tombstoned."""
    problem = lost(keys, count)
    if problem is not None:
        raise Corrupt("nodes", f"{keys.session_key}/{keys.epoch}", problem)


def count_of(segments: Iterable[Segment]) -> int:
    """Return the number of nodes in segments."""
    return sum(segment.upto - segment.epoch for segment in segments)


def path_keys(leaf_key: int, nodes: Mapping[int, NodeRow], last: int | None) -> list[int]:
    """Return the keys of at most `last` nodes of a path, oldest first. It ends where a parent is not in `nodes`."""
    keys: list[int] = []
    node = nodes.get(leaf_key)
    while node is not None and (last is None or len(keys) < last):
        keys.append(node.node_key)
        node = None if node.parent_key is None else nodes.get(node.parent_key)
    return keys[::-1]
