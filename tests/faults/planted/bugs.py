"""Plausible bugs, each of which the fault that covers it has to notice.

A function plants one, given something like `setattr`. This file runs in processes that know nothing of the tests, so
it imports only Holdfast.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import msgspec

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.caller_transaction import PostgresCallerTransaction
from holdfast.backends.postgres.connection import StatementRunner
from holdfast.backends.postgres.executor import Executor
from holdfast.backends.postgres.loop_thread import LoopThread
from holdfast.backends.postgres.notifier import channel_of, digest
from holdfast.backends.postgres.transaction.base import Base
from holdfast.backends.sqlite import connection, file_locks, open_transaction, readers, schema_setup, writer
from holdfast.backends.sqlite.caller_transaction import SqliteCallerTransaction
from holdfast.backends.sqlite.writer_jobs import Call, Request
from holdfast.clock import SystemClock
from holdfast.errors import WaitTimeout
from holdfast.open_transaction import OpenTransaction
from holdfast.operations import events
from holdfast.rules import claims, commits, leases
from holdfast.store.context import Context
from holdfast.torture import workers
from holdfast.worker.claim_renewal import ClaimRenewer
from holdfast.worker.running import Runner
from holdfast.worker.step_calls import StepCall
from holdfast.worker.work import Work

Set = Callable[[Any, str, Any], None]


def synchronous_normal(put: Set) -> None:
    """A commit does not wait for the disk."""
    right = connection.StatementRunner.configure

    def configure(self: Any, options: Any) -> None:
        right(self, options)
        self.pragma("synchronous", "normal")

    put(connection.StatementRunner, "configure", configure)


def acknowledged_before_commit(put: Set) -> None:
    """The caller is acknowledged before the group is committed."""
    right_run, right_tell = writer.Writer._run_member, writer.Job.tell

    def run(self: Any, operation: Any) -> Any:
        job = writer.Job(operation, self._deadline_s())
        self._accept(job)
        job.done.acquire()
        return job.answer()

    def run_member(self: Any, job: Any, *, alone: bool) -> None:
        right_run(self, job, alone=alone)
        if job.error is None:
            right_tell(job)

    def tell(self: Any) -> None:
        if self.done.locked():
            right_tell(self)

    put(writer.Writer, "run", run)
    put(writer.Writer, "_run_member", run_member)
    put(writer.Job, "tell", tell)


def group_acknowledged_before_commit(put: Set) -> None:
    """Members of a shared group are acknowledged before it is committed; a lone member is acknowledged in time."""
    right_run, right_tell = writer.Writer._run_member, writer.Job.tell
    early: set[int] = set()

    def run_member(self: Any, job: Any, *, alone: bool) -> None:
        right_run(self, job, alone=alone)
        if not alone and job.error is None:
            early.add(id(job))
            right_tell(job)

    def tell(self: Any) -> None:
        if id(self) in early:
            early.discard(id(self))
        else:
            right_tell(self)

    put(writer.Writer, "_run_member", run_member)
    put(writer.Job, "tell", tell)


def inherited_file_opened(put: Set) -> None:
    """A forked child may open a file that its parent had open."""
    put(schema_setup, "refuse_unsafe", lambda *_: None)
    # Without the second locks, too, as on systems that lack them.
    put(file_locks.FileLocks, "hold", classmethod(lambda *_: None))


def main_thread_lends_readers(put: Set) -> None:
    """The main thread, which signal handlers interrupt, takes connections from the pool like any other thread."""
    put(readers, "in_main_thread", lambda: False)


def loop_completes_a_callers_future(put: Set) -> None:
    """The event loop of a blocking store takes a lock of the caller's to deliver an answer."""

    async def awaited(work: Any) -> Any:
        return await work

    def drive(self: Any, work: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(awaited(work), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    put(LoopThread, "drive", drive)


def unknown_told_as_not_applied(put: Set) -> None:
    """An error with an unknown outcome says that nothing was applied."""
    right = holdfast.Unavailable.__init__

    def init(self: Any, message: str, **reported: Any) -> None:
        right(self, message, **{**reported, "outcome": "not_applied"})

    put(holdfast.Unavailable, "__init__", init)


def head_without_guard(put: Set) -> None:
    """A turn is applied to any head, whichever it expected."""
    right = commits._require_head

    def require_head(intent: Any, *facts: Any) -> None:
        right(msgspec.structs.replace(intent, expected_revision=None), *facts)

    put(commits, "_require_head", require_head)


def fence_at_least(put: Set) -> None:
    """A lease holds while the stored fence is as high as its own, or higher."""

    def holds(row: Any, lease: Any, now_ms: int) -> bool:
        return row is not None and row.is_live(now_ms) and row.fence >= lease.fence

    put(leases, "holds", holds)


def fence_not_compared(put: Set) -> None:
    """A lease holds while any holder's lease is live."""

    def holds(row: Any, lease: Any, now_ms: int) -> bool:
        return row is not None and row.is_live(now_ms)

    put(leases, "holds", holds)


def lease_without_end(put: Set) -> None:
    """A lease holds until another owner takes it, however long ago it expired."""

    def holds(row: Any, lease: Any, now_ms: int) -> bool:
        return row is not None and row.fence == lease.fence and leases.token_matches(lease.token, row.token_hash)

    put(leases, "holds", holds)


def completion_after_end(put: Set) -> None:
    """Work is settled under an expired claim, as long as no other worker took it."""

    right = claims.require_claim

    def require_claim(completion: Any, rows: Any, now_ms: int) -> list[Any]:
        return right(completion, rows, 0)

    put(claims, "require_claim", require_claim)


def completion_without_token(put: Set) -> None:
    """Work is settled by its ids, without proof of the claim."""

    def require_claim(completion: Any, rows: Any, now_ms: int) -> list[Any]:
        named = [row for row in rows if row.batch_id in completion.batch_ids and row.settled_state is None]
        if not named:
            raise holdfast.ClaimLost(completion.session_id, completion.claim_id)
        return named

    put(claims, "require_claim", require_claim)


def wake_lost(put: Set) -> None:
    """A waiter looks first and then watches; it misses a change between the two."""

    async def wait_until(self: Any, topic: str, look: Any, timeout_ms: int, what: str) -> Any:
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            seen, _ = await look()
            if seen is not None:
                return seen
            change = self.backend.watch(topic)
            if not await self.backend.pause(change, max(0, int((deadline - time.monotonic()) * 1000))):
                raise WaitTimeout(what, timeout_ms)

    put(Context, "wait_until", wait_until)


def newest_event_late(put: Set) -> None:
    """A log listing omits its newest event, if there are others."""
    right = events.list_page

    async def list_page(tx: Any, filter: Any) -> Any:
        page = await right(tx, filter)
        return page if len(page.items) < 2 or page.next else msgspec.structs.replace(page, items=page.items[:-1])

    put(events, "list_page", list_page)


def cursor_before_processing(put: Set) -> None:
    """A reader saves its cursor before it processes the event."""

    def process_event(session: Any, event: Any) -> None:
        done = holdfast.Node(f"event-{event.sequence}", payload=[event.sequence, event.payload])
        session.commit(holdfast.Commit(config=event.sequence))
        session.commit(holdfast.Commit(graph=holdfast.Append([done], done.id)))

    put(workers, "process_event", process_event)


def failed_connection_returned(put: Set) -> None:
    """A connection returns to the pool with its failed transaction still open."""

    async def recover(self: Any, runner: Any, *, in_doubt: bool) -> None:
        await self.connections.release(runner.connection)

    put(Executor, "_recover", recover)


def commit_not_awaited(put: Set) -> None:
    """PostgreSQL answers before it has flushed its log."""
    right = asyncpg.connect

    async def connect(url: str, **settings: Any) -> Any:
        settings["server_settings"] = {**settings.get("server_settings", {}), "synchronous_commit": "off"}
        return await right(url, **settings)

    put(asyncpg, "connect", connect)


def callers_commit_not_awaited(put: Set) -> None:
    """A notification turns off the wait for the disk, and the check that settings are unchanged is skipped."""

    async def leave(self: Any, runner: Any, topics: list[str], settings: list[str | None]) -> None:
        for topic in topics:
            await runner.all("notify", channel_of(self._parts.schema), f":{digest(topic)}")

    put(PostgresCallerTransaction, "_leave", leave)


def callers_transaction_committed(put: Set) -> None:
    """An operation in a caller's transaction is durable at once, even if the caller rolls back."""
    right = SqliteCallerTransaction._run

    def run(self: Any, operation: Any) -> Any:
        result = right(self, operation)
        self._runner.control("commit")
        self._runner.control("begin_write")
        return result

    put(SqliteCallerTransaction, "_run", run)


def replay_without_standby(put: Set) -> None:
    """A replayed turn is rolled back, because it wrote nothing, and so waits for no standby."""
    right = StatementRunner.call_function

    async def call_function(self: Any, name: str, *bindings: Any) -> Any:
        if name not in {"commit_turn", "show_head"}:
            return await right(self, name, *bindings)
        await self.script("BEGIN")
        found = await self.all(name, *bindings)
        await self.script("ROLLBACK")
        return found if found[0][0] == "replayed" else await right(self, name, *bindings)

    put(StatementRunner, "call_function", call_function)


def family_of_a_key_remembered(put: Set) -> None:
    """A process caches for ever which family a session key belongs to."""
    right, known = Base.__init__, {}

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        right(self, *args, **kwargs)
        self._families = known

    put(Base, "__init__", init)


def block_committed_call_by_call(put: Set) -> None:
    """Each call of a transaction is committed by itself."""
    right = writer.Writer._run_member

    def run_member(self: Any, job: Any, *, alone: bool) -> None:
        right(self, job, alone=alone)
        if isinstance(job, Call):
            self._runner.control("commit")
            self._runner.control("begin_write")

    put(writer.Writer, "_run_member", run_member)


def block_always_committed(put: Set) -> None:
    """A transaction whose block raised is committed."""
    put(OpenTransaction, "roll_back", OpenTransaction.commit)


def block_acknowledged_before_commit(put: Set) -> None:
    """The end of a block does not wait for its commit."""

    async def commit(self: Any) -> None:
        self._put(Call(Request.COMMIT, open_transaction._nothing, self._waiting.ticket()))

    put(open_transaction.SqliteOpenTransaction, "_commit", commit)


def block_left_open_by_an_interrupt(put: Set) -> None:
    """A transaction does not look whether an interrupt has left its block."""
    put(OpenTransaction, "is_left", lambda _: False)


# Bugs of worker processes. The store of the parent, which judges them, has none.


def settled_by_whichever_claim(put: Set) -> None:
    """A settlement names its batches, and any worker that once had them may settle them, however late."""
    right = claims.require_claim

    def require_claim(completion: Any, rows: Any, now_ms: int) -> list[Any]:
        named = [row for row in rows if row.batch_id in completion.batch_ids and row.settled_state is None]
        return named or right(completion, rows, now_ms)

    put(claims, "require_claim", require_claim)
    # A worker that has noticed its loss does not even try.
    put(ClaimRenewer, "give_up_overdue", lambda self: None)
    put(ClaimRenewer, "_give_up", lambda self, held: None)


def turns_claimed_like_jobs(put: Set) -> None:
    """A turn does not keep other workers out of its session."""
    right = Work.claim

    async def claim(self: Any) -> Any:
        exclusive, self._exclusive = self._exclusive, False
        try:
            return await right(self)
        finally:
            self._exclusive = exclusive

    put(Work, "claim", claim)


def calls_cut_off_by_a_shutdown(put: Set) -> None:
    """A worker that is asked to end does not let its calls finish, nor gives their work back."""

    async def finish(self: Any, grace_s: float, hurrying: asyncio.Event) -> None:
        for task in self.running:
            task.cancel()

    put(Runner, "finish", finish)


def a_failed_attempt_for_each_shutdown(put: Set) -> None:
    """Work that a shutdown interrupts is failed, and not given back."""
    right = Runner.finish

    async def finish(self: Any, grace_s: float, hurrying: asyncio.Event) -> None:
        for task in self.running:
            task.cancel()
        await right(self, grace_s, hurrying)

    put(Runner, "finish", finish)


def clock_of_the_client(put: Set) -> None:
    """The clock of the client decides on PostgreSQL."""
    right = PostgresBackend.__init__

    def init(self: Any, address: Any, connections: Any, options: Any, clock: Any, thread: Any) -> None:
        right(self, address, connections, options, clock or SystemClock(), thread)

    put(PostgresBackend, "__init__", init)


def steps_returned_before_their_record(put: Set) -> None:
    """The result of a step is returned at once, and recorded a moment later."""
    right = StepCall.record
    late: set[asyncio.Task[Any]] = set()

    async def record(self: Any, document: Any, began_s: float) -> Any:
        async def later() -> None:
            await asyncio.sleep(0.05)
            await right(self, document, began_s)

        task = asyncio.create_task(later())
        late.add(task)
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return document

    put(StepCall, "record", record)
