"""The blocking store: same names, arguments and results as the async one, no logic of its own.

Each method below is the async one, run to its end for the calling thread. Many threads may use one blocking store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, update_wrapper
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec

from holdfast import store as asynchronous
from holdfast.blocking_methods import Facet, driven, warning_without_await, without_await, without_await_each
from holdfast.blocking_run_handle import RunHandle, giving_a_run
from holdfast.blocking_turn import Turn
from holdfast.nesting import interrupted_call, refuse_nested
from holdfast.ports import Backend
from holdfast.records.common import Receipt
from holdfast.records.limits import Limits
from holdfast.records.queue import WorkClaim
from holdfast.store import READ_WAIT_MS, TRANSACTION_MS
from holdfast.store.session_control import TURN_WAIT_MS
from holdfast.store.transaction import Marked, TransactionBlock

__all__ = ["BlockingStore", "RunHandle", "Session", "Turn"]

P = ParamSpec("P")


class SessionAttachments(Facet):
    """`session.attachments`, without await."""

    put = without_await(asynchronous.SessionAttachments.put)
    get = without_await(asynchronous.SessionAttachments.get)
    entry = without_await(asynchronous.SessionAttachments.entry)
    list = without_await(asynchronous.SessionAttachments.list)
    record_intent = without_await(asynchronous.SessionAttachments.record_intent)
    commit_refs = without_await(asynchronous.SessionAttachments.commit_refs)
    list_uncommitted = without_await(asynchronous.SessionAttachments.list_uncommitted)
    forget = without_await(asynchronous.SessionAttachments.forget)


class Session(Facet):
    """A handle on a session, without await."""

    def __init__(self, session: asynchronous.Session, backend: Backend) -> None:
        super().__init__(session, backend)
        self._session = session
        self.attachments = SessionAttachments(session.attachments, backend)

    @property
    def session_id(self) -> str | None:
        """The session that the handle is bound to, None while it is unbound."""
        return self._session.session_id

    meta = without_await(asynchronous.Session.meta)
    save_meta = without_await(asynchronous.Session.save_meta)
    set_labels = without_await(asynchronous.Session.set_labels)
    load = without_await(asynchronous.Session.load)
    load_many = without_await(asynchronous.Session.load_many)
    load_node = without_await(asynchronous.Session.load_node)
    nodes = without_await(asynchronous.Session.nodes)
    commit = without_await(asynchronous.Session.commit)
    add_nodes = without_await(asynchronous.Session.add_nodes)
    history = without_await(asynchronous.Session.history)
    tombstone = without_await(asynchronous.Session.tombstone)
    append = without_await(asynchronous.Session.append)
    enqueue = without_await(asynchronous.Session.enqueue)
    messages = without_await(asynchronous.Session.messages)
    pause = without_await(asynchronous.Session.pause)
    resume = without_await(asynchronous.Session.resume)
    interrupt = without_await(asynchronous.Session.interrupt)
    follow = without_await_each(asynchronous.Session.follow)

    def turn(
        self,
        turn_id: str | None = None,
        *,
        last: int | None = None,
        claim: WorkClaim | None = None,
        wait_ms: int = TURN_WAIT_MS,
    ) -> Turn:
        """Run one turn as a block: read the conversation, add to it, and commit everything at the block's end."""
        return Turn(self._session.turn(turn_id, last=last, claim=claim, wait_ms=wait_ms), self.backend)


def giving_a_session(
    method: Callable[Concatenate[Any, P], Awaitable[asynchronous.Session]],
) -> Callable[Concatenate[Facet, P], Session]:
    """Return an async method that gives a handle as a blocking one that gives a blocking handle."""
    inner = without_await(method)

    def call(self: Facet, /, *args: P.args, **kwargs: P.kwargs) -> Session:
        return Session(inner(self, *args, **kwargs), self.backend)

    return update_wrapper(call, method)


