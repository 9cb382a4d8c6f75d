"""One writes at a time: operations that wait at the same time share one commit, and none hears of success before it.

A thread of the store writes for all who cannot block, and for those who find somebody else writing. Who may block and
finds nobody writes for himself, because two hand-overs between threads cost more than all of a turn's statements.

Each operation of a group is alone in its savepoint, so that one that is refused takes nothing of the others with it.
The first of a group needs none: there is nothing before it that a rollback could harm.

Commits of other processes are noticed here, too. `PRAGMA data_version` of a connection changes when somebody else
commits and not when the connection itself does, so that asking on the writer's connection tells strangers' commits from
our own, for which every topic is known.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import apsw

from holdfast.backends.sqlite.file_locks import FileLocks
from holdfast.backends.sqlite.link import Link, until_free
from holdfast.backends.sqlite.lookout import Lookout
from holdfast.backends.sqlite.transaction import SqliteTransaction
from holdfast.backends.sqlite.translation import translated
from holdfast.clock import read_clock
from holdfast.errors import Corrupt, HoldfastError, Outcome, StoreClosed, Unavailable
from holdfast.ports import Clock, Operation
from holdfast.records.options import SqliteOptions
from holdfast.waiting import Signals, Ticket, in_main_thread, run_to_end, start_thread

T = TypeVar("T")


class Job:
    """An operation, how long it waits for the database, and what became of it: a result, or why it was refused."""

    __slots__ = ("deadline_s", "done", "error", "operation", "result", "ticket", "topics")

    def __init__(self, operation: Operation[Any], deadline_s: float, ticket: Ticket | None = None) -> None:
        self.operation = operation
        self.deadline_s = deadline_s
        self.ticket = ticket
        # A caller that blocks waits for this and not for a future: an interrupt in the wrong moment leaves the lock of
        # a future's condition taken, and whoever tells of the result would wait for ever.
        self.done = threading.Lock()
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None
        self.topics: list[str] = []

    def begin(self) -> bool:
        """Whether anybody still wants it done."""
        return self.ticket is None or self.ticket.close()

    def tell(self) -> None:
        """Let a caller that blocks go on."""
        self.done.release()

    def answer(self) -> Any:
        """The result, once the operation has ended."""
        if self.error is not None:
            raise self.error
        return self.result


class Writer:
    """Runs operations in groups, in the order in which they came."""

    def __init__(
        self,
        link: Link,
        options: SqliteOptions,
        clock: Clock,
        signals: Signals,
        *,
        shared: bool,
        locks: FileLocks | None,
    ) -> None:
        self._link = link
        self._options = options
        self._clock = clock
        self._signals = signals
        self._shared = shared
        self._locks = locks
        self._commits_before = 0
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._serving = False
        self._closed = False
        self._lookout = Lookout(link.connection.filename_wal, signals, self._look_around) if shared else None
        # Held by whoever uses the connection; the thread says beforehand that it wants it, so that nobody who comes
        # again and again keeps it waiting.
        self._connection_free = threading.Lock()
        self._thread_wants_it = False
        self._this_thread = threading.local()
        # A reading from before any watch began can only be too old, and then wakes somebody for nothing: it never
        # hides a change. So no watcher has to wait here for a first reading of its own.
        self._seen_version: int = link.data_version()

    @property
    def is_used_here(self) -> bool:
        """Whether the calling thread is in the middle of a write: it would wait for itself."""
        return getattr(self._this_thread, "uses", False)

    def run(self, operation: Operation[T]) -> T:
        """Run an operation for a caller that may block, and return once its commit is durable."""
        if self.is_used_here:
            raise Unavailable("this thread is in the middle of a write: a signal handler or finalizer must not write")
        job = Job(operation, self._deadline_s())
        if (
            self._thread_wants_it
            or self._signals.watched  # an interrupt must not hit the one who wakes the others
            or not self._jobs.empty()
            or self._connection_free.locked()
        ):
            self._accept(job)
            job.done.acquire()
        else:
            self._run_here(job)
        result: T = job.answer()
        return result

    def _run_here(self, job: Job) -> None:
        self._this_thread.uses = True
        try:
            # If somebody was quicker this waits for his commit. Only `with` lets no interrupt leave the lock taken.
            with self._connection_free:
                if self._closed:
                    raise StoreClosed
                self._run_group(job, most=1)
        except BaseException as error:
            job.error = error
            if _is_interrupt(error):
                # An interrupt may have come between the commit and the news of it.
                self._signals.publish_all()
        finally:
            self._this_thread.uses = False

    def accept(self, operation: Operation[Any], ticket: Ticket) -> None:
        """Accept an operation. Its ticket is answered once the commit is durable, or the operation refused."""
        self._accept(Job(operation, self._deadline_s(), ticket))

    def _accept(self, job: Job) -> None:
        with self._lock:
            self._start()
            self._jobs.put(job)

    def _deadline_s(self) -> float:
        return time.monotonic() + self._options.busy_timeout_ms / 1000

    def look_abroad(self) -> None:
        """Notice commits of other processes for as long as somebody watches."""
        if self._lookout is not None:
            self._lookout.wake()

    def _start(self) -> None:
        if self._closed:
            raise StoreClosed
        if not self._serving:
            thread = threading.Thread(target=self._run, name="holdfast-sqlite-writer", daemon=True)
            self._threads.append(thread)
            start_thread(thread)
            # Only now: after a start that failed or was interrupted the next call starts one. Two would do no harm.
            self._serving = True

    def stop(self) -> list[threading.Thread]:
        """Accept nothing more; the threads end once they have finished what was accepted."""
        lookouts = [] if self._lookout is None else self._lookout.stop()
        with self._lock:
            self._closed = True
            self._jobs.put(None)
            # One that could not be started has no identity, and cannot be waited for.
            return [thread for thread in (*lookouts, *self._threads) if thread.ident is not None]

    def close(self) -> None:
        """Finish what was accepted, then stop."""
        for thread in self.stop():
            thread.join()
        with self._connection_free:
            pass  # whoever writes for himself has finished, and nobody begins any more

    # What the thread does.

    def _run(self) -> None:
        # For ever: what a finalizer writes in this thread would wait for this thread.
        self._this_thread.uses = True
        while True:
            job = self._jobs.get()
            if job is not None:
                self._thread_wants_it = True
                with self._connection_free:
                    self._thread_wants_it = False
                    self._run_group(job, most=self._options.group_size)
                job = None  # it knows the store, which nobody could drop while we wait for the next one
            elif self._closed and self._jobs.empty():
                # Nothing but this is put after `closed` is set, so that no work is left. Should there be another
                # thread, it hears of the end, too.
                self._jobs.put(None)
                return

    def _look_around(self) -> None:
        self._this_thread.uses = True
        try:
            with self._connection_free:
                self._look()
        finally:
            self._this_thread.uses = False

    def _look(self) -> None:
        """Wake everybody if another process committed: what it changed is not known."""
        try:
            version = self._link.data_version()
        except HoldfastError:
            # Somebody holds the file so tightly that it cannot be read. The next look will tell.
            return
        if version != self._seen_version:
            self._seen_version = version
            self._signals.publish_all()

    def _run_group(self, first: Job, *, most: int) -> None:
        # The first is a member from the beginning: whatever goes wrong, somebody hears of it.
        members: list[Job] = [first] if first.begin() else []
        committing = False
        try:
            if self._link.connection.in_transaction:
                # Somebody who wrote for himself was interrupted in the very moment in which he was taking it back.
                self._roll_back()
            if members:
                self._begin(first.deadline_s)
                self._run_member(first, alone=True)
            # The first may have been refused and have taken back everything: the next begins a group of its own.
            while self._link.connection.in_transaction and len(members) < most:
                job = self._another_job()
                if job is None:
                    break
                if job.begin():
                    members.append(job)
                    self._run_member(job, alone=False)
            if self._link.connection.in_transaction:
                self._check_alone()
                committing = True
                self._link.control("commit")
        except BaseException as error:
            if committing and _is_interrupt(error) and not self._link.connection.in_transaction:
                first.error = error  # stored, and its caller interrupted before he heard of it
            else:
                # Whatever happened, the thread lives on and nobody is left waiting. A disk that fails in the middle of
                # a COMMIT may have kept it: a crash right now could bring it back.
                unknown = committing and isinstance(error, apsw.IOError)
                self._abandon(members, error, "unknown" if unknown else "not_applied")
        finally:
            self._link.in_group = False
        # Only now: even a refusal may rest on what an earlier member wrote.
        Ticket.tell_all((member.ticket, member.result, member.error) for member in members if member.ticket is not None)
        for member in members:
            if member.ticket is None:
                member.tell()
        self._signals.publish(topic for member in members for topic in member.topics)

    def _another_job(self) -> Job | None:
        """The next operation that waits already. A call for attention, or to stop, is left for after the commit."""
        try:
            job = self._jobs.get_nowait()
        except Empty:
            return None
        if job is None:
            self._jobs.put(None)
        return job

    def _begin(self, deadline_s: float) -> None:
        until_free(
            self._link.path,
            partial(self._link.control, "begin_write"),
            deadline_s=deadline_s,
            meanwhile=self._look_if_watched,
        )
        self._link.in_group = True
        if self._locks is not None:
            self._commits_before = self._locks.commit_count()
        self._look_if_watched()

    def _roll_back(self) -> None:
        self._link.control("rollback")
        if not self._was_alone():
            # SQLite now believes that its cached pages are of the state that the other writer left.
            self._link.connection.pragma("shrink_memory")

    def _was_alone(self) -> bool:
        """Tell whether the lock held that keeps other writers out since this transaction began."""
        return self._locks is None or self._locks.commit_count() == self._commits_before

    def _check_alone(self) -> None:
        if not self._was_alone():
            raise Unavailable(
                f"{self._link.path}: another writer committed although this one held the lock; something in this "
                "process opened and closed the file, such as the standard library's sqlite3: do not, and retry"
            )

    def _look_if_watched(self) -> None:
        if self._shared and self._signals.watched:
            self._look()

    def _run_member(self, member: Job, *, alone: bool) -> None:
        """Run one operation; afterwards its changes are part of the transaction, or there is no trace of them."""
        link = self._link
        if not alone:
            link.control("save_member")
        try:
            transaction = SqliteTransaction(link, read_clock(self._clock))
            member.result = run_to_end(member.operation(transaction))
            member.topics = transaction.topics
        except BaseException as error:  # whatever it is, it is the caller's
            member.error = error
        if not link.connection.in_transaction:
            # SQLite itself gave up, and with this one all that came before it. An operation may even have caught that.
            given_up = Unavailable(f"{link.path}: SQLite gave the transaction up: retry")
            raise member.error if isinstance(member.error, HoldfastError) else given_up
        if member.error is None:
            if not alone:
                link.control("release_member")
        elif alone:
            self._roll_back()
        else:
            link.control("undo_member")
            link.control("release_member")

    def _abandon(self, members: list[Job], cause: BaseException, outcome: Outcome) -> None:
        """The group is not stored: make sure of it as far as possible, and leave everybody an error of his own."""
        if self._link.connection.in_transaction:
            try:
                self._roll_back()
            except apsw.Error as error:
                cause = error
        for member in members:
            # An interrupt is that of the one caller who writes for himself.
            member.error = cause if _is_interrupt(cause) else self._failure(cause, outcome)
            member.topics = []

    def _failure(self, cause: BaseException, outcome: Outcome) -> HoldfastError:
        known = translated(cause, self._link.path) if isinstance(cause, apsw.Error) else cause
        if isinstance(known, Corrupt):
            error: HoldfastError = Corrupt(known.table, known.key, known.reason)
        else:
            reason = known.message if isinstance(known, HoldfastError) else repr(known)
            happened = "nothing was stored" if outcome == "not_applied" else "it is not known whether it was stored"
            error = Unavailable(f"{happened}: {reason}", outcome=outcome)
        error.__cause__ = cause
        return error


def _is_interrupt(error: BaseException) -> bool:
    """Tell an exception that a signal handler may have raised, such as KeyboardInterrupt or TimeoutError."""
    if isinstance(error, apsw.Error | HoldfastError | MemoryError):
        return False
    return in_main_thread() or not isinstance(error, Exception)
