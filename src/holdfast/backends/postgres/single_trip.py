"""Run an operation without a transaction: it calls one server function, which checks what the operation decided on.

The operation plans on cached rows, or reads a row once that is not cached. Its one write is a call of a function that
checks all of that as guards and returns a verdict. An operation that needs anything else runs again, in a
transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn

import msgspec

from holdfast import rows as r
from holdfast.backends.postgres.connection import Distribution, LateRunner, StatementRunner
from holdfast.backends.postgres.driver_errors import DriverFailure, FailureKind, failure_kind, state_of
from holdfast.backends.postgres.row_cache import RowCache
from holdfast.backends.postgres.shared_trips import BUSY, MOST_BYTES, SharedTrips
from holdfast.backends.postgres.thread_offload import LoopCall
from holdfast.backends.postgres.transaction import PostgresTransaction
from holdfast.backends.postgres.transaction.base import fits, unpacked_bytes
from holdfast.backends.postgres.transaction.function_calls import NEEDS_A_SESSION, SharedCall
from holdfast.backends.postgres.transaction.run_functions import RunFunctions
from holdfast.backends.postgres.transaction.turn_functions import TurnFunctions, fits_one_call
from holdfast.errors import DurabilityUncertain, HoldfastError
from holdfast.ports.fast_path_params import (
    ClaimNextParams,
    ClaimProof,
    ClaimRunParams,
    EventParams,
    Head,
    NodesParams,
    TurnParams,
)
from holdfast.ports.verdicts import EventVerdict, LeaseVerdict, QueueVerdict, SettlementVerdict, TurnVerdict
from holdfast.table_catalog import fetched

OUT_OF_RANGE = "22003"
"""SQLSTATE of a counter that would overflow. The rule has the better error."""

MAKES_SESSIONS = frozenset(
    {"claim_batches", "settle_claim", "settle_and_claim", "show_head", "commit_turn", "add_nodes"}
)
"""Functions whose verdict on an absent session is an answer. The others need a transaction that creates it."""


class NeedsTransaction(Exception):
    """The operation needs more than one function call: it runs again, in a transaction."""


def missing(asked: object, name: str) -> Exception:
    """Return the error for a missing attribute: NeedsTransaction if a transaction has it, else AttributeError."""
    if hasattr(PostgresTransaction, name) and not name.startswith("_"):
        return NeedsTransaction(name)
    return AttributeError(f"{type(asked).__name__!r} has no attribute {name!r}, and neither has a transaction")


class SingleTrip(RunFunctions, TurnFunctions):
    """The server functions, and the rows that an operation may plan on. Anything else raises NeedsTransaction."""

    is_retry = False

    lock_wait = 1

    READS_LOCK = False

    def __init__(
        self, runner: LateRunner, cache: RowCache, *, test_ms: int | None, shared: SharedTrips | None = None
    ) -> None:
        self._runner: StatementRunner = runner
        self._late_runner = runner
        self._cache = cache
        self._shared = shared
        self._given_ms = test_ms
        self._now_ms = cache.estimate_ms() if test_ms is None else test_ms
        self._learned: list[Callable[[], None]] = []
        self._claimed: tuple[int, str] | None = None
        self.calling = False
        self.answered = False
        self.topics: list[str] = []

    def __getattr__(self, name: str) -> NoReturn:
        raise missing(self, name)

    @property
    def now_ms(self) -> int:
        """The function's reading of the clock, or before the call an estimate of it."""
        return self._now_ms

    @property
    def given_ms(self) -> int | None:
        return self._given_ms

    def notify(self, topic: str) -> None:
        """Wake the waiters on a topic, once and after the call is durable."""
        self.topics.append(topic)

    async def _call(self, name: str, *bindings: Any) -> Sequence[Sequence[Any]]:
        """Call a function. Afterwards, the operation's result rests on a verdict."""
        await self._late_runner.connect()
        self.calling = name != "show_head"
        try:
            found = await self._runner.call_function(name, *bindings)
        except DriverFailure as failure:
            if failure_kind(failure.cause) is FailureKind.RACE or state_of(failure.cause) == OUT_OF_RANGE:
                self.calling = False
                raise NeedsTransaction(name) from failure.cause
            raise
        if found[0][0] == NEEDS_A_SESSION and name not in MAKES_SESSIONS:
            self.calling = False
            raise NeedsTransaction("a new session")
        self.answered = True
        return found

    async def _call_shared(self, call: SharedCall) -> Sequence[Any]:
        shared = self._shared
        row: Sequence[Any] | None = None
        if shared is not None and call.size <= MOST_BYTES and not self._runner.heavy:
            waits = call.waits or shared.is_contended(call)
            if not waits:
                if shared.lets_alone:
                    row = await shared.alone(call, partial(self._call_alone, call))
                else:
                    row = await self._share(partial(shared.call, call, self._begin))
            if waits or (row is None and call.locks_any):
                row = await self._share(partial(shared.wait, call, self._begin))
        row = await super()._call_shared(call) if row is None else row
        if shared is not None:
            shared.note(call, row)
        return row

    async def _call_alone(self, call: SharedCall) -> Sequence[Any] | None:
        """Make a call that others with its key wait for. Return None if it would wait for one of several rows."""
        if not call.locks_any:
            return await super()._call_shared(call)
        [row] = await self._call(call.name, *call.together)
        self.calling = self.answered = row[0] != BUSY
        return row if self.answered else None

    async def _share(self, work: Callable[[], Awaitable[Sequence[Any] | None]]) -> Sequence[Any] | None:
        """Return the row of a call that shared a trip, or None: it was not applied."""
        try:
            row = await (LoopCall(work) if self._runner.stepping else work())
        except DurabilityUncertain:
            raise
        except HoldfastError as error:
            self._late_runner.failure = error
            raise
        self.calling = self.answered = row is not None
        return row

    def _begin(self) -> None:
        self.calling = True

    async def take_back(self) -> None:
        """Give back a durable claim that cannot be handed out, because its batches are damaged."""
        if self.answered and self._claimed is not None:
            await self._late_runner.connect()
            await self._runner.run("give_back_claim", *self._claimed)

    def learn(self) -> None:
        """Cache the written rows, now that they are durable. Not before: a wrong hint could match by chance one day."""
        for learn in self._learned:
            learn()

    def _learn_clock(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._learned.append(partial(self._cache.learn_clock, now_ms))

    def _learn(self, answer: QueueVerdict | LeaseVerdict) -> None:
        if isinstance(answer, LeaseVerdict):
            if answer.row is not None and answer.verdict == "taken":
                self._learn_clock(answer.row.claimed_at_ms)
            return
        first = answer.rows[0]
        if answer.verdict == "claimed":
            self._claimed = (first.session_key, first.claim_token_hash or "")
            self._learn_clock(first.claimed_at_ms or 0)
        elif answer.verdict == "enqueued":
            self._learn_clock(first.enqueued_at_ms)

    async def commit_turn(self, params: TurnParams) -> TurnVerdict | None:
        """Commit a turn or read its head, in one call."""
        if params.plan is not None and not fits_one_call(params.plan):
            raise NeedsTransaction("a turn that exceeds one call")
        return await super().commit_turn(params)

    # Rows to plan on.

    def hinted_head(self, session_id: str) -> Head | None:
        return self._cache.sessions.get(session_id)

    async def known_head(self, session_id: str) -> Head | None:
        known = self.hinted_head(session_id)
        if known is not None:
            return known
        answer = await self.commit_turn(TurnParams(session_id, None))
        return None if answer is None else answer.head

    async def add_nodes(self, params: NodesParams) -> TurnVerdict | None:
        """Add nodes outside the path, in one call."""
        if not fits(params.rows):
            raise NeedsTransaction("nodes that exceed one call")
        return await super().add_nodes(params)

    async def hinted_process(self, process_id: str) -> r.ProcessRow | None:
        known = self._cache.processes.get(process_id)
        if known is None:
            found = await self._runner.all("find_process+", process_id)
            if not found:
                raise NeedsTransaction("a process that does not exist")
            known = fetched(r.ProcessRow, found[0])
            self._cache.learn_process(known)
        return known

    def _found(self, row: Head | r.ProcessRow) -> None:
        self._cache.learn(row)

    def _wrote(self, row: Head | r.ProcessRow) -> None:
        self._learned.append(partial(self._cache.learn, row))
        self._learn_clock(row.session.changed_at_ms if isinstance(row, Head) else row.updated_at_ms)

    async def load_blobs(self, family: int, hashes: Sequence[str]) -> list[r.BlobRow]:
        """Return contents that are not cached. They never change, and the function checks that they exist."""
        rows = [fetched(r.BlobRow, values) for values in await self._runner.all("load_blobs", family, list(hashes))]
        await self._runner.before_unpacking(unpacked_bytes(rows))
        return rows

    async def hold_key_frames(self, family: int, hashes: Sequence[str]) -> frozenset[str]:
        """Return all of them: the function locks those that it writes deltas on."""
        return frozenset(hashes)


class DelegatedTrip(SingleTrip):
    """A single trip to a cluster: the function runs on the node that has the rows.

    Numbers are drawn on the coordinator before the call, so that they have one order.
    """

    async def known_head(self, session_id: str) -> Head | None:
        return None

    async def commit_turn(self, params: TurnParams) -> TurnVerdict | None:
        answer = await super().commit_turn(msgspec.structs.replace(params, draws_key=False))
        if answer is None or answer.verdict != "absent" or not params.draws_key:
            return answer
        [(session_key,)] = await self._runner.all("draw_session_key")
        return msgspec.structs.replace(answer, session_key=session_key)

    async def enqueue_new(self, session_id: str, row: r.BatchRow) -> QueueVerdict | None:
        if not self._by_family and self._cache.families.get(session_id) is None:
            # A number drawn for a session that must be created first would be lost.
            found = await self._runner.all("find_session+", session_id)
            if not found:
                raise NeedsTransaction("a new session")
            self._cache.families.put(session_id, fetched(r.SessionRow, found[0]).family)
        return await super().enqueue_new(session_id, row)


LOST = frozenset({"absent", "deleted", "lease_lost", "claim_lost"})
"""Verdicts that a call to the wrong family would return: a newer session of that id may be in another family."""


class FamilyTrip(DelegatedTrip):
    """A single trip to a cluster where each family has its node. Operations on several families need a transaction."""

    async def commit_turn(self, params: TurnParams) -> TurnVerdict | None:
        if params.plan is not None and (
            params.is_new or any(target != params.session_id for target in params.plan.targets)
        ):
            raise NeedsTransaction("a name or a session on another node")
        answer = await super().commit_turn(params)
        if answer is None or answer.head is None or answer.head.session.deleted_at_ms is None:
            return answer
        # A newer session of that id belongs to another family.
        self._cache.families.drop(params.session_id)
        return await super().commit_turn(TurnParams(params.session_id, params.turn_id, draws_key=params.draws_key))

    async def append_event(self, params: EventParams, then: ClaimRunParams | None = None) -> EventVerdict | None:
        if params.batch is not None or params.lease is not None or params.event.terminal_state is not None:
            raise NeedsTransaction("a session or a lease on another node")
        if then is not None:
            raise NeedsTransaction("a run on another node")
        return await super().append_event(params)

    async def settle_claim(
        self, proof: ClaimProof, then: ClaimNextParams | None = None
    ) -> tuple[SettlementVerdict, QueueVerdict | None] | None:
        if then is not None:
            raise NeedsTransaction("work on another node")
        return await super().settle_claim(proof)

    async def _lease_family(self, session_id: str | None, process_id: str | None) -> int | None:
        if session_id is None:
            raise NeedsTransaction("a process and its lease on two nodes")
        return await super()._lease_family(session_id, process_id)

    async def _family_of(self, session_id: str) -> int | None:
        known = self._cache.families.get(session_id)
        if known is None:
            known = await super()._family_of(session_id)
            if not known:
                raise NeedsTransaction("a new session")
            self._cache.families.put(session_id, known)
        self._addressed = session_id
        return known

    async def _call(self, name: str, *bindings: Any) -> Sequence[Sequence[Any]]:
        found = await super()._call(name, *bindings)
        if self._addressed is not None and found[0][0] in LOST:
            self._cache.families.drop(self._addressed)
            self.calling = self.answered = False
            raise NeedsTransaction("perhaps a newer session of that id")
        return found

    _addressed: str | None = None


TRIPS: Final[Mapping[Distribution, type[SingleTrip]]] = {
    Distribution.NONE: SingleTrip,
    Distribution.BY_SCHEMA: DelegatedTrip,
    Distribution.BY_FAMILY: FamilyTrip,
}
"""The kind of single trip for each distribution."""
