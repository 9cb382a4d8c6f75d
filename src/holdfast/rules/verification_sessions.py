"""Invariants of a session: its family, its history without gaps, its nodes in their places, its ledger.

As in `holdfast.rules.verification`, each rule yields a finding for each violation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.records.maintenance import Finding
from holdfast.rows import (
    LIVE,
    POSITION_BITS,
    TOMBSTONED,
    VACUUMED,
    NodeRow,
    RevisionRow,
    Segment,
    SessionRow,
    UsageRow,
)
from holdfast.rules import checkpoints, commits, graph, ledgers, node_ranges, sessions

VACUUMED_PAYLOAD = b"null"

# Sessions.


def session(row: SessionRow, incarnations: tuple[int, int, int]) -> Iterator[Finding]:
    """Check a session alone, and the span of its id's incarnations: none is ever forgotten, and only the last lives."""
    key = str(row.session_key)
    _, newest, count = incarnations
    if row.incarnation < 1 or count != newest or (row.deleted_at_ms is None and row.incarnation != newest):
        yield Finding("sessions", key, f"is incarnation {row.incarnation} of {count}, the newest being {newest}")
    if row.epoch > row.node_count:
        yield Finding("sessions", key, f"its epoch {row.epoch} begins after its last node {row.node_count}")
    if row.revision == 0 and row.epoch > 0:
        yield Finding("sessions", key, "its graph was replaced, but it has no revision")
    if row.deleted_at_ms is not None:
        if row != sessions.tombstone(row, now_ms=row.deleted_at_ms):
            yield Finding("sessions", key, "is deleted, but not everything of it is")
        return
    described = [row.name, row.owner, row.model, row.cwd, row.parent_session_id, row.caused_by]
    if row.created_at_ms is None and any(part is not None for part in described):
        yield Finding("sessions", key, "has metadata, but was never created")
    if row.created_at_ms is not None and row.name is None:
        yield Finding("sessions", key, "was created, but its metadata is incomplete")
    if row.parent_session_id is None and row.caused_by is not None:
        yield Finding("sessions", key, "has a cause, but no parent")
    sessions.meta_of(row)


def family(row: SessionRow, root_session: SessionRow | None) -> Iterator[Finding]:
    """A family is named after the session that founded it, whose row is never removed."""
    if root_session is None or root_session.family != row.family or row.family > row.session_key:
        yield Finding("sessions", str(row.session_key), f"no session founded its family {row.family}")


def lineage(row: SessionRow, segment: Segment, source: SessionRow | None) -> Iterator[Finding]:
    """A fork inherits from an older session of its family, up to a position where that one had nodes."""
    key = str(row.session_key)
    if source is None or source.family != row.family or source.session_key >= row.session_key:
        yield Finding(
            "sessions", key, f"inherits from {segment.session_key}, which is not an older session of its family"
        )
    elif segment.epoch >= segment.upto or (source.deleted_at_ms is None and segment.upto > source.node_count):
        yield Finding("sessions", key, f"inherits nodes up to {segment.upto} that {segment.session_key} never had")


def history(row: SessionRow, revisions: tuple[int, int, int]) -> Iterator[Finding]:
    """The retained revisions have no gap and end in the head."""
    first, last, count = revisions
    key = str(row.session_key)
    if count and count != last - first + 1:
        yield Finding("revisions", key, f"{last - first + 1 - count} are missing between {first} and {last}")
    if last != row.revision:
        yield Finding("sessions", key, f"the head is {row.revision}, the history ends at {last}")


def head(row: SessionRow, current: RevisionRow) -> Iterator[Finding]:
    """A session's epoch is that of its head."""
    if current.epoch != row.epoch:
        yield Finding("sessions", str(row.session_key), f"its epoch is {row.epoch}, its head's is {current.epoch}")


