"""The writer of a SQLite file: operations that wait at the same time share one commit, and return only after it.

A writer thread runs the operations of callers that cannot block, and of those that find the connection in use. A
blocking caller that finds it free writes in its own thread, because two hand-overs between threads cost more than all
of a turn's statements.

Each operation of a group has its own savepoint, so that a refused one rolls back nothing of the others. The first of a
group needs none: there is nothing before it that a rollback could undo.

The writer also detects commits of other processes. `PRAGMA data_version` of a connection changes when another one
commits and not when the connection itself does. So on the writer's connection it shows only foreign commits, and not
this store's own, whose topics are all known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import apsw

from holdfast.backends.sqlite.commit_watcher import CommitWatcher
from holdfast.backends.sqlite.connection import StatementRunner, until_free
from holdfast.backends.sqlite.driver_errors import translated
from holdfast.backends.sqlite.file_locks import FileLocks
from holdfast.backends.sqlite.transaction import SqliteTransaction
from holdfast.backends.sqlite.writer_jobs import Held, Job, Request
from holdfast.clock import read_clock
from holdfast.errors import Corrupt, HoldfastError, NestedCall, Outcome, StoreClosed, Unavailable
from holdfast.interrupts import OfThisThread, in_main_thread, raised_by_handler, start_thread
from holdfast.ports import Clock, Operation
from holdfast.records.options import SqliteOptions
from holdfast.signals import Signals
from holdfast.wait import Ticket, run_made

T = TypeVar("T")

LOOK_S: Final = 0.005
"""Shortest pause between two looks of the writer for commits of other processes."""


class Writer:
    """Runs operations in groups, in the order of their arrival."""

    def __init__(
        self,
        runner: StatementRunner,
        options: SqliteOptions,
        clock: Clock,
        signals: Signals,
        *,
        shared: bool,
        locks: FileLocks | None,
    ) -> None:
        self._runner = runner
        self._options = options
        self._clock = clock
        self._signals = signals
        self._shared = shared
        self._locks = locks
        self._commits_before = 0
        self._cache_unsure = False
        self._looked_s = 0.0
        # Bound here, because a direct call of the driver is one step, which no interrupt divides.
        self._execute = runner.connection.execute
        self._rollback = runner.names["rollback"]
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._following: Job | None = None
        """Taken from the queue, and left for after the current group. Only the writer thread uses it."""
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._serving = False
        self._closed = False
        self._commit_watcher = (
            CommitWatcher(runner.connection.filename_wal, signals, self._look_around) if shared else None
        )
        # Held while the connection is in use. The writer thread announces that it wants the lock, so that a caller that
        # writes again and again cannot starve it.
        self._connection_free = threading.Lock()
        self._thread_wants_it = False
        self._this_thread = OfThisThread()
        # A version read before any watch began can only be too old, and then causes a needless wake-up: it never hides
        # a change. So no watcher has to wait for a first reading of its own.
        self._seen_version: int = runner.data_version()

    @property
    def is_used_here(self) -> bool:
        """True if the calling thread is in the middle of a write: it would wait for itself."""
        return self._this_thread.is_inside

    def run(self, operation: Operation[T]) -> T:
        """Run an operation for a caller that may block, and return once its commit is durable."""
        if self.is_used_here:
            raise NestedCall
        job = Job(operation, self._deadline_s())
        if (
            self._thread_wants_it
            or self._signals.watched  # an interrupt must not hit the thread that wakes the waiters
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
        self._this_thread.is_inside = True
        try:
            # Another thread may hold the lock until its commit. Only `with` guarantees that an interrupt releases it.
            with self._connection_free:
                if self._closed:
                    raise StoreClosed
                self._run_group(job, most=1)
        except BaseException as error:
            job.error = error
            if _is_interrupt(error):
                # The interrupt may have come between the commit and its notification.
                self._signals.publish_all()
        finally:
            self._this_thread.is_inside = False

    def accept(self, operation: Operation[Any], ticket: Ticket) -> None:
        """Queue an operation. Its ticket is answered once the commit is durable, or the operation is refused."""
        self._accept(Job(operation, self._deadline_s(), ticket))

    def hold(self, held: Held) -> None:
        """Queue a transaction of several operations. Its opening is answered once it has begun."""
        if self.is_used_here:
            raise Unavailable("this thread is in the middle of a write: a signal handler or finalizer must not write")
        held.opening.held = held
        held.opening.deadline_s = self._deadline_s()
        self._accept(held.opening)

    def _accept(self, job: Job) -> None:
        with self._lock:
            self._start()
            self._jobs.put(job)

    def _deadline_s(self) -> float:
        return time.monotonic() + self._options.busy_timeout_ms / 1000

    def watch_other_processes(self) -> None:
        """Detect commits of other processes while there are watches."""
        if self._commit_watcher is not None:
            self._commit_watcher.wake()

    def _start(self) -> None:
        if self._closed:
            raise StoreClosed
        if not self._serving:
            thread = threading.Thread(target=self._run, name="holdfast-sqlite-writer", daemon=True)
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
            start_thread(thread)

    def stop(self) -> list[threading.Thread]:
        """Refuse new operations. The threads end once they have finished the accepted ones."""
        watchers = [] if self._commit_watcher is None else self._commit_watcher.stop()
        with self._lock:
            self._closed = True
            self._jobs.put(None)
            # A thread that could not be started has no identity, and cannot be joined.
            return [thread for thread in (*watchers, *self._threads) if thread.ident is not None]

    def close(self) -> None:
        """Finish accepted operations, then stop."""
        for thread in self.stop():
            thread.join()
        with self._connection_free:
            pass  # a caller that writes in its own thread has finished, and no other can begin

    # The writer thread.

    def _run(self) -> None:
        with self._lock:
            if self._serving:
                return  # an interrupted start had succeeded after all
            self._serving = True
        # Never reset: a write by a finalizer in this thread would wait for this thread.
        self._this_thread.is_inside = True
        while True:
            job, self._following = self._following or self._jobs.get(), None
            if job is not None:
                self._thread_wants_it = True
                with self._connection_free:
                    self._thread_wants_it = False
                    if job.held is None:
                        self._run_group(job, most=self._options.group_size)
                        self._look_now_and_then()
                    else:
                        self._serve(job.held)
                job = None  # it refers to the store, which could not be collected during the wait for the next one
            elif self._closed and self._jobs.empty():
                # Only None is put after `_closed` is set, so no work is left. Put it back for another thread, if
                # there is one.
                self._jobs.put(None)
                return

    def _look_around(self) -> bool:
        self._this_thread.is_inside = True
        try:
            with self._connection_free:
                return self._look(self._is_concerned)
        finally:
            self._this_thread.is_inside = False

    def _look(self, is_concerned: Callable[[Future[None]], bool] | None = None) -> bool:
        """Wake waiters if another process committed: its topics are not known. Return whether one did."""
        try:
            version = self._runner.data_version()
        except HoldfastError:
            # Another process has locked the file so that it cannot be read. The next poll will tell.
            return False
        if version == self._seen_version:
            return False
        self._seen_version = version
        self._signals.publish_all(is_concerned)
        return True

    def _is_concerned(self, change: Future[None]) -> bool:
        """Ask a waiter if a commit concerns it, here and not in its own thread. One that cannot tell is concerned."""
        runner = self._runner
        ask = getattr(change, "concerns", None)
        if ask is None or self._cache_unsure or runner.connection.in_transaction:
            return True
        try:
            runner.control("begin_read")
            try:
                return bool(run_made(ask, SqliteTransaction(runner, read_clock(self._clock))))
            finally:
                runner.control("rollback")
        except Exception as error:
            if _is_interrupt(error):
                raise
            return True  # the waiter's own look reports it

    def _run_group(self, first: Job, *, most: int) -> None:
        # The first is a member from the beginning, so that every failure reaches a caller.
        members: list[Job] = [first] if first.begin() else []
        connection, execute, rollback = self._runner.connection, self._execute, self._rollback
        committing = False
        try:
            self._end_failed()
            if members:
                self._begin(first.deadline_s)
                self._run_member(first, alone=True)
            # If the first was refused, the transaction is rolled back, and the next job begins a group of its own.
            while connection.in_transaction and len(members) < most:
                job = self._another_job()
                if job is None:
                    break
                if job.begin():
                    members.append(job)
                    self._run_member(job, alone=False)
            if connection.in_transaction:
                self._check_alone()
                committing = True
                self._runner.control("commit")
        except BaseException as error:
            stored = committing and not connection.in_transaction
            self._cache_unsure, cause = True, error
            try:
                # Nothing is called before this, so that no second interrupt can prevent the release of the lock.
                if connection.in_transaction:
                    execute(rollback)
            except apsw.Error as failure:
                cause = failure
            # A disk that fails during COMMIT may have stored it: recovery after a crash now could bring it back.
            unknown = committing and isinstance(error, apsw.IOError)
            self._fail(members, cause, "unknown" if unknown else "not_applied", stored=stored)
        finally:
            self._runner.in_group = False
        # Only now, after the commit: even a refusal may rest on the writes of an earlier member.
        tickets = [(member.ticket, member.result, member.error) for member in members if member.ticket is not None]
        if tickets:
            Ticket.tell_all(tickets)
        for member in members:
            if member.ticket is None:
                member.tell()
        self._signals.publish([topic for member in members for topic in member.topics])

    def _another_job(self) -> Job | None:
        """Return the next queued operation that can join the group, or None.

        A request to stop and a transaction of several operations are left for after the commit.
        """
        try:
            job = self._jobs.get_nowait()
        except Empty:
            return None
        if job is None:
            self._jobs.put(None)
        elif job.held is not None:
            self._following, job = job, None
        return job

    def _serve(self, held: Held) -> None:
        """Run the calls of one transaction until it ends. Other writers wait meanwhile; readers do not."""
        opening = held.opening
        unanswered: Job | None = opening
        topics: list[str] = []
        committing = False
        try:
            if opening.begin():
                self._end_failed()
                self._begin(opening.deadline_s)
                self._look_if_watched()  # the watcher waits for the end of this transaction
                held.start_time()
                opening.reply()
            while self._runner.connection.in_transaction:
                unanswered = call = held.next_call()
                if call is None or call.request is Request.ROLL_BACK:
                    self._roll_back()
                elif not call.begin():
                    continue  # its caller gave up: a rollback follows
                elif call.request is Request.RUN:
                    self._run_member(call, alone=False)
                    topics += call.topics
                    call.reply()
                elif held.may_commit():
                    self._check_alone()
                    committing = True
                    self._runner.control("commit")
                    self._signals.publish(topics)
                else:
                    self._roll_back()
        except BaseException as error:  # raised to the caller
            self._lose(held, unanswered, error, committing=committing)
        finally:
            self._runner.in_group = False
            held.release()
        if unanswered is not None:
            unanswered.reply()

    def _lose(self, held: Held, call: Job | None, error: BaseException, *, committing: bool) -> None:
        """Roll back after a failure, and raise it in the call during which it happened."""
        self._cache_unsure, cause = True, error
        try:
            if self._runner.connection.in_transaction:
                self._execute(self._rollback)
        except apsw.Error as failure:
            cause = failure
        held.lose()
        if call is not None:
            # A disk that fails during COMMIT may have stored it: recovery after a crash now could bring it back.
            unknown = committing and isinstance(error, apsw.IOError)
            call.result, call.error = None, self._failure(cause, "unknown" if unknown else "not_applied")

    def _begin(self, deadline_s: float) -> None:
        until_free(
            self._runner.path,
            partial(self._runner.control, "begin_write"),
            deadline_s=deadline_s,
            meanwhile=self._look_now_and_then,
        )
        self._runner.in_group = True
        if self._locks is not None:
            self._commits_before = self._locks.commit_count()

    def _end_failed(self) -> None:
        """Clean up after a failed group."""
        if self._runner.connection.in_transaction:
            self._roll_back()
        if self._cache_unsure:
            self._empty_cache()

    def _roll_back(self) -> None:
        self._runner.control("rollback")
        if not self._was_alone():
            self._empty_cache()

    def _empty_cache(self) -> None:
        """Drop cached pages: after a rollback, SQLite would take them for the state of an intervening writer."""
        self._runner.connection.pragma("shrink_memory")
        self._cache_unsure = False

    def _was_alone(self) -> bool:
        """Return whether the write lock has kept other writers out since this transaction began."""
        return self._locks is None or self._locks.commit_count() == self._commits_before

    def _check_alone(self) -> None:
        if not self._was_alone():
            raise Unavailable(
                f"{self._runner.path}: another writer committed although this one held the lock; something in this "
                "process opened and closed the file, such as the standard library's sqlite3: do not, and retry"
            )

    def _look_now_and_then(self) -> None:
        """Look for commits of other processes in the watcher's place: it may find the connection in use for long."""
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._look_if_watched()

    def _look_if_watched(self) -> None:
        if self._shared and self._signals.watched:
            self._looked_s = time.monotonic()
            self._look(self._is_concerned)

    def _run_member(self, member: Job, *, alone: bool) -> None:
        """Run one operation. Afterwards its changes are part of the transaction, or it left no trace."""
        runner = self._runner
        if not alone:
            runner.control("save_member")
        try:
            transaction = SqliteTransaction(runner, read_clock(self._clock))
            member.result = run_made(member.operation, transaction)
            member.topics = transaction.topics
        except BaseException as error:  # raised to the caller
            member.error = error
        if not runner.connection.in_transaction:
            # SQLite itself rolled back this operation and all before it. The operation may even have caught that error.
            given_up = Unavailable(f"{runner.path}: SQLite rolled the transaction back: retry")
            raise member.error if isinstance(member.error, HoldfastError) else given_up
        if member.error is None:
            if not alone:
                runner.control("release_member")
        elif alone:
            self._roll_back()
        else:
            runner.control("undo_member")
            runner.control("release_member")

    def _fail(self, members: list[Job], cause: BaseException, outcome: Outcome, *, stored: bool) -> None:
        """Give every member of a group its own error: nothing is stored, as far as is known."""
        if stored and _is_interrupt(cause):
            members[0].error = cause  # stored, but its caller was interrupted before the result
            return
        for member in members:
            # An interrupt belongs to the one caller that writes in its own thread.
            member.error = cause if _is_interrupt(cause) else self._failure(cause, outcome)
            member.topics = []

    def _failure(self, cause: BaseException, outcome: Outcome) -> HoldfastError:
        known = translated(cause, self._runner.path) if isinstance(cause, apsw.Error) else cause
        if isinstance(known, Corrupt):
            error: HoldfastError = Corrupt(known.table, known.key, known.reason)
        else:
            reason, steps = (known.text, known.next_step) if isinstance(known, HoldfastError) else (repr(known), ())
            happened = "nothing was stored" if outcome == "not_applied" else "it is not known whether it was stored"
            error = Unavailable(f"{happened}: {reason}", *steps, outcome=outcome)
        error.__cause__ = cause
        return error


def _is_interrupt(error: BaseException) -> bool:
    """Return whether a signal handler may have raised the exception, such as KeyboardInterrupt or TimeoutError."""
    if isinstance(error, HoldfastError):
        # A handler may pass on the refusal of a call of its own.
        return raised_by_handler(error)
    if isinstance(error, apsw.Error | MemoryError):
        return False
    return in_main_thread() or not isinstance(error, Exception)
