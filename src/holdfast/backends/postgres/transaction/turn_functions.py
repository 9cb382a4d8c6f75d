"""Calls the server functions that commit turns and append events: each judges and writes in one trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from holdfast import rows as r
from holdfast.asks import UNTIMED, EventAsk, Head, TurnAsk, TurnPlan
from holdfast.backends.postgres.transaction.base import columns_of, fetched
from holdfast.backends.postgres.transaction.graph import places_of
from holdfast.ports.verdicts import EventVerdict, TurnVerdict

USAGE_COLUMNS: Final = len(r.UsageRow.__struct_fields__)
SESSION_COLUMNS: Final = len(r.SessionRow.__struct_fields__)
PROCESS_COLUMNS: Final = len(r.ProcessRow.__struct_fields__)

NOTHING: Final = (None,)


class TurnFunctions:
    """The turns and events of `ports.Shortcuts`. A class that inherits from it says how a function is called."""

    __slots__ = ()

    @property
    def given_ms(self) -> int | None:
        """The time of a test's clock; None lets the function read the server's, after its locks."""
        raise NotImplementedError

    async def _call(self, name: str, *bindings: Any) -> Sequence[Sequence[Any]]:
        """Run a statement that calls a function, and return its rows."""
        raise NotImplementedError

    def _found(self, row: Head | r.ProcessRow) -> None:
        """Take note of a row that others wrote."""

    def _wrote(self, row: Head | r.ProcessRow) -> None:
        """Take note of a row as this call has written it."""

    LOOKS_LOCK: ClassVar = True
    """Whether a look at a head holds the session."""

    async def commit_turn(self, ask: TurnAsk) -> TurnVerdict | None:
        plan = ask.plan
        if plan is None:
            found = await self._call("show_head", ask.session_id, ask.turn_id, self.LOOKS_LOCK, ask.draws_key)
        else:
            found = await self._call("commit_turn", *turn_bindings(plan, ask.head, self.given_ms, is_new=ask.is_new))
        [(verdict, detail, now_ms, *columns)] = found
        if verdict == "committed":
            assert plan is not None, "only a plan is committed"
            session = msgspec.structs.replace(plan.session, changed_at_ms=now_ms)
            self._wrote(Head(session, msgspec.structs.replace(plan.revision, committed_at_ms=now_ms)))
            return TurnVerdict(verdict, now_ms=now_ms)
        if verdict not in {"moved", "replayed"}:
            return TurnVerdict(verdict, detail or "", session_key=columns[0] or 0)
        session = fetched(r.SessionRow, columns[:SESSION_COLUMNS])
        shown = columns[SESSION_COLUMNS:]
        revision = None if shown[0] is None else fetched(r.RevisionRow, shown)
        if verdict == "replayed":
            return TurnVerdict(verdict, head=Head(session, None), turn=revision)
        head = Head(session, revision)
        self._found(head)
        return TurnVerdict(verdict, head=head)

    async def append_event(self, ask: EventAsk) -> EventVerdict | None:
        [found] = await self._call("append_event", *event_bindings(ask, self.given_ms))
        verdict, now_ms, sequence, batch_id, is_enqueued, *columns = found
        process = None if columns[0] is None else fetched(r.ProcessRow, columns[:PROCESS_COLUMNS])
        event = None
        if verdict == "replayed":
            event = fetched(r.EventRow, (ask.event.process_id, *columns[PROCESS_COLUMNS:]))
        if verdict == "appended":
            after = process or msgspec.structs.replace(ask.process, event_count=sequence, updated_at_ms=now_ms)
            self._wrote(after)
        elif process is not None:
            self._found(process)
        return EventVerdict(
            verdict, now_ms or 0, sequence or 0, batch_id, bool(is_enqueued), process, event, status=columns[2]
        )


def turn_bindings(plan: TurnPlan, head: Head | None, given_ms: int | None, *, is_new: bool = False) -> list[Any]:
    """The arguments of `commit_turn`. What a turn has nothing of is NULL, which costs least.

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
        plan.rests_on or None,
        *(places_of(plan.segments) if plan.segments else NOTHING * 3),
        *_nodes_of(plan.nodes),
        *_blobs_of(plan.blobs),
        *(columns_of(plan.usage, USAGE_COLUMNS) if plan.usage else NOTHING * USAGE_COLUMNS),
        *_drafts_of(plan),
    ]


def _head_of(head: Head | None) -> Sequence[Any]:
    """What shows that a stored head is this one: where it ends, and all that it carries over to the next."""
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
    """New nodes: whatever all of them share, the turn has said already."""
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
    """New contents and the key frames of their deltas, in the order of their keys.

    So two sessions of a family that store the same contents do not deadlock.
    """
    if not found:
        return NOTHING * 6
    rows = sorted(found, key=_hash_of)
    return (
        [row.hash for row in rows],
        [row.encoding for row in rows],
        [row.size for row in rows],
        [row.body for row in rows],
        [row.base_hash for row in rows],
        sorted({row.base_hash for row in rows if row.base_hash is not None}) or None,
    )


def _hash_of(row: r.BlobRow) -> str:
    return row.hash


def _drafts_of(plan: TurnPlan) -> Sequence[Any]:
    rows = plan.enqueues
    if not rows:
        return NOTHING * 9
    return (
        plan.targets,
        [row.batch_id for row in rows],
        [row.source_key for row in rows],
        [row.draft_hash for row in rows],
        [row.delivery for row in rows],
        [row.slot for row in rows],
        [row.merge_key for row in rows],
        [row.available_at_ms for row in rows],
        [row.payloads for row in rows],
    )


def event_bindings(ask: EventAsk, given_ms: int | None) -> list[Any]:
    """The arguments of `append_event`."""
    event, process, batch = ask.event, ask.process, ask.batch
    return [
        event.process_id,
        given_ms,
        process.registration_hash,
        event.sequence - 1,
        process.wake_session_id,
        process.wake_frame_id,
        ask.after_terminal,
        *(NOTHING * 2 if ask.lease is None else (ask.lease.token_hash, ask.lease.fence)),
        event.type,
        event.payload_hash,
        event.replay_key,
        event.terminal_state,
        event.wake,
        event.payload,
        ask.outcome,
        ask.target_session_id,
        *(
            NOTHING * 8
            if batch is None
            else (
                batch.batch_id,
                batch.source_key,
                batch.draft_hash,
                batch.delivery,
                batch.slot,
                batch.merge_key,
                batch.available_at_ms,
                batch.payloads,
            )
        ),
    ]