class Sessions(Facet):
    """`store.sessions`, without await."""

    def __init__(self, sessions: asynchronous.Sessions, backend: Backend) -> None:
        super().__init__(sessions, backend)
        self._sessions = sessions

    create = giving_a_session(asynchronous.Sessions.create)
    fork = giving_a_session(asynchronous.Sessions.fork)
    list = without_await(asynchronous.Sessions.list)
    delete = without_await(asynchronous.Sessions.delete)

    def open(self, session_id: str) -> Session | None:
        """Return a handle on a session that has metadata, or None."""
        found = driven(self.backend, partial(self._sessions.open, session_id))
        return None if found is None else Session(found, self.backend)

    def handle(self, session_id: str) -> Session:
        """Return a handle on a session, existing or not. Reads nothing."""
        return Session(self._sessions.handle(session_id), self.backend)

    def unbound(self) -> Session:
        """Return a handle that binds to the first session it successfully commits to. Until then it cannot read."""
        return Session(self._sessions.unbound(), self.backend)


class Queue(Facet):
    """`store.queue`, without await."""

    enqueue = without_await(asynchronous.Queue.enqueue)
    restore = without_await(asynchronous.Queue.restore)
    claim = without_await(asynchronous.Queue.claim)
    claim_exactly = without_await(asynchronous.Queue.claim_exactly)
    renew = without_await(asynchronous.Queue.renew)
    give_back = without_await(asynchronous.Queue.give_back)
    cancel = without_await(asynchronous.Queue.cancel)
    get = without_await(asynchronous.Queue.get)
    find = without_await(asynchronous.Queue.find)
    list = without_await(asynchronous.Queue.list)
    list_pending = without_await(asynchronous.Queue.list_pending)
    sessions = without_await(asynchronous.Queue.sessions)
    wait = without_await(asynchronous.Queue.wait)
    claim_next = without_await(asynchronous.Queue.claim_next)
    wait_next = without_await(asynchronous.Queue.wait_next)
    complete = without_await(asynchronous.Queue.complete)
    complete_and_claim_next = without_await(asynchronous.Queue.complete_and_claim_next)
    fail = without_await(asynchronous.Queue.fail)
    dead_letters = without_await(asynchronous.Queue.dead_letters)
    retry = without_await(asynchronous.Queue.retry)
    drop = without_await(asynchronous.Queue.drop)
    release = without_await(asynchronous.Queue.release)
    wait_settled = without_await(asynchronous.Queue.wait_settled)
    set_limit = without_await(asynchronous.Queue.set_limit)
    remove_limit = without_await(asynchronous.Queue.remove_limit)
    limits = without_await(asynchronous.Queue.limits)
    depths = without_await(asynchronous.Queue.depths)
    pause = without_await(asynchronous.Queue.pause)
    resume = without_await(asynchronous.Queue.resume)
    paused_sessions = without_await(asynchronous.Queue.paused_sessions)


class Attachments(Facet):
    """`store.attachments`, without await."""

    list_uncommitted = without_await(asynchronous.Attachments.list_uncommitted)
    sweep = without_await(asynchronous.Attachments.sweep)


class Processes(Facet):
    """`store.processes`, without await."""

    register = warning_without_await(asynchronous.Processes.register)
    start = giving_a_run(asynchronous.Processes.start)
    retry = giving_a_run(asynchronous.Processes.retry)
    claim_next = without_await(asynchronous.Processes.claim_next)
    complete_and_claim_next = without_await(asynchronous.Processes.complete_and_claim_next)
    wait_next = without_await(asynchronous.Processes.wait_next)
    suspend = without_await(asynchronous.Processes.suspend)
    retry_later = without_await(asynchronous.Processes.retry_later)
    restore = without_await(asynchronous.Processes.restore)
    get = without_await(asynchronous.Processes.get)
    list = without_await(asynchronous.Processes.list)
    ended = without_await(asynchronous.Processes.ended)
    set_external_ref = without_await(asynchronous.Processes.set_external_ref)
    set_wait = without_await(asynchronous.Processes.set_wait)
    clear_wait = without_await(asynchronous.Processes.clear_wait)
    complete = without_await(asynchronous.Processes.complete)
    wait = without_await(asynchronous.Processes.wait)
    forget_session = without_await(asynchronous.Processes.forget_session)

    def handle(self, process_id: str) -> RunHandle:
        """Return a handle on a run, existing or not. Reads nothing."""
        return RunHandle(self.facet.handle(process_id), self.backend)


class Events(Facet):
    """`store.events`, without await."""

    append = without_await(asynchronous.Events.append)
    append_many = without_await(asynchronous.Events.append_many)
    signal = without_await(asynchronous.Events.signal)
    request_cancel = without_await(asynchronous.Events.request_cancel)
    after = without_await(asynchronous.Events.after)
    recent = without_await(asynchronous.Events.recent)
    count = without_await(asynchronous.Events.count)
    wait_for = without_await(asynchronous.Events.wait_for)
    follow = without_await_each(asynchronous.Events.follow)
    wakes = without_await(asynchronous.Events.wakes)
    ack_wake = without_await(asynchronous.Events.ack_wake)


