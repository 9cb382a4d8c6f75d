"""Decide where a node may stand: after its parent, one node per id, history append-only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from operator import lt
from typing import NamedTuple, cast

import msgspec
from msgspec import UNSET, UnsetType

from holdfast import codec
from holdfast.errors import Corrupt, InvalidRequest, NodeConflict
from holdfast.records.common import Document
from holdfast.records.graph import TOMBSTONE, Graph, Node
from holdfast.records.limits import Limits
from holdfast.rows import LIVE, POSITION_BITS, TOMBSTONED, VACUUMED, NodeRow, RevisionRow, Segment, SessionRow
from holdfast.rules import checks

GONE = "was vacuumed, or moved here as a tombstone"
NODES_PER_SESSION = (1 << POSITION_BITS) - 1
NO_LINEAGE = b"[]"
"""The lineage of a session that is not a fork."""


class NodeIntent(msgspec.Struct, frozen=True):
    """A checked node with its encoded parts. `is_derived` is True if its id was derived from the turn id."""

    id: str
    parent: str | UnsetType | None
    kind: str
    payload: bytes
    frame_id: str | None
    caused_by: bytes | None
    created_at_ms: int | None
    is_derived: bool = False

    @property
    def size(self) -> int:
        """The bytes that it adds to a commit."""
        return len(self.payload) + len(self.caused_by or b"")


def derived_id(session_id: str, seed: str, position: int) -> str:
    """Return the id of a node that was sent without one.

    The same turn id and position give the same id, so that a retry is a replay. The session is part of it, because a
    fork sees the nodes of its source and may use the same turn ids.
    """
    return f"node:{codec.stable_hash([session_id, seed, position])[:32]}"


def check_nodes(
    field: str, nodes: object, limits: Limits, *, seed: tuple[str, str] | None = None
) -> tuple[NodeIntent, ...]:
    """Check each node on its own, and that no id occurs twice.

    `seed` is the session and the name that ids are derived from; None if every node must have an id of its own.
    """
    given = checks.sequence(field, nodes, most=limits.commit_nodes)
    intents: list[NodeIntent] = []
    seen: dict[str, int] = {}
    for index, value in enumerate(given):
        intent = _check_node(f"{field}[{index}]", value, limits, seed, index)
        if intent.id in seen:
            raise InvalidRequest(f"{field}[{index}].id", f"{intent.id!r} is also the id of {field}[{seen[intent.id]}]")
        if intent.parent == intent.id:
            raise InvalidRequest(f"{field}[{index}].parent", "a node cannot be its own parent")
        seen[intent.id] = index
        intents.append(intent)
    return tuple(intents)


def _check_node(field: str, value: object, limits: Limits, seed: tuple[str, str] | None, index: int) -> NodeIntent:
    node = checks.instance(field, value, Node)
    is_derived = node.id == ""
    if is_derived and seed is None:
        raise InvalidRequest(f"{field}.id", "is missing: nodes outside the path are known by their ids, so give it one")
    parent: object = node.parent
    return NodeIntent(
        id=derived_id(*seed, index) if is_derived and seed else checks.identifier(f"{field}.id", node.id, limits),
        parent=UNSET if parent is UNSET else checks.optional_identifier(f"{field}.parent", parent, limits),
        kind=checks.identifier(f"{field}.kind", node.kind, limits),
        payload=check_payload(f"{field}.payload", node.payload, limits),
        # Most nodes have neither: then the names of the fields are not made.
        frame_id=None if node.frame_id is None else checks.identifier(f"{field}.frame_id", node.frame_id, limits),
        caused_by=None if node.caused_by is None else checks.document(f"{field}.caused_by", node.caused_by, limits),
        created_at_ms=checks.optional_whole(f"{field}.created_at_ms", node.created_at_ms),
        is_derived=is_derived,
    )


def check_payload(field: str, value: object, limits: Limits) -> bytes:
    """Return a payload as the bytes to store: a document, or bytes behind a mark."""
    if not isinstance(value, checks.BYTES):
        return checks.document(field, value, limits)
    return codec.encode_bytes(checks.content(field, cast("bytes", value), most=limits.document_bytes))


def payload_of(data: bytes, key: object) -> Document | bytes:
    """Return a stored payload."""
    return codec.decode_value(data, table="nodes", key=key)


def content_of(node: NodeIntent) -> list[Document]:
    """Return a node's content without its place. Reads the stored bytes: the caller may change its own objects."""
    payload = payload_of(node.payload, node.id)
    caused_by = None if node.caused_by is None else codec.decode_document(node.caused_by, table="nodes", key=node.id)
    if isinstance(payload, bytes):
        return [node.kind, None, node.frame_id, caused_by, codec.digest(payload)]
    return [node.kind, payload, node.frame_id, caused_by]


