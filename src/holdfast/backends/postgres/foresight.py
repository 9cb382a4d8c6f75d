"""An operation decides on what is remembered, and the statement that writes proves that it still stands.

The operation runs as it would in a transaction, but reads what this process saw last, looks once at what it never saw,
and hopes that new names are free. Its one write is a statement that holds all of that as guards. If they fail, nothing
was written: the operation runs again, in a transaction, and what it says then is the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import msgspec

from holdfast import rows as r
from holdfast.backends.postgres.link import Link
from holdfast.backends.postgres.remembered import Head, Remembered
from holdfast.backends.postgres.transaction import PostgresTransaction
from holdfast.backends.postgres.transaction.base import fetched
from holdfast.backends.postgres.transaction.server_functions import NEEDS_A_SESSION, ServerFunctions
from holdfast.backends.postgres.translation import DriverFailure, Trouble, state_of, trouble_of
from holdfast.backends.postgres.turning import Now, Turn, statement_of
from holdfast.ports.verdicts import LeaseVerdict, WorkVerdict

OUT_OF_RANGE = "22003"
"""The SQLSTATE of a counter that would not fit: the rule says so better."""


class Unforeseen(Exception):
    """Things are not as they were remembered, or were never seen: the operation needs a transaction."""


def missing(asked: object, name: str) -> Exception:
    """Why something has no such attribute: a transaction has it, or nobody does."""
    if hasattr(PostgresTransaction, name) and not name.startswith("_"):
        return Unforeseen(name)
    return AttributeError(f"{type(asked).__name__!r} has no attribute {name!r}, and neither has a transaction")


class ClockNeeded(Exception):
    """What the operation writes says the time in its own words, so that the time must be known before."""


class Foresight(ServerFunctions):
    """What an operation of one step may read and write; anything else needs a transaction."""

    again = False

    tells_the_truth = False
    """Whether what the rule refuses is refused, because nothing was only remembered or hoped for."""

    def __init__(self, link: Link, remembered: Remembered, *, test_ms: int | None, server_ms: int | None) -> None:
        self._link = link
        self._remembered = remembered
        self._given_ms = server_ms if test_ms is None else test_ms
        self._now_ms = Now(remembered.estimate_ms()) if self._given_ms is None else self._given_ms
        self._heads: dict[int, Head] = {}
        self._hoped_nodes: list[str] = []
        self._leaf_key: int | None = None
        self._held: tuple[r.BatchRow, ...] = ()
        self._lease: r.LeaseRow | None = None
        self._query: r.CommitQuery | None = None
        self._learned: list[Callable[[], None]] = []
        self._claimed: tuple[int, str] | None = None
        self.proving = False
        self.done = False
        self.topics: list[str] = []

    def __getattr__(self, name: str) -> NoReturn:
        raise missing(self, name)

    @property
    def now_ms(self) -> int:
        """The reading of the clock, or before the statement an estimate of it."""
        return self._now_ms

    @property
    def given_ms(self) -> int | None:
        """The time that the statement is told; None lets it read the server's clock, after its locks."""
        return self._given_ms

    @property
    def found_session(self) -> bool:
        """Whether a session was found, remembered or not."""
        return bool(self._heads)

    def notify(self, topic: str) -> None:
        """Wake those who wait on a topic, once and after the statement is durable."""
        self.topics.append(topic)

    async def _prove(self, name: str, *bindings: Any) -> list[Any]:
        """Run the writing statement. No row says that nothing was written."""
        self.proving = True
        try:
            found = await self._link.write_at_once(name, *bindings)
        except DriverFailure as failure:
            if trouble_of(failure.cause) is Trouble.RACE or state_of(failure.cause) == OUT_OF_RANGE:
                self.proving = False
                raise Unforeseen(name) from failure.cause
            raise
        if not found:
            self.proving = False
            raise Unforeseen(name)
        self.done = True
        return found

    async def take_back(self) -> None:
        """Give back what was claimed and is durable, when the claim cannot be handed out: its batches are damaged."""
        if self.done and self._claimed is not None:
            await self._link.run("give_back_at_once", *self._claimed)

    def learn(self) -> None:
        """Remember what was written, now that it is durable: a hint that is wrong could fit by chance one day."""
        for learn in self._learned:
            learn()

    def _learn_clock(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._learned.append(partial(self._remembered.learn_clock, now_ms))

    # What is remembered, or looked at once.

    async def find_session(self, session_id: str, *, presence: bool = False) -> r.SessionRow | None:
        return self._met(self._remembered.sessions.get(session_id) or await self._glance(session_id))

    def _met(self, head: Head) -> r.SessionRow:
        """Count on this head. Raises if two sessions have one key: then one of them was lost in a failover."""
        session = head.session
        other = self._heads.setdefault(session.session_key, head).session
        if other.session_id != session.session_id:
            for session_id in (session.session_id, other.session_id):
                self._remembered.sessions.drop(session_id)
            raise Unforeseen("two sessions with one key")
        self._heads[session.session_key] = head
        return session

    async def _glance(self, session_id: str) -> Head:
        found = await self._link.all("glance_session", session_id)
        if not found:
            raise Unforeseen("a new session")
        sessions, heads, now_ms = found[0]
        if self.given_ms is None:
            self._now_ms = Now(now_ms)
        head = Head(fetched(r.SessionRow, sessions[0]), fetched(r.RevisionRow, heads[0]) if heads else None)
        self._remembered.learn_head(head.session, head.revision)
        return head

    async def find_process(self, process_id: str) -> r.ProcessRow | None:
        known = self._remembered.processes.get(process_id)
        if known is None:
            found = await self._link.all("find_process", process_id)
            if not found:
                raise Unforeseen("a process that does not exist")
            known = fetched(r.ProcessRow, found[0])
            self._remembered.learn_process(known)
        return known

    async def find_lease(self, kind: str, resource: str) -> r.LeaseRow | None:
        known = self._remembered.leases.get((kind, resource))
        if known is None:
            raise Unforeseen("a lease that was not seen")
        self._lease = known
        return known

    async def find_replay(self, process_id: str, replay_key: str) -> r.EventRow | None:
        return None

    async def find_sources(self, pairs: Sequence[tuple[int, str]]) -> list[r.BatchRow]:
        if self.given_ms is None:
            # Only a wake asks, and the work that will carry it says when it was made.
            raise ClockNeeded
        return []

    async def read_ledger(self, session_key: int) -> list[r.UsageRow]:
        """Nothing: the statement adds to what there is, and fails if the sum does not fit."""
        return []

    async def load_commit_facts(self, query: r.CommitQuery) -> r.CommitFacts:
        head = self._heads[query.session.session_key]
        self._query = query
        nodes = await self.find_nodes(query.segments, query.node_ids)
        known = {row.node_id for row in nodes}
        self._hoped_nodes = [node_id for node_id in query.node_ids if node_id not in known]
        self._held = tuple(row for claim_id in query.claim_ids for row in self._claim(query.session, claim_id))
        lease = await self.find_lease("session", str(query.session.session_key)) if query.with_lease else None
        return r.CommitFacts(
            head=head.revision,
            nodes=tuple(nodes),
            hashes=refs_of(head),
            batches=self._held,
            attachment_ids=frozenset(query.attachment_ids),
            lease=lease,
        )

    async def find_nodes(self, segments: Sequence[r.Segment], node_ids: Sequence[str]) -> list[r.NodeRow]:
        """The head's leaf, if it is asked for: the statement proves that it can be read."""
        leaf = _leaf_of(self._heads[segments[0].session_key])
        if leaf is None or leaf.node_id not in node_ids:
            return []
        self._leaf_key = leaf.node_key
        return [leaf]

    async def load_blobs(self, family: int, hashes: Sequence[str]) -> list[r.BlobRow]:
        """A look at contents that nobody kept: they never change, and the statement proves that they are there."""
        return [fetched(r.BlobRow, values) for values in await self._link.all("load_blobs", family, list(hashes))]

    async def hold_key_frames(self, family: int, hashes: Sequence[str]) -> frozenset[str]:
        """All of them: the statement holds those that it writes deltas on."""
        return frozenset(hashes)

    def _claim(self, session: r.SessionRow, claim_id: str) -> tuple[r.BatchRow, ...]:
        rows = self._remembered.claims.get((session.session_key, claim_id))
        if rows is None:
            raise Unforeseen("a claim that was not seen")
        return rows

    # What is written, with its guards.

    async def apply_commit(self, plan: r.CommitPlan, now_ms: int) -> None:
        session, query = plan.session, self._query
        assert query is not None, "facts are loaded before they are decided on"
        before = self._heads[session.session_key]
        if self._leaf_key is not None and not plan.nodes:
            raise Unforeseen("a stored leaf that may be hidden")
        turn = Turn(
            plan,
            before,
            query.segments,
            self._hoped_nodes,
            self._leaf_key,
            self._held,
            self._lease if query.with_lease else None,
            {key: head.session.session_id for key, head in self._heads.items()},
        )
        try:
            found = await self._prove(*statement_of(turn, self.given_ms))
        except Unforeseen:
            self._remembered.sessions.drop(session.session_id)
            raise
        self._learn_clock(found[0][0])
        for row in self._held:
            self._remembered.claims.drop((row.session_key, row.claim_id or ""))
        moved = msgspec.structs.replace(session, changed_at_ms=self._now_ms)
        head = msgspec.structs.replace(plan.revision, committed_at_ms=self._now_ms)
        self._learned.append(partial(self._remembered.learn_head, moved, head))

    async def apply_event(self, write: r.EventWrite) -> r.EventWrite:
        event, process, batch = write.event, write.process, write.batch
        if event.wake is not None and self.given_ms is None:
            raise ClockNeeded
        before = await self.find_process(process.process_id)
        assert before is not None, "a process is found before it is decided on"
        lease = self._lease
        try:
            found = await self._prove(
                _append_with(lease is not None, event.terminal_state is not None, batch is not None),
                process.process_id,
                self.given_ms,
                before.status,
                before.registration_hash,
                before.wake_session_id,
                before.wake_frame_id,
                before.event_count if event.wake is not None else None,
                *(() if lease is None else (lease.token_hash, lease.fence)),
                event.type,
                event.payload_hash,
                event.replay_key,
                event.terminal_state,
                event.wake,
                event.payload,
                process.outcome if event.terminal_state is not None else None,
                *_draft_of(batch),
                *(() if batch is None else (self._heads[batch.session_key].session.session_id,)),
            )
        except Unforeseen:
            self._remembered.processes.drop(process.process_id)
            if batch is not None:
                self._forget_session(batch.session_key)
            raise
        *columns, enqueue_seq = found[0] if batch is not None else (*found[0], None)
        after = fetched(r.ProcessRow, columns)
        self._learn_clock(after.updated_at_ms)
        self._learned.append(partial(self._remembered.learn_process, after))
        if event.terminal_state is not None:
            self._remembered.leases.drop(("process", process.process_id))
        return r.EventWrite(
            msgspec.structs.replace(event, sequence=after.event_count, occurred_at_ms=after.updated_at_ms),
            after,
            None if batch is None else msgspec.structs.replace(batch, enqueue_seq=enqueue_seq),
        )

    def _forget_session(self, session_key: int) -> None:
        head = self._heads.get(session_key)
        if head is not None:
            self._remembered.sessions.drop(head.session.session_id)

    # Decided by server functions.

    async def _call(self, name: str, *bindings: Any) -> Sequence[Sequence[Any]]:
        found = await self._prove(name, *bindings)
        if found[0][0] == NEEDS_A_SESSION and name != "claim_work":
            self.proving = self.done = False
            raise Unforeseen("a new session")
        return found

    def _learn(self, answer: WorkVerdict | LeaseVerdict) -> None:
        if isinstance(answer, LeaseVerdict):
            if answer.row is not None and answer.row.token_hash is not None:
                self._learned.append(partial(self._remembered.learn_lease, answer.row))
                if answer.verdict == "taken":
                    self._learn_clock(answer.row.claimed_at_ms)
            return
        first = answer.rows[0]
        if answer.verdict == "claimed":
            self._claimed = (first.session_key, first.claim_token_hash or "")
            self._learn_clock(first.claimed_at_ms or 0)
            self._learned.append(partial(self._remembered.learn_claim, list(answer.rows)))
        elif answer.verdict == "enqueued":
            self._learn_clock(first.enqueued_at_ms)


def _append_with(lease: bool, terminal: bool, wake: bool) -> str:
    """The name of the statement with the parts that an event needs."""
    return "append_at_once+" + "lease+" * lease + "terminal+" * terminal + "wake+" * wake


def _draft_of(batch: r.BatchRow | None) -> Sequence[Any]:
    """The batch of a wake, its family and session first."""
    if batch is None:
        return ()
    return (
        batch.family,
        batch.session_key,
        batch.batch_id,
        batch.source_key,
        batch.draft_hash,
        batch.delivery,
        batch.slot,
        batch.merge_key,
        batch.available_at_ms,
        batch.payloads,
    )


def _leaf_of(head: Head) -> r.NodeRow | None:
    """The head's leaf, known well enough to be a parent or a leaf. Its content is not, so that it equals no node."""
    revision = head.revision
    if revision is None or revision.leaf_key is None or revision.leaf_id is None:
        return None
    return r.NodeRow(
        node_key=revision.leaf_key,
        session_key=revision.leaf_key >> r.POSITION_BITS,
        epoch=revision.epoch,
        node_id=revision.leaf_id,
        parent_key=None,
        kind="",
        frame_id=None,
        caused_by=None,
        created_at_ms=0,
        payload=b"null",
        mark=r.LIVE,
        revision=None,
    )


def refs_of(head: Head) -> frozenset[str]:
    """The contents that are certainly stored, because the head needs them."""
    if head.revision is None:
        return frozenset()
    try:
        return frozenset(msgspec.json.decode(head.revision.refs, type=list[str]))
    except msgspec.DecodeError as error:
        raise Unforeseen("refs that do not decode") from error


# Built now, by one thread: msgspec shows other threads what it has half built when it first meets a type.
msgspec.json.Decoder(list[str])
