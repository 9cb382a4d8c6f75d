"""Call the server functions that commit turns and append events. Each judges and writes in one trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from holdfast import rows as r
from holdfast.backends.postgres.connection import StatementRunner
from holdfast.backends.postgres.positions import position_text
from holdfast.backends.postgres.transaction.base import columns_of, fits
from holdfast.backends.postgres.transaction.function_calls import FunctionCalls, SharedCall
from holdfast.backends.postgres.transaction.graph import POSITIONS, places_of
from holdfast.backends.postgres.transaction.run_functions import PROCESS_COLUMNS, kinds_of, run_verdict
from holdfast.errors import Corrupt
from holdfast.ports.fast_path_params import (
    UNTIMED,
    ClaimRunParams,
    EventParams,
    Head,
    NodesParams,
    TurnParams,
    TurnPlan,
)
from holdfast.ports.verdicts import EventVerdict, RunVerdict, TurnVerdict
from holdfast.table_catalog import fetched

USAGE_COLUMNS: Final = len(r.UsageRow.__struct_fields__)
SESSION_COLUMNS: Final = len(r.SessionRow.__struct_fields__)
EVENT_COLUMNS: Final = 5 + PROCESS_COLUMNS + len(r.EventRow.__struct_fields__)
"""Columns of the verdict on an event. Those of a claim follow, if one was asked for."""
NEW_COUNTS: Final = slice(4, 6)
"""The revision and the number of nodes, among the columns of a session."""

NOTHING: Final = (None,)

SMALL_BYTES: Final = 1 << 16
SMALL_ROWS: Final = 16
"""A turn up to these sizes fits into one call without a closer check."""


class TurnFunctions(FunctionCalls):
    """The turns and events of `ports.FastPaths`. Subclasses define `_call`."""

    __slots__ = ()

    judges_turns = True

    def _found(self, row: Head | r.ProcessRow) -> None:
        """Note a row that another transaction wrote."""

    def _wrote(self, row: Head | r.ProcessRow) -> None:
        """Note a row as this call has written it."""

    READS_LOCK: ClassVar = True
    """Reading a head locks the session."""

    _runner: StatementRunner
    is_retry: bool

    async def position(self) -> str:
        reached = self._runner.reached
        if reached is None:
            [(_, reached)] = await self._call("position")
        return position_text(self._runner.system, reached)

    async def commit_turn(self, params: TurnParams) -> TurnVerdict | None:
        plan = params.plan
        if plan is None:
            family = await self._family_of(params.session_id)
            [found] = await self._call(
                "show_head", params.session_id, params.turn_id, self.READS_LOCK, params.draws_key, family
            )
        else:
            numbers = await self._numbers_for(len(plan.enqueues))
            bindings = turn_bindings(plan, params.head, self.given_ms, numbers, is_new=params.is_new)
            if params.is_new or plan.targets or plan.claims or plan.attachment_ids:
                # It locks more than its session.
                [found] = await self._call("commit_turn", *bindings, True)
            else:
                key, size = plan.session.session_key, turn_bytes(plan)
                together = (*bindings, False)
                found = await self._call_shared(SharedCall("commit_turn", (*bindings, True), together, key, size))
        verdict, detail, now_ms, *columns, self._runner.reached = found
        if verdict == "committed":
            assert plan is not None, "only a plan is committed"
            session = msgspec.structs.replace(plan.session, changed_at_ms=now_ms)
            self._wrote(Head(session, msgspec.structs.replace(plan.revision, committed_at_ms=now_ms)))
            return TurnVerdict(verdict, now_ms=now_ms)
        if verdict not in {"moved", "replayed"}:
            return TurnVerdict(verdict, detail or "", session_key=columns[0] or 0)
        if verdict == "moved":
            return self._moved(columns)
        session = fetched(r.SessionRow, columns[:SESSION_COLUMNS])
        shown = columns[SESSION_COLUMNS:]
        return TurnVerdict(
            verdict, head=Head(session, None), turn=None if shown[0] is None else fetched(r.RevisionRow, shown)
        )

    async def add_nodes(self, params: NodesParams) -> TurnVerdict | None:
        [found] = await self._call("add_nodes", *nodes_bindings(params, self.given_ms))
        verdict, _, now_ms, *columns, self._runner.reached = found
        if verdict not in {"added", "moved"}:
            return None
        if verdict == "moved":
            return self._moved(columns)
        before = params.head.session
        revision, node_count = columns[NEW_COUNTS]
        session = msgspec.structs.replace(before, revision=revision, node_count=node_count, changed_at_ms=now_ms)
        head = Head(session, params.head.revision)
        if revision == before.revision:
            self._wrote(head)
        return TurnVerdict(verdict, head=head, now_ms=now_ms)

    def _moved(self, columns: Sequence[Any]) -> TurnVerdict:
        """Return a verdict with the head that a function returned instead of writing."""
        revision = columns[SESSION_COLUMNS:]
        found = None if revision[0] is None else fetched(r.RevisionRow, revision)
        head = Head(fetched(r.SessionRow, columns[:SESSION_COLUMNS]), found)
        self._found(head)
        return TurnVerdict("moved", head=head)

    async def append_event(self, params: EventParams, then: ClaimRunParams | None = None) -> EventVerdict | None:
        numbers = await self._numbers_for(0 if params.batch is None else 1)
        name, bindings = "append_event", event_bindings(params, self.given_ms, numbers)
        if then is not None:
            name = "append_and_claim"
            bindings += [then.owner_id, *kinds_of(then.kinds), then.token_hash, then.ttl_ms, self.is_retry]
        if params.target_session_id is None:
            size = len(params.event.payload) + len(params.outcome or b"")
            key, together = params.event.process_id, (*bindings, False)
            found = await self._call_shared(SharedCall(name, (*bindings, True), together, key, size))
        else:
            [found] = await self._call(name, *bindings, True)
        verdict, now_ms, sequence, batch_id, is_enqueued, *columns, self._runner.reached = found[:EVENT_COLUMNS]
        following = self._claimed_run(found[EVENT_COLUMNS:])
        process = None if columns[0] is None else fetched(r.ProcessRow, columns[:PROCESS_COLUMNS])
        event = None
        if verdict == "replayed":
            event = fetched(r.EventRow, (params.event.process_id, *columns[PROCESS_COLUMNS:]))
        if verdict == "appended":
            after = process or msgspec.structs.replace(params.process, event_count=sequence, updated_at_ms=now_ms)
            self._wrote(after)
        elif process is not None:
            self._found(process)
        return EventVerdict(
            verdict, now_ms or 0, sequence or 0, batch_id, bool(is_enqueued), process, event, columns[2], following
        )

    def _claimed_run(self, columns: Sequence[Any]) -> RunVerdict | None:
        """Return the verdict on a claim that followed an event, None if none was asked for or the event was refused."""
        if not columns or columns[0] is None:
            return None
        try:
            answer = run_verdict(columns[0], columns[1:])
        except Corrupt:
            return RunVerdict("busy")  # put off: it is claimed. The event is in the log anyway.
        if answer.process is not None:
            self._wrote(answer.process)
        return answer


def fits_one_call(plan: TurnPlan) -> bool:
    """Return whether one call may carry all rows of a turn."""
    if turn_bytes(plan) <= SMALL_BYTES and len(plan.nodes) <= SMALL_ROWS and not plan.enqueues:
        return True
    return all(map(fits, (plan.nodes, plan.blobs, plan.enqueues)))


def turn_bytes(plan: TurnPlan) -> int:
    """Return the bytes of a turn's contents."""
    nodes = sum([len(row.payload) + len(row.caused_by or b"") for row in plan.nodes])
    return nodes + sum([len(row.body) for row in plan.blobs])