class Placed(msgspec.Struct, frozen=True):
    """A node of a delta, its index there, and its parent unless it is stored already."""

    index: int
    intent: NodeIntent
    parent: str | None


def _attach(intents: Sequence[NodeIntent], stored: Mapping[str, NodeRow]) -> list[str | UnsetType | None]:
    """Return the parent of each node of a delta; UNSET stands for the head's leaf.

    A node without a parent follows the one before it in the delta. The first node follows the head's leaf, and so does
    a node whose predecessor descends from it.
    """
    given = [intent.parent for intent in intents]
    if UNSET not in given:
        return given
    upwards: dict[str, str] = {}

    def highest(node_id: str) -> str:
        passed: list[str] = []
        while node_id in upwards:
            passed.append(node_id)
            node_id = upwards[node_id]
        upwards.update(dict.fromkeys(passed, node_id))
        return node_id

    def hang(child: str, parent: str) -> bool:
        """Put a node below another and return True, unless that would close a cycle."""
        if highest(parent) == child:
            return False
        upwards[child] = parent
        return True

    for intent in intents:
        if isinstance(intent.parent, str):
            hang(intent.id, intent.parent)
    parents: list[str | UnsetType | None] = []
    before: str | UnsetType = UNSET
    for intent in intents:
        parent = before if isinstance(intent.parent, UnsetType) else intent.parent
        # A stored node that is sent without a parent keeps its place.
        if isinstance(intent.parent, UnsetType) and isinstance(before, str) and intent.id not in stored:
            parent = before if hang(intent.id, before) else UNSET
        parents.append(parent)
        before = intent.id
    return parents


def follows_head(intents: Sequence[NodeIntent], stored: Mapping[str, NodeRow]) -> bool:
    """Return True if a new node of a delta follows the head's leaf."""
    attached = zip(intents, _attach(intents, stored), strict=True)
    return any(isinstance(parent, UnsetType) and intent.id not in stored for intent, parent in attached)


def chained(
    field: str, intents: Sequence[NodeIntent], *, first_parent: str | None, stored: Mapping[str, NodeRow]
) -> list[Placed]:
    """Return the nodes of a delta with parents before children, as near to the given order as that allows.

    A node without a parent has the one that `_attach` gives it; nodes that follow the head's leaf get `first_parent`.
    """
    parents = [first_parent if isinstance(one, UnsetType) else one for one in _attach(intents, stored)]
    placed = {intent.id: Placed(index, intent, parents[index]) for index, intent in enumerate(intents)}
    places = [-1 if parent is None or parent not in placed else placed[parent].index for parent in parents]
    if all(map(lt, places, range(len(intents)))):
        return list(placed.values())
    order: dict[str, Placed] = {}
    for one in placed.values():
        climbed: dict[str, Placed] = {}
        step: Placed | None = one
        while step is not None and step.intent.id not in order:
            if step.intent.id in climbed:
                raise InvalidRequest(
                    f"{field}[{step.index}].parent",
                    f"{step.intent.id!r} would be its own ancestor: give it a parent that does not descend from it",
                )
            climbed[step.intent.id] = step
            # A stored node keeps its place, whatever it follows here.
            stays = isinstance(step.intent.parent, UnsetType) and step.intent.id in stored
            step = None if stays or step.parent is None else placed.get(step.parent)
        order.update(reversed(climbed.items()))
    return list(order.values())


