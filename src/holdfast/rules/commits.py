"""Decide whether a turn may be committed, in a fixed order: turn id, revision, claims, lease, graph, refs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import msgspec
from msgspec import UNSET, UnsetType

from holdfast import codec
from holdfast.errors import Corrupt, InvalidRequest, TurnConflict, UnknownRef
from holdfast.ports.fast_path_params import UNTIMED, Head, TurnPlan
from holdfast.records.checkpoints import CheckpointManifest
from holdfast.records.commits import Commit, CommitReceipt, Usage
from holdfast.records.graph import Append, Graph, Node, ReplaceGraph, Unchanged
from holdfast.records.leases import Lease
from holdfast.records.limits import Limits
from holdfast.records.queue import WorkCompletion
from holdfast.rows import (
    LIVE,
    POSITION_BITS,
    AttachmentRow,
    CommitFacts,
    NodeRow,
    RevisionRow,
    Segment,
    SessionRow,
    UsageRow,
)
from holdfast.rules import checkpoints, checks, claims, deltas, graph, heads, leases, ledgers, queue, starts, tombstones


class TurnBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a revision that has no columns of its own. Defaults take no room.

    `spent` is the total of the ledger after the turn: it shows that no counter was lost.
    """

    manifest: CheckpointManifest | None = None
    config_ref: str | None = None
    frames_ref: str | None = None
    frame_state_refs: tuple[str, ...] = ()
    current_frame_id: str | None = None
    usage: tuple[Usage | ledgers.Spent, ...] = ()
    enqueued: tuple[str, ...] = ()
    spent: int = 0
    started: tuple[str, ...] = ()
    tombstoned: int = 0


