"""Commit a turn: judged once, written once, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET

from holdfast.errors import HeadConflict, HoldfastError, NodeConflict, SessionDeleted
from holdfast.operations import attachments, key_frames, limits, processes, ready, sessions
from holdfast.operations.positions import stamped
from holdfast.operations.writes import expect_rows
from holdfast.ports import Transaction
from holdfast.ports.fast_path_params import UNTIMED, Head, TurnParams, TurnPlan
from holdfast.records.commits import CommitReceipt, NodesReceipt
from holdfast.rows import BatchRow, CommitFacts, CommitQuery, NodeRow, Run, Segment, SessionRow
from holdfast.rules import commits as rules
from holdfast.rules import graph, heads, tombstones, verdicts
from holdfast.rules import sessions as session_rules

MOST_PLANS = 4
"""Number of plans on a head that keeps moving, before a transaction locks the head."""


async def commit(
    tx: Transaction,
    address: sessions.Address,
    intent: rules.CommitIntent,
    batch_ids: Sequence[str],
    kept: key_frames.KeyFrames,
    inheritance: attachments.Inheritance,
) -> tuple[SessionRow, CommitReceipt | attachments.Wanted]:
    """Accept a turn, or return the receipt of the same turn accepted before.

    If the turn copies attachments of the parent whose bytes are outside the database, write nothing and return those
    attachments: no file is read while a session is locked.
    """
    needs_facts = intent.replaces_graph or bool(intent.starts) or bool(intent.tombstones)
    if tx.judges_turns and not needs_facts:
        decided = await _decide(tx, address, intent, batch_ids, kept)
        if decided is not None:
            return decided
    return await by_rule(tx, address, intent, batch_ids, kept, inheritance)


async def by_rule(
    tx: Transaction,
    address: sessions.Address,
    intent: rules.CommitIntent,
    batch_ids: Sequence[str],
    kept: key_frames.KeyFrames,
    inheritance: attachments.Inheritance,
) -> tuple[SessionRow, CommitReceipt | attachments.Wanted]:
    """Do the same as `commit` without a verdict of the database: the rule judges the turn, from facts."""
    session = await sessions.ensure(tx, address)
    segments = graph.segments_of(session)
    targets = await _find_targets(tx, session, intent)
    facts = await tx.load_commit_facts(_query(session, segments, intent, targets))
    replay = rules.replay(intent, facts.turn)
    if replay is not None:
        return session, await stamped(tx, replay)
    for draft in intent.enqueues:
        if draft.session_id not in targets:
            targets[draft.session_id] = await sessions.newest(tx, draft.session_id, key_only=True)
    further = graph.further_ids(intent.nodes, rules.stored_nodes(facts), graph.leaf_of(facts.head))
    if further:
        facts = msgspec.structs.replace(facts, nodes=(*facts.nodes, *await tx.find_nodes(segments, further)))
    copies: tuple[attachments.Copy, ...] = ()
    if intent.attachments:
        copies = await attachments.find_inherited(tx, session, rules.missing_attachments(intent, facts))
        facts = rules.with_attachments(facts, [copy.row for copy in copies])
    before = rules.body_before(facts.head)
    earlier = rules.predecessors(intent, facts, before)
    if earlier:
        runs = await key_frames.runs_for(tx, kept, session.family, earlier, intent.contents.bodies)
        facts = msgspec.structs.replace(facts, runs=runs)
    alive: set[int] = set()
    if intent.tombstones:
        facts, alive = await _hold_tombstones(tx, session, segments, intent, facts)
    plan = rules.judge(
        intent,
        session,
        facts,
        current=await tx.read_nodes(segments, kind=None, after=None, descending=False, limit=None)
        if intent.replaces_graph
        else (),
        ledger=await tx.read_ledger(session.session_key)
        if intent.usage and facts.ledger is None
        else facts.ledger or (),
        targets=targets,
        batch_ids=batch_ids,
        now_ms=tx.now_ms,
        alive=alive,
        before=before,
    )
    if copies:
        wanted = attachments.wanted(copies, inheritance)
        if wanted is not None:
            return session, wanted
        await attachments.take_over(tx, copies, inheritance)
    await _write(tx, session, intent, plan, facts.batches)
    if plan.blobs:
        key_frames.learn(kept, plan, intent.contents.bodies, earlier, facts.runs)
    receipt = rules.receipt_of(intent.session_id, plan.revision, plan, replayed=False)
    return plan.session, await stamped(tx, receipt)


async def _find_targets(tx: Transaction, session: SessionRow, intent: rules.CommitIntent) -> dict[str, SessionRow]:
    """Return the sessions that the turn enqueues work to, as far as they exist, and its own."""
    targets = {intent.session_id: session}
    for draft in intent.enqueues:
        target = targets.get(draft.session_id) or await tx.find_session(draft.session_id, key_only=True)
        if target is not None:
            targets[draft.session_id] = target
    return targets


async def _write(
    tx: Transaction, session: SessionRow, intent: rules.CommitIntent, plan: TurnPlan, batches: Sequence[BatchRow]
) -> None:
    """Write an accepted turn. A turn without some of the parts takes no step for them."""
    if plan.revived or plan.hidden:
        await _change_marks(tx, session, intent, plan)
    # A database that judges turns judges this one again.
    await tx.apply_commit(rules.with_proofs(plan, intent, session) if tx.judges_turns else plan, tx.now_ms)
    if plan.completed_seqs or plan.enqueues:
        await _update_ready(tx, plan, batches)
    _notify(tx, intent, plan)
    for start in intent.starts:
        await processes.start(tx, start.registered, start.due_at_ms)


async def _decide(
    tx: Transaction,
    address: sessions.Address,
    intent: rules.CommitIntent,
    batch_ids: Sequence[str],
    kept: key_frames.KeyFrames,
) -> tuple[SessionRow, CommitReceipt] | None:
    """Commit a turn by a verdict of the database. Return None if the rule must decide, from facts.

    Plans the turn on the head as last seen. If the head has moved, plans it again on the head that came back, which
    also shows if the turn is refused.
    """
    head, is_new, is_proven = tx.hinted_head(intent.session_id), False, False
    # Work for an absent session creates that session, too, which takes a transaction: a key drawn here would be lost.
    draws_key = all(draft.session_id == intent.session_id for draft in intent.enqueues)
    for _ in range(MOST_PLANS):
        planned = None
        if head is not None:
            try:
                session_rules.admit(head.session, *address)
                planned = await _planned(tx, head, intent, batch_ids, kept)
            except (HeadConflict, SessionDeleted):
                if is_proven:
                    raise
            except HoldfastError:
                return None
        plan = None if planned is None else planned.plan
        answer = await tx.commit_turn(TurnParams(intent.session_id, intent.turn_id, head, plan, is_new, draws_key))
        if answer is None:
            return None
        verdicts.refuse_turn(answer, intent.session_id)
        match answer.verdict:
            case "committed" if planned is not None:
                session, receipt = _committed(tx, intent, planned, kept, answer.now_ms)
                return session, await stamped(tx, receipt)
            case "replayed" if answer.head is not None:
                session_rules.admit(answer.head.session, *address)
                replay = rules.replay(intent, answer.turn)
                return None if replay is None else (answer.head.session, await stamped(tx, replay))
            case "absent" if answer.session_key:
                fresh = session_rules.new_session(intent.session_id, after=None, now_ms=UNTIMED)
                key = answer.session_key
                head, is_new = Head(msgspec.structs.replace(fresh, session_key=key, family=key), None), True
            case "moved":
                head, is_new = answer.head, False
            case _:
                return None
        is_proven = True
    return None  # pragma: no cover - the head moved at each try


class _Planned(msgspec.Struct, frozen=True):
    """A turn that was planned on a head."""

    plan: TurnPlan
    predecessors: Mapping[str, str]
    runs: Mapping[str, Run]


async def _planned(
    tx: Transaction, head: Head, intent: rules.CommitIntent, batch_ids: Sequence[str], kept: key_frames.KeyFrames
) -> _Planned:
    before = rules.body_before(head.revision)
    facts = rules.assume(intent, head, before)
    earlier = rules.predecessors(intent, facts, before)
    if earlier:
        runs = await key_frames.runs_for(tx, kept, head.session.family, earlier, intent.contents.bodies)
        facts = msgspec.structs.replace(facts, runs=runs)
    return _Planned(rules.plan_on(intent, head.session, facts, batch_ids, before), earlier, facts.runs)


def _committed(
    tx: Transaction, intent: rules.CommitIntent, planned: _Planned, kept: key_frames.KeyFrames, now_ms: int
) -> tuple[SessionRow, CommitReceipt]:
    """Return the session and the receipt of a turn that the database committed."""
    plan = planned.plan
    if plan.blobs:
        key_frames.learn(kept, plan, intent.contents.bodies, planned.predecessors, planned.runs)
    _notify(tx, intent, plan)
    session = msgspec.structs.replace(plan.session, changed_at_ms=now_ms)
    return session, rules.receipt_of(intent.session_id, plan.revision, plan, replayed=False)


async def _update_ready(tx: Transaction, plan: TurnPlan, batches: Sequence[BatchRow]) -> None:
    """Update ready rows and slots of the queues that the turn changed, unless the database does that itself."""
    if tx.ready_tables is None:
        return
    if plan.completed_seqs:
        await ready.update(tx, plan.session.session_key, plan.session.family, freed=True)
    for session_key, family in sorted({(row.session_key, row.family) for row in plan.enqueues}):
        await ready.update(tx, session_key, family, freed=False)
    await limits.free(tx, [row for row in batches if row.enqueue_seq in plan.completed_seqs])


def _notify(tx: Transaction, intent: rules.CommitIntent, plan: TurnPlan) -> None:
    for session_id in plan.targets:
        ready.notify(tx, session_id)
    if intent.completes:
        # Settled work may have held others back: an exclusive claim, a batch that waited for the turn's end.
        ready.notify(tx, intent.session_id)


def _query(
    session: SessionRow, segments: Sequence[Segment], intent: rules.CommitIntent, targets: Mapping[str, SessionRow]
) -> CommitQuery:
    """Return the query for the facts that this commit is judged by."""
    return CommitQuery(
        session=session,
        segments=tuple(segments),
        turn_id=intent.turn_id,
        node_ids=intent.node_ids,
        hashes=intent.refs,
        batch_ids=tuple([batch_id for completion in intent.completes for batch_id in completion.batch_ids]),
        sources=tuple(
            [
                (targets[draft.session_id].session_key, draft.source_key)
                for draft in intent.enqueues
                if draft.source_key is not None and draft.session_id in targets
            ]
        ),
        attachment_ids=intent.attachments,
        with_lease=intent.lease is not None,
        with_leaf=not intent.replaces_graph and UNSET in [node.parent for node in intent.nodes],
        with_ledger=bool(intent.usage),
    )


async def _change_marks(tx: Transaction, session: SessionRow, intent: rules.CommitIntent, plan: TurnPlan) -> None:
    """Bring back the nodes that the turn sends again, and hide those that it tombstones."""
    if plan.revived:
        await _revive(tx, session, intent, plan.revived)
    if plan.hidden:
        marked = await tx.mark_nodes(plan.hidden)
        expect_rows(marked, "nodes", plan.hidden[0], expected=len(plan.hidden))


async def _revive(tx: Transaction, session: SessionRow, intent: rules.CommitIntent, rows: Sequence[NodeRow]) -> None:
    """Revive tombstoned nodes that the session may hide. Raises NodeConflict if one was vacuumed meanwhile."""
    places = {node.id: f"graph.nodes[{index}]" for index, node in enumerate(intent.nodes)}
    advice = "only that session can bring it back; leave it out, and give its children a readable parent"
    await _require_own(tx, places, session, rows, advice)
    if await tx.revive_nodes([row.node_key for row in rows]) != len(rows):
        # A vacuum ran between the read and the write.
        raise NodeConflict(session.session_id, rows[0].node_id, vacuumed=True)  # pragma: no cover - a race


async def _require_own(
    tx: Transaction, places: Mapping[str, str], session: SessionRow, rows: Sequence[NodeRow], advice: str
) -> None:
    graph.require_own(places, session, rows, await _living_writers(tx, session, rows), advice)


async def _living_writers(tx: Transaction, session: SessionRow, rows: Sequence[NodeRow]) -> set[int]:
    """Return the living sessions of the family, and lock it, if a node was inherited. Otherwise none are needed."""
    if all(row.session_key == session.session_key for row in rows):
        return set()
    family = await tx.family_sessions(session.family)
    return {row.session_key for row in family if row.deleted_at_ms is None}


async def _hold_tombstones(
    tx: Transaction, session: SessionRow, segments: Sequence[Segment], intent: rules.CommitIntent, facts: CommitFacts
) -> tuple[CommitFacts, set[int]]:
    """Return the facts with marks that stay until the end, and the living sessions that may have written the nodes."""
    alive = await _living_writers(tx, session, tombstones.named(intent.tombstones, facts.nodes))
    if not alive:
        return facts, alive
    # Read behind the family's lock: another fork of a deleted session may have hidden or revived the same nodes.
    node_ids = sorted({row.node_id for row in facts.nodes})
    return msgspec.structs.replace(facts, nodes=tuple(await tx.find_nodes(segments, node_ids))), alive


async def add_nodes(
    tx: Transaction, address: sessions.Address, intents: Sequence[graph.NodeIntent], *, keep: bool
) -> tuple[SessionRow, NodesReceipt]:
    """Add nodes outside the path. Makes no revision and does not move the head.

    `keep`: a stored node with other content stays as it is.
    """
    decided = await _decide_nodes(tx, address, intents)
    if decided is not None:
        return decided
    session = await sessions.ensure(tx, address)
    segments = graph.segments_of(session)
    named = {intent.id for intent in intents} | {intent.parent for intent in intents if isinstance(intent.parent, str)}
    stored = {row.node_id: row for row in await tx.find_nodes(segments, sorted(named))}
    leaf = None
    if graph.follows_head(intents, stored):
        leaf = graph.leaf_of(await sessions.newest_revision(tx, session))
    further = graph.further_ids(intents, stored, leaf)
    if further:
        stored |= {row.node_id: row for row in await tx.find_nodes(segments, further)}
    placed = graph.place_nodes(
        "nodes",
        session,
        intents,
        stored,
        leaf=leaf,
        after=segments[0],
        revision=None,
        now_ms=tx.now_ms,
        keep=keep,
    )
    if placed.rows:
        session = msgspec.structs.replace(
            session, node_count=graph.position_of(placed.rows[-1].node_key), changed_at_ms=tx.now_ms
        )
        expect_rows(await tx.save_session(session), "sessions", session.session_key)
        await tx.insert_nodes(placed.rows)
    added, kept = len(placed.rows), placed.kept
    receipt = NodesReceipt(session.session_id, added, len(intents) - added - kept, kept)
    return session, await stamped(tx, receipt)


async def _decide_nodes(
    tx: Transaction, address: sessions.Address, intents: Sequence[graph.NodeIntent]
) -> tuple[SessionRow, NodesReceipt] | None:
    """Add new nodes by a verdict of the database. Return None if the rule must decide, from facts."""
    head = await tx.known_head(address[0])
    for _ in range(MOST_PLANS):
        if head is None:
            return None
        try:
            session_rules.admit(head.session, *address)
            params = heads.plan_nodes(head, intents)
        except HoldfastError:
            return None
        answer = await tx.add_nodes(params)
        if answer is None or answer.head is None:
            return None
        if answer.verdict == "added":
            receipt = NodesReceipt(address[0], len(params.rows), 0, 0)
            return answer.head.session, await stamped(tx, receipt)
        head = answer.head
    return None  # pragma: no cover - the head moved at each try


async def tombstone(
    tx: Transaction, address: sessions.Address, node_ids: Sequence[str]
) -> tuple[SessionRow | None, int]:
    """Hide nodes that the session added itself, or inherited from a deleted session. Skip unknown ids."""
    session = await sessions.find(tx, address)
    if session is None:
        return None, 0
    found = await tx.find_nodes(graph.segments_of(session), node_ids)
    alive = await _living_writers(tx, session, found)
    tombstones.require_own("node_ids", node_ids, session, found, alive)
    return session, await tx.mark_nodes([row.node_key for row in found])