def with_parents(field: str, intents: Sequence[NodeIntent]) -> tuple[NodeIntent, ...]:
    """Return the nodes of a self-contained graph: parents first, each with its parent."""
    order = chained(field, intents, first_parent=None, stored={})
    ids = {intent.id for intent in intents}
    for one in order:
        if one.parent is not None and one.parent not in ids:
            raise InvalidRequest(
                f"{field}[{one.index}].parent",
                f"there is no node {one.parent!r} in this graph: leave the parent out to follow the node before it, or "
                "give None for a root",
            )
    return tuple(msgspec.structs.replace(one.intent, parent=one.parent) for one in order)


def lineage_of(session: SessionRow) -> tuple[Segment, ...]:
    """Return the segments that the session inherited when it was forked, nearest source first."""
    if session.lineage == NO_LINEAGE:
        return ()
    try:
        return tuple(msgspec.json.decode(session.lineage, type=list[Segment]))
    except codec.UNDECODABLE as error:
        raise Corrupt("sessions", str(session.session_key), "the lineage does not decode") from error


def encode_lineage(segments: Iterable[Segment]) -> bytes:
    """Return the stored form of a lineage."""
    return msgspec.json.encode(list(segments))


def segments_of(session: SessionRow, *, epoch: int | None = None, upto: int | None = None) -> tuple[Segment, ...]:
    """Return the segments that a session sees: its own, and the inherited ones unless its graph was replaced.

    `epoch` and `upto` are those of an earlier revision; by default the session is seen as it is now.
    """
    at_epoch = session.epoch if epoch is None else epoch
    own = Segment(session.session_key, at_epoch, session.node_count if upto is None else upto)
    if max(own.epoch, own.upto) > NODES_PER_SESSION:
        raise Corrupt("revisions", str(session.session_key), f"one of them ends at node {max(own.epoch, own.upto)}")
    return (own, *lineage_of(session)) if at_epoch == 0 else (own,)


def cut(segments: Sequence[Segment], node_key: int) -> tuple[Segment, ...]:
    """Return the part of a view that existed when one of its nodes was added."""
    index = next(i for i, segment in enumerate(segments) if segment.session_key == node_key >> POSITION_BITS)
    own = segments[index]
    return (Segment(own.session_key, own.epoch, position_of(node_key)), *segments[index + 1 :])


def visible_count(session: SessionRow) -> int:
    """Return the number of nodes in the session's graph, including inherited ones."""
    return sum(segment.upto - segment.epoch for segment in segments_of(session))


def replacing_epoch(session: SessionRow) -> int:
    """Return the epoch of a graph that replaces the session's own: never 0, because epoch 0 inherits."""
    return max(session.node_count, 1)


def position_of(node_key: int) -> int:
    """Return a node's place in the session that wrote it."""
    return node_key % (NODES_PER_SESSION + 1)


class Placement(NamedTuple):
    """The effect of a delta on the graph: new rows, rows that are brought back, and the delta's last node.

    `kept` counts stored nodes that differ from those sent and stay as they are.
    """

    rows: tuple[NodeRow, ...]
    revived: tuple[NodeRow, ...]
    last: str | None
    kept: int = 0


def further_ids(
    intents: Sequence[NodeIntent], stored: Mapping[str, NodeRow], leaf: tuple[int, str] | None
) -> tuple[str, ...]:
    """Return the ids of nodes that a delta rests on, beyond those that it names.

    These are the head's leaf, if a new node follows it, and the parents of tombstoned nodes that are sent again.
    """
    known = [stored[intent.id] for intent in intents if intent.id in stored]
    needed = {row.parent_id for row in known if row.mark == TOMBSTONED and row.parent_id is not None}
    if leaf is not None and leaf[1] not in stored and follows_head(intents, stored):
        needed.add(leaf[1])
    return tuple(sorted(needed - stored.keys())) if needed else ()


