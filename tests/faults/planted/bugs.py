"""Each bug here is one that somebody could write; the fault that is there for it has to notice it.

A function plants one, given something like `setattr`. This file is run in processes that know nothing of the tests, so
that it imports nothing but Holdfast.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import msgspec

import holdfast
from holdfast.backends.postgres.attempts import Runs
from holdfast.backends.postgres.borrowed import BorrowedPostgres
from holdfast.backends.postgres.link import Link
from holdfast.backends.postgres.looping import LoopThread
from holdfast.backends.postgres.notifier import channel_of, digest
from holdfast.backends.postgres.transaction.base import Base
from holdfast.backends.sqlite import file_locks, link, opening, readers, writer
from holdfast.backends.sqlite.borrowed import BorrowedSqlite
from holdfast.errors import WaitTimeout
from holdfast.operations import events
from holdfast.rules import commits, leases, work
from holdfast.store.context import Context
from holdfast.torture import workers

Set = Callable[[Any, str, Any], None]


def synchronous_normal(put: Set) -> None:
    """A commit does not wait for the disk."""
    right = link.Link.configure

    def configure(self: Any, options: Any) -> None:
        right(self, options)
        self.pragma("synchronous", "normal")

    put(link.Link, "configure", configure)


def acknowledged_before_commit(put: Set) -> None:
    """Whoever called is told before the group is committed."""
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
    """Whoever shares a group is told before it is committed; who is alone in it is told in time."""
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
    """A child of a fork may open what its parent had open."""
    put(opening, "refuse_unsafe", lambda _: None)
    # Without the second locks, too, as where there are none.
    put(file_locks.FileLocks, "hold", classmethod(lambda *_: None))


def main_thread_lends_readers(put: Set) -> None:
    """The thread that signal handlers interrupt takes connections from the pool like any other."""
    put(readers, "in_main_thread", lambda: False)


def loop_completes_a_callers_future(put: Set) -> None:
    """The event loop of a blocking store takes a lock of the caller's to answer."""

    def drive(self: Any, work: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    put(LoopThread, "drive", drive)


def unknown_told_as_not_applied(put: Set) -> None:
    """An error whose outcome nobody knows says that nothing happened."""
    right = holdfast.Unavailable.__init__

    def init(self: Any, message: str, **told: Any) -> None:
        right(self, message, **{**told, "outcome": "not_applied"})

    put(holdfast.Unavailable, "__init__", init)


def head_without_guard(put: Set) -> None:
    """A turn goes on whatever head there is, whichever it expected."""
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
    """A lease holds while anybody's is live."""

    def holds(row: Any, lease: Any, now_ms: int) -> bool:
        return row is not None and row.is_live(now_ms)

    put(leases, "holds", holds)


def lease_without_end(put: Set) -> None:
    """A lease holds until somebody else takes it, however long it is over."""

    def holds(row: Any, lease: Any, now_ms: int) -> bool:
        return row is not None and row.fence == lease.fence and leases.token_matches(lease.token, row.token_hash)

    put(leases, "holds", holds)


def completion_after_end(put: Set) -> None:
    """Work is settled under a claim that is over, as long as nobody took it."""

    right = work.require_claim

    def require_claim(completion: Any, rows: Any, now_ms: int) -> tuple[int, ...]:
        return right(completion, rows, 0)

    put(work, "require_claim", require_claim)


def completion_without_token(put: Set) -> None:
    """Work is settled by its ids, whoever holds it."""

    def require_claim(completion: Any, rows: Any, now_ms: int) -> tuple[int, ...]:
        named = [row for row in rows if row.batch_id in completion.batch_ids and row.settled_state is None]
        if not named:
            raise holdfast.ClaimLost(completion.session_id, completion.claim_id)
        return tuple(row.enqueue_seq for row in named)

    put(work, "require_claim", require_claim)


def wake_lost(put: Set) -> None:
    """A waiter looks first and watches then; what happens between the two it never hears of."""

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
    """Who reads a log does not see its newest event yet, if there are others."""
    right = events.list_page

    async def list_page(tx: Any, filter: Any) -> Any:
        page = await right(tx, filter)
        return page if len(page.items) < 2 or page.next else msgspec.structs.replace(page, items=page.items[:-1])

    put(events, "list_page", list_page)


def cursor_before_processing(put: Set) -> None:
    """A reader says that it has done an event, and does it then."""

    def process_event(session: Any, event: Any) -> None:
        done = holdfast.Node(f"event-{event.sequence}", payload=[event.sequence, event.payload])
        session.commit(holdfast.Commit(config=event.sequence))
        session.commit(holdfast.Commit(graph=holdfast.Append([done], done.id)))

    put(workers, "process_event", process_event)


def failed_connection_returned(put: Set) -> None:
    """A connection goes back to the pool in the transaction that failed."""

    async def recover(self: Any, link: Any, *, in_doubt: bool) -> None:
        await self.connections.release(link.connection)

    put(Runs, "_recover", recover)


def commit_not_awaited(put: Set) -> None:
    """PostgreSQL answers before it has written its log."""
    right = asyncpg.connect

    async def connect(url: str, **settings: Any) -> Any:
        settings["server_settings"] = {**settings.get("server_settings", {}), "synchronous_commit": "off"}
        return await right(url, **settings)

    put(asyncpg, "connect", connect)


def callers_commit_not_awaited(put: Set) -> None:
    """A notification turns off the wait for the disk, and nobody proves that settings stay as they were."""

    async def leave(self: Any, link: Any, topics: list[str], settings: list[str | None]) -> None:
        for topic in topics:
            await link.all("notify", channel_of(self._terms.schema), f":{digest(topic)}")

    put(BorrowedPostgres, "_leave", leave)


def callers_transaction_committed(put: Set) -> None:
    """An operation in a caller's transaction is durable at once, whatever the caller decides later."""
    right = BorrowedSqlite._run

    def run(self: Any, operation: Any) -> Any:
        result = right(self, operation)
        self._link.control("commit")
        self._link.control("begin_write")
        return result

    put(BorrowedSqlite, "_run", run)


def replay_without_standby(put: Set) -> None:
    """A turn that is sent again is rolled back, because it wrote nothing, and so waits for no standby."""
    right = Link.write_at_once

    async def write_at_once(self: Any, name: str, *bindings: Any) -> Any:
        if name not in {"commit_turn", "show_head"}:
            return await right(self, name, *bindings)
        await self.script("BEGIN")
        found = await self.all(name, *bindings)
        await self.script("ROLLBACK")
        return found if found[0][0] == "replayed" else await right(self, name, *bindings)

    put(Link, "write_at_once", write_at_once)


def family_of_a_key_remembered(put: Set) -> None:
    """A process remembers for ever to which family the key of a session belongs."""
    right, known = Base.__init__, {}

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        right(self, *args, **kwargs)
        self._families = known

    put(Base, "__init__", init)