def turn_bindings(
    plan: TurnPlan, head: Head | None, given_ms: int | None, numbers: Sequence[int] | None, *, is_new: bool = False
) -> list[Any]:
    """Return the arguments of `commit_turn` but the last. Parts that a turn does not have are NULL, which is cheapest.

    Without a head, the transaction holds the session that the plan was made for.
    """
    session, revision = plan.session, plan.revision
    return [
        session.session_id,
        given_ms,
        session.family,
        session.session_key,
        is_new,
        *_head_of(head),
        revision.turn_id,
        session.revision,
        session.node_count,
        session.epoch,
        revision.fingerprint,
        revision.leaf_key,
        revision.leaf_id,
        revision.checkpoint_ref,
        revision.refs,
        revision.body,
        *_claims_of(plan),
        *(NOTHING * 2 if plan.lease is None else (plan.lease.token_hash, plan.lease.fence)),
        plan.attachment_ids or None,
        plan.live_node_keys or None,
        *(places_of(plan.segments) if plan.segments else NOTHING * 3),
        *_nodes_of(plan.nodes),
        *_blobs_of(plan.blobs),
        *(columns_of(plan.usage, USAGE_COLUMNS) if plan.usage else NOTHING * USAGE_COLUMNS),
        *_drafts_of(plan),
        numbers,
        [row.limit_key for row in plan.enqueues] or None,
    ]