class CommitIntent(msgspec.Struct, frozen=True):
    """A checked commit: encoded, hashed, and independent of the stored state."""

    session_id: str
    turn_id: str | None
    fingerprint: str | None
    expected_revision: int | None
    replaces_graph: bool
    nodes: tuple[graph.NodeIntent, ...]
    leaf: str | UnsetType | None
    contents: checkpoints.Contents
    manifest: CheckpointManifest | None
    config_ref: str | None
    frames_ref: str | None
    frame_state_refs: tuple[str, ...]
    current_frame_id: str | None
    usage: tuple[Usage, ...]
    completes: tuple[WorkCompletion, ...]
    attachments: tuple[str, ...]
    enqueues: tuple[queue.BatchIntent, ...]
    starts: tuple[starts.StartIntent, ...]
    tombstones: tuple[str, ...]
    lease: Lease | None

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Every node id that has to be looked up."""
        named = set(self.tombstones)
        for node in self.nodes:
            named.add(node.id)
            if isinstance(node.parent, str):
                named.add(node.parent)
        if isinstance(self.leaf, str):
            named.add(self.leaf)
        return tuple(sorted(named))

    @property
    def refs(self) -> tuple[str, ...]:
        """Every ref that has to be looked up."""
        return tuple(sorted({*self.contents.kept.values(), *self.contents.bodies}))


def check_commit(commit: object, session_id: str | None, limits: Limits, *, seed: str) -> CommitIntent:
    """Return the intent of a commit. Refuse here what can be refused without reading the store.

    `seed` is a random name that no other commit has. Without a turn id, nodes without ids are named after it.
    """
    given = checks.instance("commit", commit, Commit)
    target = checks.identifier("session_id", session_id, limits)
    turn_id = checks.optional_identifier("turn_id", given.turn_id, limits)
    delta = checks.instance("graph", given.graph, (Unchanged, Append, ReplaceGraph))
    nodes_given, leaf = _delta_parts(delta)
    field = "graph.graph.nodes" if isinstance(delta, ReplaceGraph) else "graph.nodes"
    sent = graph.check_nodes(field, nodes_given, limits, seed=(target, turn_id or seed))
    nodes = graph.with_parents(field, sent) if isinstance(delta, ReplaceGraph) else sent
    if leaf is not UNSET:
        checks.optional_identifier(_leaf_field(isinstance(delta, ReplaceGraph)), leaf, limits)
    elif isinstance(delta, ReplaceGraph):
        leaf = nodes[-1].id if nodes else None
    contents = checkpoints.Contents({}, {})
    manifest = config_ref = frames_ref = None
    frame_state_refs: tuple[str, ...] = ()
    if given.checkpoint is not None:
        manifest = checkpoints.check_checkpoint("checkpoint", given.checkpoint, contents, limits)
    if given.config is not None:
        config_ref = contents.mint("json", checks.document("config", given.config, limits, canonical=True))
    if given.frames is not None:
        frames_ref, frame_state_refs = checkpoints.check_frames("frames", given.frames, contents, limits)
    intent = CommitIntent(
        session_id=target,
        turn_id=turn_id,
        fingerprint=checks.optional_identifier("fingerprint", given.fingerprint, limits),
        expected_revision=checks.optional_whole("expected_revision", given.expected_revision),
        replaces_graph=isinstance(delta, ReplaceGraph),
        nodes=nodes,
        leaf=leaf,
        contents=contents,
        manifest=manifest,
        config_ref=config_ref,
        frames_ref=frames_ref,
        frame_state_refs=frame_state_refs,
        current_frame_id=checks.optional_identifier("current_frame_id", given.current_frame_id, limits),
        usage=ledgers.check_usage(given.usage, limits),
        completes=claims.check_completions(given.completes, target, limits),
        attachments=_check_attachments(given.attachments, limits),
        enqueues=queue.check_drafts(given.enqueues, target, limits),
        starts=starts.check_starts(given.starts, target, turn_id or seed, limits),
        tombstones=tombstones.check_ids("tombstones", given.tombstones, limits),
        lease=None if given.lease is None else leases.check_session_lease("lease", given.lease, target, limits),
    )
    if intent.tombstones:
        tombstones.check_apart("tombstones", intent.tombstones, [node.id for node in intent.nodes])
    _check_size(intent, limits)
    if turn_id is not None and intent.fingerprint is None:
        return msgspec.structs.replace(intent, fingerprint=fingerprint_of(intent, sent))
    return intent


def _delta_parts(delta: Unchanged | Append | ReplaceGraph) -> tuple[Sequence[Node], str | UnsetType | None]:
    if isinstance(delta, ReplaceGraph):
        whole = checks.instance("graph.graph", delta.graph, Graph)
        return whole.nodes, whole.leaf
    return (delta.nodes if isinstance(delta, Append) else ()), delta.leaf


def _leaf_field(replaces: bool) -> str:
    """Return the field in which the caller wrote the leaf."""
    return "graph.graph.leaf" if replaces else "graph.leaf"


def _check_attachments(value: object, limits: Limits) -> tuple[str, ...]:
    if value is checks.LEFT_OUT:
        return ()
    ids = checks.sequence("attachments", value, most=limits.commit_items)
    return tuple(
        dict.fromkeys(checks.identifier(f"attachments[{index}]", one, limits) for index, one in enumerate(ids))
    )


def _check_size(intent: CommitIntent, limits: Limits) -> None:
    size = sum(map(len, intent.contents.bodies.values()))
    for node in intent.nodes:
        size += len(node.payload) if node.caused_by is None else node.size
    for draft in intent.enqueues:
        size += len(draft.payloads)
    for start in intent.starts:
        size += start.size
    if size > limits.commit_bytes:
        raise InvalidRequest(
            "commit", f"is {size} bytes, the limit is {limits.commit_bytes}", limit=limits.commit_bytes
        )


def fingerprint_of(intent: CommitIntent, nodes: Sequence[graph.NodeIntent]) -> str:
    """Return the hash that is equal for two commits of one turn id if they are the same turn.

    It leaves out the expected revision, every proof of ownership and, of the node records themselves, id, parent, leaf
    and time. Nothing is ever left out of a payload. The nodes are in the order in which they were sent.
    """
    rest: dict[str, object] = {
        "replaces_graph": intent.replaces_graph,
        "checkpoint": None if intent.manifest is None else intent.manifest.refs,
        "config": intent.config_ref,
        "frames": intent.frames_ref,
        "current_frame_id": intent.current_frame_id,
        # Like each `Usage`, without field names: the order of the fields is part of the hash.
        "usage": [msgspec.structs.astuple(usage) for usage in intent.usage],
        "completes": sorted([sorted(completion.batch_ids) for completion in intent.completes]),
        "attachments": sorted(intent.attachments),
        "enqueues": [
            [draft.session_id, draft.source_key, draft.available_at_ms, draft.draft_hash] for draft in intent.enqueues
        ],
    }
    if intent.starts:
        rest["starts"] = [start.content for start in intent.starts]
    if intent.tombstones:
        rest["tombstones"] = sorted(set(intent.tombstones))
    return codec.joint_hash([*map(graph.content_of, nodes), rest])


def body_of(row: RevisionRow) -> TurnBody:
    """Return the part of a stored revision that has no columns of its own."""
    key = f"{row.session_key}/{row.revision}"
    return codec.decode_record(TurnBody, row.body, table="revisions", key=key)


def receipt_of(session_id: str, row: RevisionRow, parts: TurnBody | TurnPlan, *, replayed: bool) -> CommitReceipt:
    """Return the receipt of a revision. Its body or its plan has the parts without columns of their own."""
    return CommitReceipt(
        session_id=session_id,
        revision=row.revision,
        checkpoint_ref=row.checkpoint_ref,
        manifest=parts.manifest or CheckpointManifest(),
        enqueued=parts.enqueued,
        started=parts.started,
        replayed=replayed,
        leaf=row.leaf_id,
        tombstoned=parts.tombstoned,
    )


def replay(intent: CommitIntent, turn: RevisionRow | None) -> CommitReceipt | None:
    """Return the receipt of a turn that was committed before. Other content under its id is `TurnConflict`."""
    if turn is None:
        return None
    if turn.fingerprint != intent.fingerprint:
        raise TurnConflict(intent.session_id, intent.turn_id or "")
    return receipt_of(intent.session_id, turn, body_of(turn), replayed=True)


def judge(  # noqa: PLR0913 - a turn rests on as many facts
    intent: CommitIntent,
    session: SessionRow,
    facts: CommitFacts,
    *,
    current: Sequence[NodeRow],
    ledger: Sequence[UsageRow],
    targets: Mapping[str, SessionRow],
    batch_ids: Sequence[str],
    now_ms: int,
    alive: Set[int] = frozenset(),
    before: TurnBody | None = None,
) -> TurnPlan:
    """Return everything that the commit writes, or raise the first reason against it. The turn is not a replay.

    `current` is the session's graph if the commit replaces it, `targets` the sessions that follow-up work goes to, and
    `batch_ids` a fresh id for each follow-up batch. `alive` are the living sessions of the family, if the commit
    tombstones inherited nodes. `before` is the head's body, if it was decoded already.
    """
    _require_head(intent, session, facts)
    completed = [
        row.enqueue_seq
        for completion in intent.completes
        for row in claims.require_claim(completion, facts.batches, now_ms)
    ]
    if intent.lease is not None:
        leases.require(facts.lease, intent.lease, now_ms)
    hidden = tombstones.to_hide(intent.tombstones, session, facts, alive) if intent.tombstones else ()
    keys = tuple([row.node_key for row in hidden]) if hidden else ()
    plan = _plan(
        intent,
        session,
        tombstones.after_hiding(facts, hidden),
        [row for row in current if row.node_key not in keys] if keys else current,
        ledger,
        before=body_before(facts.head) if before is None else before,
        targets=targets,
        batch_ids=batch_ids,
        now_ms=now_ms,
        tombstoned=len(keys),
    )
    if not completed and not keys:
        return plan
    return msgspec.structs.replace(plan, completed_seqs=tuple(completed), hidden=keys)


def assume(intent: CommitIntent, head: Head, before: TurnBody) -> CommitFacts:
    """Return the facts of a turn that continues from this head with new names. A database that judges proves them.

    Of the stored nodes, only the head's leaf is known, and its content is not: it equals no node.
    """
    nodes: tuple[NodeRow, ...] = ()
    leaf = graph.leaf_of(head.revision)
    if leaf is not None and head.revision is not None:
        nodes = (heads.named_node(leaf[1], leaf[0], leaf[0] >> POSITION_BITS, head.revision.epoch),)
    hashes = frozenset(body_refs(before))
    return CommitFacts(head=head.revision, nodes=nodes, hashes=hashes, attachment_ids=frozenset(intent.attachments))


def plan_on(
    intent: CommitIntent, session: SessionRow, facts: CommitFacts, batch_ids: Sequence[str], before: TurnBody
) -> TurnPlan:
    """Return what the commit writes if the facts hold, for a database that judges claims, lease and names itself."""
    _require_head(intent, session, facts)
    plan = _plan(intent, session, facts, (), (), before=before, targets={}, batch_ids=batch_ids, now_ms=UNTIMED)
    return with_proofs(plan, intent, session)


def with_proofs(plan: TurnPlan, intent: CommitIntent, session: SessionRow) -> TurnPlan:
    """Return the plan with all that a database judges by when it writes it: claims, lease and stored nodes."""
    return msgspec.structs.replace(
        plan,
        claims=tuple([claims.proof_of(completion) for completion in intent.completes]),
        lease=None if intent.lease is None else leases.proof_of(intent.lease),
        live_node_keys=_live_node_keys(intent, plan),
        segments=graph.segments_of(session) if plan.nodes and plan.session.epoch == session.epoch else (),
    )


def _require_head(intent: CommitIntent, session: SessionRow, facts: CommitFacts) -> None:
    if session.revision > 0 and facts.head is None:
        # Committing on top would turn lost state into empty state.
        raise Corrupt("revisions", f"{session.session_key}/{session.revision}", "the head's revision is missing")
    heads.require_revision(session, intent.expected_revision)


def _plan(  # noqa: PLR0913 - a turn rests on as many facts
    intent: CommitIntent,
    session: SessionRow,
    facts: CommitFacts,
    current: Sequence[NodeRow],
    ledger: Sequence[UsageRow],
    *,
    before: TurnBody,
    targets: Mapping[str, SessionRow],
    batch_ids: Sequence[str],
    now_ms: int,
    tombstoned: int = 0,
) -> TurnPlan:
    """Return what the commit writes, without judging claims and lease."""
    revision = session.revision + 1
    epoch, placed, leaf_key, leaf_id = _judge_graph(intent, session, facts, current, revision, now_ms)
    checkpoints.require_known(intent.contents, facts.hashes)
    for index, attachment_id in enumerate(intent.attachments):
        if attachment_id not in facts.attachment_ids:
            raise UnknownRef(
                f"attachments[{index}]",
                attachment_id,
                "neither the session nor its parent has it with its bytes stored: put it first",
            )
    usage = ledgers.counters(intent.usage, ledger, revision)
    enqueues, enqueued, enqueued_for = queue.place_drafts(intent.enqueues, facts.sources, targets, batch_ids, now_ms)
    node_count = graph.position_of(placed.rows[-1].node_key) if placed.rows else max(session.node_count, epoch)
    body = _next_body(intent, before, enqueued, tombstoned)
    return TurnPlan(
        session=msgspec.structs.replace(
            session, revision=revision, node_count=node_count, epoch=epoch, changed_at_ms=now_ms
        ),
        revision=RevisionRow(
            session_key=session.session_key,
            revision=revision,
            family=session.family,
            turn_id=intent.turn_id,
            fingerprint=intent.fingerprint,
            epoch=epoch,
            node_count=node_count,
            leaf_key=leaf_key,
            leaf_id=leaf_id,
            checkpoint_ref=None if body.manifest is None else checkpoints.manifest_ref(body.manifest),
            refs=encode_refs(body),
            body=codec.encode_record(body),
            committed_at_ms=now_ms,
        ),
        nodes=placed.rows,
        revived=placed.revived,
        blobs=checkpoints.blob_rows(intent.contents, facts.hashes, facts.runs),
        usage=usage,
        attachment_ids=intent.attachments,
        enqueues=enqueues,
        targets=enqueued_for,
        manifest=body.manifest,
        enqueued=body.enqueued,
        started=body.started,
        tombstoned=tombstoned,
    )


def _live_node_keys(intent: CommitIntent, plan: TurnPlan) -> tuple[int, ...]:
    """Return the stored nodes that must be live: otherwise the turn would be read back without its history."""
    leaf_key = plan.revision.leaf_key
    new = {row.node_key for row in plan.nodes}
    parents = {row.parent_key for row in plan.nodes if row.parent_key is not None}
    named = {leaf_key} if isinstance(intent.leaf, str) and leaf_key is not None else set[int]()
    return tuple(sorted((parents | named) - new))


def stored_nodes(facts: CommitFacts) -> dict[str, NodeRow]:
    """Return the stored nodes that a commit is judged by, by id."""
    return {row.node_id: row for row in facts.nodes}


def missing_attachments(intent: CommitIntent, facts: CommitFacts) -> tuple[str, ...]:
    """Return the attachments that a commit names and the session does not have."""
    return tuple(one for one in intent.attachments if one not in facts.attachment_ids)


def with_attachments(facts: CommitFacts, rows: Sequence[AttachmentRow]) -> CommitFacts:
    """Return the facts of a session that takes over these attachments."""
    known = facts.attachment_ids.union(row.attachment_id for row in rows)
    return msgspec.structs.replace(facts, attachment_ids=known) if rows else facts


def _judge_graph(
    intent: CommitIntent,
    session: SessionRow,
    facts: CommitFacts,
    current: Sequence[NodeRow],
    revision: int,
    now_ms: int,
) -> tuple[int, graph.Placement, int | None, str | None]:
    """Return epoch, nodes and leaf after the commit."""
    stored = stored_nodes(facts)
    epoch, position, field = session.epoch, session.node_count, "graph.nodes"
    if intent.replaces_graph:
        field = "graph.graph.nodes"
        ids = {node.id for node in intent.nodes}
        stored = {node_id: row for node_id, row in stored.items() if node_id in ids}
        if not graph.extends(session, intent.nodes, current):
            epoch = position = graph.replacing_epoch(session)
            stored = {}
    before = graph.leaf_of(facts.head)
    after = Segment(session.session_key, epoch, position)
    placed = graph.place_nodes(
        field, session, intent.nodes, stored, leaf=before, after=after, revision=revision, now_ms=now_ms
    )
    leaf = placed.last if intent.leaf is UNSET and placed.last is not None else intent.leaf
    if isinstance(leaf, UnsetType):
        leaf_key, leaf_id = before or (None, None)
        return epoch, placed, leaf_key, leaf_id
    if leaf is None:
        return epoch, placed, None, None
    if placed.rows and placed.rows[-1].node_id == leaf:
        return epoch, placed, placed.rows[-1].node_key, leaf
    live = [row for row in stored.values() if row.mark == LIVE]
    keys = {row.node_id: row.node_key for row in (*live, *placed.revived, *placed.rows)}
    return epoch, placed, graph.require_leaf(_leaf_field(intent.replaces_graph), leaf, keys, stored), leaf


def body_before(head: RevisionRow | None) -> TurnBody:
    """Return the body of the head that a commit follows."""
    return TurnBody() if head is None else body_of(head)


def _next_body(intent: CommitIntent, before: TurnBody, enqueued: tuple[str, ...], tombstoned: int) -> TurnBody:
    """Return the head's body with the changes of the commit. Fields that it leaves out stay."""
    keeps_frames = intent.frames_ref is None
    return TurnBody(
        manifest=before.manifest if intent.manifest is None else intent.manifest,
        config_ref=intent.config_ref or before.config_ref,
        frames_ref=before.frames_ref if keeps_frames else intent.frames_ref,
        frame_state_refs=before.frame_state_refs if keeps_frames else intent.frame_state_refs,
        current_frame_id=intent.current_frame_id or before.current_frame_id,
        usage=tuple([ledgers.Spent(one.source, one.model, *ledgers.counts_of(one)) for one in intent.usage]),
        spent=ledgers.total(before.spent, intent.usage),
        enqueued=enqueued,
        started=tuple([start.id for start in intent.starts]),
        tombstoned=tombstoned,
    )