class Grants(Facet):
    """`store.grants`, without await."""

    grant = without_await(asynchronous.Grants.grant)
    revoke = without_await(asynchronous.Grants.revoke)
    transfer = without_await(asynchronous.Grants.transfer)
    list = without_await(asynchronous.Grants.list)
    list_live = without_await(asynchronous.Grants.list_live)
    has = without_await(asynchronous.Grants.has)
    of_process = without_await(asynchronous.Grants.of_process)


class Leases(Facet):
    """`store.leases`, without await."""

    claim = without_await(asynchronous.Leases.claim)
    renew = without_await(asynchronous.Leases.renew)
    release = without_await(asynchronous.Leases.release)
    revoke = without_await(asynchronous.Leases.revoke)
    holder = without_await(asynchronous.Leases.holder)


class Triggers(Facet):
    """`store.triggers`, without await."""

    def __init__(self, triggers: asynchronous.Triggers, backend: Backend) -> None:
        super().__init__(triggers, backend)
        self.source_key = triggers.source_key

    subscribe = warning_without_await(asynchronous.Triggers.subscribe)
    list = without_await(asynchronous.Triggers.list)
    cancel = without_await(asynchronous.Triggers.cancel)
    forget_session = without_await(asynchronous.Triggers.forget_session)
    record = without_await(asynchronous.Triggers.record)
    reserve = without_await(asynchronous.Triggers.reserve)
    emit = without_await(asynchronous.Triggers.emit)
    undelivered = without_await(asynchronous.Triggers.undelivered)
    failed = without_await(asynchronous.Triggers.failed)
    redeliver = without_await(asynchronous.Triggers.redeliver)
    wait_undelivered = without_await(asynchronous.Triggers.wait_undelivered)
    occurrences = without_await(asynchronous.Triggers.occurrences)
    deliveries = without_await(asynchronous.Triggers.deliveries)
    restore = without_await(asynchronous.Triggers.restore)
    restore_occurrence = without_await(asynchronous.Triggers.restore_occurrence)
    mark_started = without_await(asynchronous.Triggers.mark_started)
    mark_failed = without_await(asynchronous.Triggers.mark_failed)


class Schedules(Facet):
    """`store.schedules`, without await."""

    put = without_await(asynchronous.Schedules.put)
    get = without_await(asynchronous.Schedules.get)
    list = without_await(asynchronous.Schedules.list)
    pause = without_await(asynchronous.Schedules.pause)
    resume = without_await(asynchronous.Schedules.resume)
    run_now = without_await(asynchronous.Schedules.run_now)
    remove = without_await(asynchronous.Schedules.remove)
    fire_next = without_await(asynchronous.Schedules.fire_next)
    wait_next = without_await(asynchronous.Schedules.wait_next)
    restore = without_await(asynchronous.Schedules.restore)


class Artifacts(Facet):
    """`store.artifacts`, without await."""

    put = without_await(asynchronous.Artifacts.put)
    put_content = without_await(asynchronous.Artifacts.put_content)
    get = without_await(asynchronous.Artifacts.get)
    get_many = without_await(asynchronous.Artifacts.get_many)
    list = without_await(asynchronous.Artifacts.list)
    delete = without_await(asynchronous.Artifacts.delete)
    delete_many = without_await(asynchronous.Artifacts.delete_many)


class Workers(Facet):
    """`store.workers`, without await."""

    heartbeat = without_await(asynchronous.Workers.heartbeat)
    list = without_await(asynchronous.Workers.list)
    held_sessions = without_await(asynchronous.Workers.held_sessions)
    leave = without_await(asynchronous.Workers.leave)
    release = without_await(asynchronous.Workers.release)
    renew = without_await(asynchronous.Workers.renew)


class Maintenance(Facet):
    """`store.maintenance`, without await."""

    vacuum = without_await(asynchronous.Maintenance.vacuum)
    collect_garbage = without_await(asynchronous.Maintenance.collect_garbage)
    prune = without_await(asynchronous.Maintenance.prune)
    stats = without_await(asynchronous.Maintenance.stats)
    diagnose = without_await(asynchronous.Maintenance.diagnose)
    explain_session = without_await(asynchronous.Maintenance.explain_session)
    explain_process = without_await(asynchronous.Maintenance.explain_process)
    explain_schedule = without_await(asynchronous.Maintenance.explain_schedule)
    verify = without_await(asynchronous.Maintenance.verify)