def place_nodes(  # noqa: PLR0913 - a placement rests on as many facts
    field: str,
    session: SessionRow,
    intents: Sequence[NodeIntent],
    stored: Mapping[str, NodeRow],
    *,
    leaf: tuple[int, str] | None,
    after: Segment,
    revision: int | None,
    now_ms: int,
    keep: bool = False,
) -> Placement:
    """Return the rows of new nodes, placed after a segment of the session's own, and of nodes that a turn brings back.

    A node that is stored already is left out if it is equal, and is `NodeConflict` otherwise, unless stored nodes are
    to be kept. A turn (`revision`) that sends a tombstoned node again brings it back. A node that is new or comes back
    needs a parent that can be read.
    """
    order = chained(field, intents, first_parent=None if leaf is None else leaf[1], stored=stored)
    known = [(one, stored[one.intent.id]) for one in order if one.intent.id in stored]
    differing = [(one, row) for one, row in known if not _same_node(one.intent, row)]
    if differing and not keep:
        one, row = differing[0]
        raise NodeConflict(session.session_id, one.intent.id, vacuumed=_is_gone(row), derived=one.intent.is_derived)
    back = {} if revision is None else {row.node_id: (one, row) for one, row in known if row.mark == TOMBSTONED}
    keys = {node_id: row.node_key for node_id, row in stored.items() if row.mark == LIVE or node_id in back}
    hidden = {node_id: _why_hidden(row, session, revision) for node_id, row in stored.items() if node_id not in keys}
    for one, row in back.values():
        _require_parent(field, one, row.parent_id, keys, hidden, leaf)
    rows: list[NodeRow] = []
    position = after.upto
    for one in order:
        intent = one.intent
        if intent.id in stored:
            continue
        _require_parent(field, one, one.parent, keys, hidden, leaf)
        position += 1
        if position > NODES_PER_SESSION:
            raise InvalidRequest(field, f"a session holds at most {NODES_PER_SESSION} nodes", limit=NODES_PER_SESSION)
        keys[intent.id] = (session.session_key << POSITION_BITS) + position
        rows.append(
            NodeRow(
                node_key=keys[intent.id],
                session_key=session.session_key,
                epoch=after.epoch,
                node_id=intent.id,
                parent_key=None if one.parent is None else keys[one.parent],
                kind=intent.kind,
                frame_id=intent.frame_id,
                caused_by=intent.caused_by,
                created_at_ms=now_ms if intent.created_at_ms is None else intent.created_at_ms,
                payload=intent.payload,
                mark=LIVE,
                revision=revision,
                parent_id=one.parent,
            )
        )
    last = order[-1].intent.id if order else None
    return Placement(tuple(rows), tuple(row for _, row in back.values()), last, len(differing))


def _require_parent(
    field: str,
    one: Placed,
    parent: str | None,
    keys: Mapping[str, int],
    hidden: Mapping[str, str],
    leaf: tuple[int, str] | None,
) -> None:
    """Refuse a node whose parent is missing or hidden: it would be read back without its history."""
    if parent is None or parent in keys:
        return
    place = f"{field}[{one.index}].parent"
    if parent in hidden:
        raise InvalidRequest(place, f"{parent!r} {hidden[parent]} give a parent that can be read, or None for a root")
    if leaf is not None and parent == leaf[1] and isinstance(one.intent.parent, UnsetType):
        raise Corrupt("nodes", str(leaf[0]), "the leaf is missing")
    raise InvalidRequest(
        place,
        f"there is no node {parent!r}: leave the parent out to follow the node before it, or give None for a root",
    )


def _why_hidden(row: NodeRow, session: SessionRow, revision: int | None) -> str:
    """Return the reason why a stored node cannot be read, and how to bring it back if this session can."""
    if _is_gone(row):
        return f"{GONE}:"
    if row.session_key != session.session_key:
        return "is tombstoned in the session that this was forked from:"
    how = "commit it again" if revision is None else "send it again"
    return f"is tombstoned: {how} to bring it back, or"


def _is_gone(row: NodeRow) -> bool:
    """Return True if the content of a node is gone: vacuumed, or left behind when the tombstone was moved here."""
    return row.mark == VACUUMED or (row.mark == TOMBSTONED and row.kind == TOMBSTONE)


def require_leaf(field: str, leaf: str, keys: Mapping[str, int], stored: Mapping[str, NodeRow]) -> int:
    """Return the key of the node that becomes the leaf. It must be readable."""
    if leaf in keys:
        return keys[leaf]
    if leaf not in stored:
        why = f"there is no node {leaf!r}"
    else:
        why = f"{leaf!r} {GONE if _is_gone(stored[leaf]) else 'is tombstoned'}"
    raise InvalidRequest(field, f"{why}: name a node that can be read, or None for no active path")