def predecessors(intent: CommitIntent, facts: CommitFacts, before: TurnBody) -> dict[str, str]:
    """Map each large new content to the head's content in its place, from which it probably differs little."""
    bodies = intent.contents.bodies
    large = {ref for ref, data in bodies.items() if deltas.is_large(data) and ref not in facts.hashes}
    if not large:
        return {}
    kept = {} if before.manifest is None else before.manifest.refs
    sent = {} if intent.manifest is None else intent.manifest.refs
    found: dict[str, str] = {}
    for name, ref in sent.items():
        if ref in large and name in kept:
            found[ref] = kept[name]
    if intent.config_ref in large and before.config_ref is not None:
        found[intent.config_ref] = before.config_ref
    frames = zip(intent.frame_state_refs, before.frame_state_refs, strict=False)
    return found | {ref: earlier for ref, earlier in frames if ref in large}


def body_refs(body: TurnBody) -> tuple[str, ...]:
    """Return every ref that a revision needs, each once."""
    refs = [*(body.manifest.refs.values() if body.manifest else ()), *body.frame_state_refs]
    refs += [ref for ref in (body.config_ref, body.frames_ref) if ref is not None]
    return tuple(dict.fromkeys(refs))


def encode_refs(body: TurnBody) -> bytes:
    """Return the refs that a revision needs, as garbage collection reads them."""
    return msgspec.json.encode(sorted(body_refs(body)))