def positions(row: SessionRow, nodes: tuple[int, int, int]) -> Iterator[Finding]:
    """The last node is where the session says. Only an empty graph may have lost the nodes before it."""
    last = graph.position_of(nodes[1])
    if last > row.node_count or (row.node_count > row.epoch and last != row.node_count):
        yield Finding("sessions", str(row.session_key), f"counts {row.node_count} nodes, the last one is {last}")


def key_range(place: node_ranges.KeyRange, count: int) -> Iterator[Finding]:
    """Every node that a view includes is stored."""
    problem = node_ranges.lost(place, count)
    if problem is not None:
        yield Finding("nodes", f"{place.session_key}/{place.epoch}", problem)


# Turns.


def revision(row: RevisionRow, owner: SessionRow | None) -> Iterator[Finding]:
    """Check a revision alone, and against its session (None if that cannot be read)."""
    key = f"{row.session_key}/{row.revision}"
    body = commits.body_of(row)
    graph.leaf_of(row)
    if row.refs != commits.encode_refs(body):
        yield Finding("revisions", key, "the listed refs are not those of the body")
    if row.checkpoint_ref != (None if body.manifest is None else checkpoints.manifest_ref(body.manifest)):
        yield Finding("revisions", key, "the checkpoint's ref does not match its manifest")
    if row.turn_id is not None and row.fingerprint is None:
        yield Finding("revisions", key, "has a turn id, but no fingerprint")
    if row.revision < 1 or row.epoch > row.node_count:
        yield Finding("revisions", key, f"epoch {row.epoch} with {row.node_count} nodes cannot be")
    if owner is None or owner.deleted_at_ms is not None:
        # A deleted session's turns are removed in steps, the last ones perhaps by the next garbage collection.
        return
    if row.family != owner.family:
        yield Finding("revisions", key, f"it is in family {row.family}, its session in {owner.family}")
    if row.epoch > owner.epoch or row.node_count > owner.node_count:
        yield Finding("revisions", key, "it sees nodes that its session does not have yet")


def leaf(row: RevisionRow, owner: SessionRow, node: NodeRow | None) -> Iterator[Finding]:
    """A revision's leaf is a node that the revision sees, and it has that id."""
    place = graph.leaf_of(row)
    if place is None:
        return
    view = graph.segments_of(owner, epoch=row.epoch, upto=row.node_count)
    seen = node is not None and any(
        one.first_key <= node.node_key <= one.last_key and one.epoch == node.epoch for one in view
    )
    if node is None or not seen or node.node_id != place[1]:
        yield Finding("revisions", f"{row.session_key}/{row.revision}", f"its leaf {place[1]!r} is missing")


def successor(before: RevisionRow, row: RevisionRow) -> Iterator[Finding]:
    """The graph only grows, within an epoch and from one to the next."""
    if row.epoch < before.epoch or row.node_count < before.node_count:
        key = f"{row.session_key}/{row.revision}"
        yield Finding("revisions", key, f"has fewer nodes than revision {before.revision}")


class Spending(msgspec.Struct):
    """The usage of a session's retained turns, added up."""

    totals: dict[tuple[str, str], list[int]] = {}
    places: dict[tuple[str, str], int] = {}
    total: int | None = None
    wrong: list[int] = []

    def add(self, revision: int, body: commits.TurnBody) -> None:
        """Add one turn. Turns come in order."""
        before = self.total if revision > 1 else 0
        if before is not None and ledgers.total(before, body.usage) != body.spent:
            self.wrong.append(revision)
        self.total = body.spent
        for index, one in enumerate(body.usage):
            name = (one.source, one.model)
            total = self.totals.setdefault(name, [0, 0, 0, 0])
            for place, count in enumerate(ledgers.counts_of(one)):
                total[place] += count
            self.places.setdefault(name, revision * ledgers.USAGE_PLACES + index)