def nodes_bindings(params: NodesParams, given_ms: int | None) -> list[Any]:
    """Return the arguments of `add_nodes`."""
    session, last = params.head.session, params.head.revision
    follows = (session.revision, None if last is None else last.leaf_id) if params.follows_head else NOTHING * 2
    return [
        session.session_id,
        given_ms,
        session.family,
        session.session_key,
        session.incarnation,
        session.lineage,
        session.epoch,
        *follows,
        session.session_key << r.POSITION_BITS,
        POSITIONS,
        *places_of(params.segments),
        list(params.anchors),
        *_nodes_of(params.rows)[1:],
    ]


def _head_of(head: Head | None) -> Sequence[Any]:
    """Return the columns that identify a stored head: its end, and everything that it passes on to the next."""
    if head is None:
        return NOTHING * 8
    session, last = head.session, head.revision
    return (
        session.incarnation,
        session.lineage,
        session.revision,
        session.node_count,
        session.epoch,
        *(NOTHING * 3 if last is None else (last.leaf_key, last.leaf_id, last.body)),
    )


def _claims_of(plan: TurnPlan) -> Sequence[Any]:
    if not plan.claims:
        return NOTHING * 5
    named = [(proof.claim_id, batch_id) for proof in plan.claims for batch_id in proof.batch_ids]
    return (
        [proof.claim_id for proof in plan.claims],
        [proof.token_hash for proof in plan.claims],
        [proof.fence for proof in plan.claims],
        [claim_id for claim_id, _ in named],
        [batch_id for _, batch_id in named],
    )


def _nodes_of(rows: Sequence[r.NodeRow]) -> Sequence[Any]:
    """Return the columns of new nodes, without those that they share and that the turn has given already."""
    if not rows:
        return NOTHING * 8
    return (
        [row.node_key for row in rows],
        [row.node_id for row in rows],
        [row.parent_key for row in rows],
        [row.kind for row in rows],
        [row.frame_id for row in rows],
        [row.caused_by for row in rows],
        [None if row.created_at_ms == UNTIMED else row.created_at_ms for row in rows],
        [row.payload for row in rows],
    )


def _blobs_of(found: Sequence[r.BlobRow]) -> Sequence[Any]:
    """Return the columns of new contents, and the key frames of their deltas, in the order of their keys.

    The order avoids deadlocks between two sessions of a family that store the same contents.
    """
    if not found:
        return NOTHING * 6
    rows = sorted(found, key=hash_of)
    return (
        [row.hash for row in rows],
        [row.encoding for row in rows],
        [row.size for row in rows],
        [row.body for row in rows],
        [row.base_hash for row in rows],
        sorted({row.base_hash for row in rows if row.base_hash is not None}) or None,
    )


def hash_of(row: r.BlobRow) -> str:
    """Return the key that contents are sorted by."""
    return row.hash


def _drafts_of(plan: TurnPlan) -> Sequence[Any]:
    rows = plan.enqueues
    if not rows:
        return NOTHING * 11
    return (
        plan.targets,
        [row.batch_id for row in rows],
        [row.source_key for row in rows],
        [row.draft_hash for row in rows],
        [row.delivery for row in rows],
        [row.slot for row in rows],
        [row.merge_key for row in rows],
        [row.kind for row in rows],
        [row.priority for row in rows],
        [row.available_at_ms for row in rows],
        [row.payloads for row in rows],
    )


def event_bindings(params: EventParams, given_ms: int | None, numbers: Sequence[int] | None) -> list[Any]:
    """Return the arguments of `append_event` but the last."""
    event, process, batch = params.event, params.process, params.batch
    return [
        event.process_id,
        given_ms,
        process.registration_hash,
        event.sequence - 1,
        process.wake_session_id,
        process.wake_frame_id,
        params.after_terminal,
        *(NOTHING * 2 if params.lease is None else (params.lease.token_hash, params.lease.fence)),
        event.type,
        event.payload_hash,
        event.replay_key,
        event.terminal_state,
        event.wake,
        event.payload,
        params.outcome,
        params.target_session_id,
        *(
            NOTHING * 10
            if batch is None
            else (
                batch.batch_id,
                batch.source_key,
                batch.draft_hash,
                batch.delivery,
                batch.slot,
                batch.merge_key,
                batch.kind,
                batch.priority,
                batch.available_at_ms,
                batch.payloads,
            )
        ),
        None if numbers is None else numbers[0],
    ]