class BlockingStore:
    """An open store for threads. Use it as a context manager, or `close` it."""

    def __init__(self, store: asynchronous.Store, backend: Backend) -> None:
        self._store = store
        self._backend = backend
        self.sessions = Sessions(store.sessions, backend)
        self.queue = Queue(store.queue, backend)
        self.attachments = Attachments(store.attachments, backend)
        self.processes = Processes(store.processes, backend)
        self.events = Events(store.events, backend)
        self.grants = Grants(store.grants, backend)
        self.leases = Leases(store.leases, backend)
        self.triggers = Triggers(store.triggers, backend)
        self.schedules = Schedules(store.schedules, backend)
        self.artifacts = Artifacts(store.artifacts, backend)
        self.workers = Workers(store.workers, backend)
        self.maintenance = Maintenance(store.maintenance, backend)

    def __repr__(self) -> str:
        return f"Blocking{self._store!r}"

    @property
    def durability(self) -> Literal["ephemeral", "durable"]:
        """`durable` if acknowledged writes survive the process, else `ephemeral`."""
        return self._store.durability

    @property
    def schema_version(self) -> int:
        """The version of the stored schema."""
        return self._store.schema_version

    @property
    def limits(self) -> Limits:
        """The bounds of one call that the store was opened with."""
        return self._store.limits

    def now_ms(self) -> int:
        """Return the time of this store's clock: the server's on PostgreSQL, otherwise the clock it was opened with."""
        return driven(self._backend, self._store.now_ms)

    def ddl(self) -> str:
        """Return the statements that create the schema, to be run by hand."""
        return self._store.ddl()

    def within(self, connection: object) -> BlockingStore:
        """Return this store inside a transaction that you began on your own connection; see `Store.within`."""
        refuse_nested(self._backend)
        return BlockingStore(self._store.within(connection), self._backend)

    def transaction(self, *, timeout_ms: int = TRANSACTION_MS) -> BlockingTransaction:
        """Return a block in which `tx` makes several calls as one transaction; see `Store.transaction`."""
        return BlockingTransaction(self._store.transaction(timeout_ms=timeout_ms), self._backend)

    def position(self) -> str:
        """Return a position, for `reading(after=...)`, that is not older than any call acknowledged until now."""
        return driven(self._backend, self._store.position)

    def reading(
        self, *, after: Receipt | str | None = None, wait_ms: int = READ_WAIT_MS, fall_back: bool = True
    ) -> BlockingStore:
        """Return this store for reads only, answered by a replica if there is one; see `Store.reading`."""
        return BlockingStore(self._store.reading(after=after, wait_ms=wait_ms, fall_back=fall_back), self._backend)

    def close(self) -> None:
        """Finish accepted calls and close the database. Later calls are `StoreClosed`.

        Called by a signal handler or finalizer in the middle of another call on this store, it returns at once, and the
        store is closed as soon as that call waits or ends.
        """
        interrupted = interrupted_call(self._backend)
        if interrupted is not None:
            interrupted.close_afterwards(self._store.close)
        # Asked again: another thread may have opened the call meanwhile, and then have missed the request.
        if interrupted is None or interrupted.is_open:
            driven(self._backend, self._store.close)

    def __enter__(self) -> BlockingStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingTransaction:
    """A context manager: `with store.transaction() as tx`. Each is for one block."""

    def __init__(self, block: TransactionBlock, backend: Backend) -> None:
        self.block = block
        self._backend = backend

    def __enter__(self) -> BlockingStore:
        self.block.take()
        try:
            # Not in the coroutine, which may run in the context of another thread. Before the begin: after it, a signal
            # handler that writes would wait for the end of the transaction, and this thread with it.
            self.block.entered.enter()
            store = BlockingStore(driven(self._backend, self.block.begin), self._backend)
        except BaseException as error:
            self.__exit__(type(error), error, None)  # an interrupt after the begin
            raise
        return store

    @Marked
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if self.block.ends_here(error):
                driven(self._backend, partial(self.block.end, error))
        finally:
            self.block.entered.leave()