def ledger(session_key: int, rows: Sequence[UsageRow], spent: Spending, *, first_revision: int) -> Iterator[Finding]:
    """The ledger is the sum of the turns, or more if the first turns were pruned; the last turn has the total."""
    for revision in spent.wrong:
        yield Finding("revisions", f"{session_key}/{revision}", "its total is not that of the turns up to it")
    counted = {(row.source, row.model): row for row in rows}
    complete = first_revision <= 1
    for name in {**spent.totals, **counted}:
        key = "/".join((str(session_key), *name))
        row = counted.get(name)
        total = spent.totals.get(name, [0, 0, 0, 0])
        if row is None:
            yield Finding("usage", key, "is missing, but turns count to it")
        elif any(a < b for a, b in zip(ledgers.counts_of(row), total, strict=True)) or (
            complete and list(ledgers.counts_of(row)) != total
        ):
            yield Finding("usage", key, "is not what the turns add up to")
        elif not any(ledgers.counts_of(row)):
            yield Finding("usage", key, "counts nothing")
        elif (complete or row.place // ledgers.USAGE_PLACES >= first_revision) and row.place != spent.places.get(name):
            yield Finding("usage", key, "is not at the place of its first turn")
    if not complete and not spent.wrong and ledgers.total(0, rows) != spent.total:
        yield Finding("usage", str(session_key), "the counters do not add up to what the turns spent")


# Nodes.


def node(row: NodeRow, owner: SessionRow | None) -> Iterator[Finding]:
    """Check a node alone, and against the session that wrote it (None if that cannot be read)."""
    key = str(row.node_key)
    position = graph.position_of(row.node_key)
    if row.session_key != row.node_key >> POSITION_BITS:
        yield Finding("nodes", key, f"its key says that it is not of session {row.session_key}")
    if row.mark not in (LIVE, TOMBSTONED, VACUUMED):
        yield Finding("nodes", key, f"mark is {row.mark}")
    if row.mark == VACUUMED and (row.payload != VACUUMED_PAYLOAD or row.caused_by is not None):
        yield Finding("nodes", key, "is vacuumed, but still has content")
    if row.epoch >= position:
        yield Finding("nodes", key, f"its epoch {row.epoch} begins after it")
    has_older_parent = row.parent_key is None or _is_older(row, row.parent_key)
    if not has_older_parent:
        yield Finding("nodes", key, "its parent does not come before it")
    if owner is not None and owner.deleted_at_ms is None:
        if row.epoch > owner.epoch:
            yield Finding("nodes", key, f"its epoch is {row.epoch}, its session's {owner.epoch}")
        if row.revision is not None and not 1 <= row.revision <= owner.revision:
            yield Finding("nodes", key, f"was added by revision {row.revision}, the head is {owner.revision}")
    graph.node_of(row if has_older_parent else msgspec.structs.replace(row, parent_key=None))


def addition(
    row: NodeRow, turn: RevisionRow | None, before: RevisionRow | None, following: NodeRow | None
) -> Iterator[Finding]:
    """A node stands among those that its turn added: not in the turn before, and the last one where the turn ends.

    A turn that is not retained proves nothing, and neither does a node without a known successor.
    """
    key = str(row.node_key)
    position = graph.position_of(row.node_key)
    if turn is not None and (turn.epoch != row.epoch or turn.node_count < position):
        yield Finding("nodes", key, f"revision {row.revision}, which added it, does not see it")
    elif before is not None and before.node_count >= position:
        yield Finding("nodes", key, f"revision {row.revision} added it, but was there before")
    elif turn is not None and _is_last(row, following) and turn.node_count != position:
        yield Finding("revisions", f"{turn.session_key}/{turn.revision}", f"its last node is at {position}")


def _is_last(row: NodeRow, following: NodeRow | None) -> bool:
    """Return True if it is certain that a node is the last of its turn."""
    places = (row.session_key, row.revision)
    return following is not None and (following.session_key, following.revision) != places


def _is_older(row: NodeRow, parent_key: int) -> bool:
    """Return True if a parent is older, and of the same epoch or, in the first epoch, inherited."""
    inherited = parent_key >> POSITION_BITS != row.node_key >> POSITION_BITS
    return parent_key < row.node_key and (row.epoch == 0 if inherited else graph.position_of(parent_key) > row.epoch)