def _same_node(intent: NodeIntent, row: NodeRow) -> bool:
    """Return True if a node equals a stored one in everything but the time, which a retry may change.

    A vacuumed node equals none. A parent that was left out equals any.
    """
    return (
        not _is_gone(row)
        and (isinstance(intent.parent, UnsetType) or intent.parent == row.parent_id)
        and intent.kind == row.kind
        and intent.frame_id == row.frame_id
        and _canonical(intent.payload, row) == _canonical(row.payload, row)
        and _canonical(intent.caused_by, row) == _canonical(row.caused_by, row)
    )


def _canonical(data: bytes | None, row: NodeRow) -> bytes | None:
    """Return a stored value in canonical form: key order does not count, but 1 is not True."""
    if data is None:
        return None
    value = payload_of(data, row.node_key)
    return codec.encode_bytes(value) if isinstance(value, bytes) else codec.encode_canonical(value)


def extends(session: SessionRow, intents: Sequence[NodeIntent], current: Sequence[NodeRow]) -> bool:
    """Return True if a replacing graph begins with exactly the current graph, so that only its end is new.

    `current` are the live nodes. If any other was tombstoned, the replacing graph needs an epoch without it.
    """
    return len(intents) >= len(current) == visible_count(session) and all(
        intent.id == row.node_id and _same_node(intent, row) for intent, row in zip(intents, current, strict=False)
    )


def node_of(row: NodeRow) -> Node:
    """Return the node of a row. A missing parent is damage, because history loses nothing.

    So is a parent that is not older than the node: parents come before their children, and a graph has no cycles.
    """
    if row.parent_key is not None:
        if row.parent_key >= row.node_key:
            raise Corrupt("nodes", str(row.node_key), f"its parent {row.parent_key} is not older than itself")
        if row.parent_id is None:
            raise Corrupt("nodes", str(row.node_key), "its parent is missing")
    cause = row.caused_by
    return Node(
        row.node_id,
        row.parent_id,
        row.kind,
        codec.decode_value(row.payload, table="nodes", key=row.node_key),
        row.frame_id,
        None if cause is None else codec.decode_document(cause, table="nodes", key=row.node_key),
        row.created_at_ms,
    )


def graph_of(rows: Iterable[NodeRow], leaf: str | None) -> Graph:
    """Return the graph that the rows make."""
    return Graph(tuple(map(node_of, rows)), leaf)


def leaf_of(row: RevisionRow | None) -> tuple[int, str] | None:
    """Return the leaf's key and id. Half a leaf is damage."""
    if row is None or (row.leaf_key is None and row.leaf_id is None):
        return None
    if row.leaf_key is None or row.leaf_id is None:
        raise Corrupt("revisions", f"{row.session_key}/{row.revision}", "it has half a leaf")
    return row.leaf_key, row.leaf_id


def require_own(
    places: Mapping[str, str], session: SessionRow, rows: Iterable[NodeRow], alive: Set[int], advice: str
) -> None:
    """Refuse to hide or bring back a node that another living session wrote.

    `places` has the field in which the caller named each node.
    """
    for row in rows:
        if row.session_key != session.session_key and row.session_key in alive:
            raise InvalidRequest(
                places[row.node_id], f"{row.node_id!r} belongs to the session that this was forked from: {advice}"
            )


def retained_segments(
    sessions: Iterable[SessionRow], revisions: Mapping[int, Iterable[tuple[int, int]]]
) -> dict[tuple[int, int], int]:
    """Return the highest position of each (session key, epoch) that the family still sees.

    `revisions` gives, for each live session, the (epoch, node count) of its retained revisions.
    """
    reach: dict[tuple[int, int], int] = {}

    def keep(segment: Segment) -> None:
        place = (segment.session_key, segment.epoch)
        reach[place] = max(reach.get(place, 0), segment.upto)

    for session in sessions:
        if session.deleted_at_ms is not None:
            continue
        views = [(session.epoch, session.node_count), *revisions.get(session.session_key, ())]
        for epoch, upto in views:
            for segment in segments_of(session, epoch=epoch, upto=upto):
                keep(segment)
    return reach
