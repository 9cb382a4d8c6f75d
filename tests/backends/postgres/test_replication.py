"""Nothing is acknowledged before the standbys have confirmed it: a replayed call waits like the first.

The server here waits for a standby that never connects. One store commits without waiting, like a commit whose wait
was cancelled, so that the rows are stored and unconfirmed. The other store sends the same call again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.errors import DurabilityUncertain
from holdfast.events import EventType, Payload, WakeRule
from holdfast.leases import OnSession
from holdfast.processes import Completed, External, ExternalRef
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop
from holdfast.triggers import Emission, SubscriptionDraft

Call = Callable[[Store], Awaitable[Any]]

CANCEL = ("pg_cancel_backend",)
CHAT, OTHER = holdfast.Scope("chat"), holdfast.Scope("other")
TYPES = (
    EventType("progress"),
    EventType("news", wake=WakeRule(Payload())),
)
DRAFT = SubscriptionDraft(source_type="cron", source_key="k", target=External(), key="daily")


class Unconfirmed:
    """A server without its standby, and the two ways to commit on it."""

    def __init__(self, server: Any, loop: EventLoop) -> None:
        self.url: str = server.url
        self.loop = loop
        self.watcher: Any = loop.drive(asyncpg.connect(self.url))
        self._closers: list[Any] = [self.watcher.close]
        self.careless = self.open(f"{self.url}&synchronous_commit=local")
        loop.drive(self._miss_the_standby())
        self.store = self.open(self.url)

    async def _miss_the_standby(self) -> None:
        await self.watcher.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        await self.watcher.execute("SELECT pg_reload_conf()")
        # The checkpointer passes the setting on once it has read it: the first commit that waits shows it.
        waited = 0
        while not waited:
            other: Any = await asyncpg.connect(self.url)
            waited = await self._end_waits(
                asyncio.ensure_future(other.execute("CREATE TABLE probe (); DROP TABLE probe"))
            )
            await other.close()

    def open(self, url: Any, **options: Any) -> Store:
        backend = self.loop.drive(PostgresBackend.open(url, PostgresOptions(**options), None))
        self._closers.append(backend.close)
        return Store(Context(backend, holdfast.Limits()))

    def close(self) -> None:
        for close in reversed(self._closers):
            self.loop.drive(close())

    async def _end_waits(self, call: asyncio.Future[Any], ends: Sequence[str] = CANCEL) -> int:
        """End each wait for the standby until the call is done, each in the next of these ways; return how many."""
        ended = 0
        while not call.done():
            end = ends[min(ended, len(ends) - 1)]
            found = await self.watcher.fetch(f"SELECT {end}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
            ended += len(found)
            await asyncio.wait([call], timeout=0.002)
        return ended

    def setup(self, call: Call) -> Any:
        """Run a call that does not wait for the standby."""
        return self.loop.drive(call(self.careless))

    def outcome(self, call: Call, store: Store | None = None, ends: Sequence[str] = CANCEL) -> Any:
        """Return the answer of a call whose waits are ended, or its error."""

        async def run() -> Any:
            calling = asyncio.ensure_future(call(store or self.store))
            await self._end_waits(calling, ends)
            return calling.exception() or calling.result()

        return self.loop.drive(run())


@pytest.fixture(scope="module")
def unconfirmed(request: pytest.FixtureRequest) -> Iterator[Unconfirmed]:
    if request.config.getoption("--no-postgres"):
        pytest.skip("--no-postgres")
    request.getfixturevalue("postgres_database")
    server, loop = sys.modules["holdfast_postgres_server"].Server(), EventLoop()
    try:
        made = Unconfirmed(server, loop)
        made.setup(lambda store: store.sessions.handle("chat").commit(holdfast.Commit()))
        made.setup(lambda store: store.sessions.handle("other").commit(holdfast.Commit()))
        made.setup(register("job"))
        made.setup(register("waking", wake_target=CHAT))
        yield made
        made.close()
    finally:
        server.remove()
        loop.close()


def commit(session_id: str = "chat", **given: Any) -> Call:
    return lambda store: store.sessions.handle(session_id).commit(holdfast.Commit(**given))


def register(process_id: str, **given: Any) -> Call:
    wanted = holdfast.ProcessRegistration(process_id, External(), event_types=TYPES, **given)
    return lambda store: store.processes.register(wanted)


def enqueue(source_key: str) -> Call:
    draft = holdfast.WorkDraft(session_id="chat", payloads=[1], source_key=source_key)
    return lambda store: store.queue.enqueue(draft)


def append(replay_key: str, type: str = "progress", process_id: str = "job") -> Call:
    return lambda store: store.events.append(process_id, type, 1, replay_key=replay_key)


def emit(store: Store) -> Awaitable[Emission]:
    return store.triggers.emit("cron", "k", idempotency_key="today")


async def start_a_delivery(store: Store) -> Any:
    [occurrence] = await store.triggers.occurrences()
    [delivery] = await store.triggers.deliveries(occurrence.occurrence_id)
    return await store.triggers.mark_started(delivery)


async def settle(store: Store) -> Any:
    batch = await store.queue.enqueue(holdfast.WorkDraft(session_id="other", payloads=[1], source_key="settled"))
    return await store.queue.cancel("other", batch.batch_id)


async def fork(store: Store) -> Any:
    return await store.sessions.fork("chat", into="forked")


def chat(store: Store) -> Any:
    return store.sessions.handle("chat")


REPEATED: dict[str, Call] = {
    "turn": commit(turn_id="t"),
    "first turn of a session": commit("new", turn_id="t"),
    "turn that leaves work": commit(turn_id="w", enqueues=[holdfast.WorkDraft(session_id="other", payloads=[1])]),
    "work by source key": enqueue("k"),
    "work that was cancelled": settle,
    "event by replay key": append("k"),
    "event with a wake": append("w", "news", "waking"),
    "process": register("again"),
    "completion": lambda store: store.processes.complete("again", Completed(1)),
    "reference": lambda store: store.processes.set_external_ref("job", ExternalRef("x", "1")),
    "acknowledged wake": lambda store: store.events.ack_wake("waking", 1),
    "cleared wait": lambda store: store.processes.clear_wait("job"),
    "session": lambda store: store.sessions.create("made", owner="ada"),
    "deletion": lambda store: store.sessions.delete("made"),
    "nodes beside the path": lambda store: chat(store).add_nodes([holdfast.Node("beside")]),
    "tombstone": lambda store: chat(store).tombstone(["no such"]),
    "fork": fork,
    "attachment": lambda store: chat(store).attachments.put(b"abc"),
    "forgotten attachment": lambda store: chat(store).attachments.forget("no such"),
    "artifact": lambda store: store.artifacts.put("kind", "ref", b"abc"),
    "artifact by content": lambda store: store.artifacts.put_content("kind", b"abc"),
    "deleted artifact": lambda store: store.artifacts.delete("kind", "ref"),
    "subscription": lambda store: store.triggers.subscribe(DRAFT),
    "emission": emit,
    "occurrence": lambda store: store.triggers.record("cron", "k", idempotency_key="today"),
    "started delivery": start_a_delivery,
    "cancelled subscription": lambda store: store.triggers.cancel("trigger:99"),
    "grant": lambda store: store.grants.grant(CHAT, "job"),
    "revoked grant": lambda store: store.grants.revoke(CHAT, "job"),
    "moved grants of nothing": lambda store: store.grants.transfer(CHAT, OTHER, []),
    "forgotten registrant": lambda store: store.processes.forget_session("chat"),
    "forgotten subscriber": lambda store: store.triggers.forget_session("chat"),
    "sweep": lambda store: store.maintenance.vacuum("chat"),
}
"""Calls that find their work done, or nothing to do, when they are sent again. Some count on those above them."""


@pytest.fixture(scope="module")
def done(unconfirmed: Unconfirmed) -> Unconfirmed:
    """Run each call once, unconfirmed, so that the tests can send it again."""
    for call in REPEATED.values():
        unconfirmed.setup(call)
    return unconfirmed


@pytest.mark.parametrize("what", REPEATED)
def test_a_call_that_finds_its_work_done_waits_for_the_standby(done: Unconfirmed, what: str) -> None:
    answer = done.outcome(REPEATED[what])
    assert isinstance(answer, DurabilityUncertain), f"answered without waiting: {answer}"
    assert answer.outcome == "applied"


def test_a_turn_waits_each_time_that_it_is_sent(unconfirmed: Unconfirmed) -> None:
    """Also by the store that committed it, which has the head cached, and on every repetition."""
    for _ in range(3):
        assert isinstance(unconfirmed.outcome(commit(turn_id="thrice")), DurabilityUncertain)


def test_a_turn_whose_server_process_was_ended_while_it_waited_waits_again(unconfirmed: Unconfirmed) -> None:
    answer = unconfirmed.outcome(commit(turn_id="ended"), ends=("pg_terminate_backend", *CANCEL))
    assert isinstance(answer, DurabilityUncertain), answer
    assert isinstance(unconfirmed.outcome(commit(turn_id="ended")), DurabilityUncertain)


FIRST: dict[str, Call] = {
    "turn": commit("waits", turn_id="t"),
    "work": lambda store: store.queue.enqueue(holdfast.WorkDraft(session_id="waits", payloads=[1])),
    "claim": lambda store: store.queue.claim("waits", owner_id="w1"),
    "lease": lambda store: store.leases.claim(OnSession("waits"), owner_id="w1"),
    "event": append("first"),
}
"""Calls of one statement. The later ones count on those above them."""


def test_a_statement_whose_wait_is_cancelled_is_applied_and_uncertain(unconfirmed: Unconfirmed) -> None:
    unconfirmed.setup(commit("waits"))
    for what, call in FIRST.items():
        answer = unconfirmed.outcome(call)
        assert isinstance(answer, DurabilityUncertain), (what, answer)
        assert answer.outcome == "applied"
    view = unconfirmed.setup(lambda store: store.sessions.handle("waits").load())
    assert view.revision == 2
    [batch] = unconfirmed.setup(lambda store: store.queue.list("waits"))
    assert batch.state == "claimed"
    assert "first" in [event.replay_key for event in unconfirmed.setup(lambda store: store.events.recent("job"))]
    assert unconfirmed.setup(lambda store: store.leases.holder(OnSession("waits"))).owner_id == "w1"


async def _within(unconfirmed: Unconfirmed, call: Call) -> Any:
    connection: Any = await asyncpg.connect(unconfirmed.url)
    warnings: list[Any] = []
    connection.add_log_listener(lambda _, message: warnings.append(message.message))
    try:
        async with connection.transaction():
            await call(unconfirmed.store.within(connection))
    finally:
        await connection.close()
    return warnings


@pytest.mark.parametrize("what", ["turn", "work by source key", "revoked grant", "deleted artifact"])
def test_a_callers_transaction_of_nothing_but_what_was_done_waits_for_the_standby(done: Unconfirmed, what: str) -> None:
    warnings = done.outcome(lambda _: _within(done, REPEATED[what]))
    assert len(warnings) == 1, "the caller's commit did not wait"


# A role that suppresses warnings.


@pytest.fixture(scope="module")
def hushed(unconfirmed: Unconfirmed) -> str:
    """Return the URL of a role to which the server sends errors only."""
    unconfirmed.loop.drive(
        unconfirmed.watcher.execute(
            "SET synchronous_commit = local; CREATE ROLE hushed SUPERUSER LOGIN; "
            "ALTER ROLE hushed SET client_min_messages = error"
        )
    )
    return unconfirmed.url.replace("//postgres@", "//hushed@")


@pytest.mark.parametrize("options", [{}, {"pooler": "transaction"}], ids=["direct", "pooler"])
def test_a_role_that_hides_warnings_does_not_hide_an_unconfirmed_commit(
    unconfirmed: Unconfirmed, hushed: str, options: dict[str, Any]
) -> None:
    store = unconfirmed.open(hushed, **options)
    for turn_id in ("h1", "h2", "h2"):
        answer = unconfirmed.outcome(commit(turn_id=turn_id), store)
        assert isinstance(answer, DurabilityUncertain), answer


def test_a_pool_of_the_caller_that_hides_warnings_does_not_hide_an_unconfirmed_commit(
    unconfirmed: Unconfirmed, hushed: str
) -> None:
    async def create_pool() -> Any:
        return await asyncpg.create_pool(hushed, min_size=1, max_size=2, statement_cache_size=256)

    pool = unconfirmed.loop.drive(create_pool())
    store = unconfirmed.open(pool)
    for turn_id in ("l1", "l2", "l2"):
        answer = unconfirmed.outcome(commit(turn_id=turn_id), store)
        assert isinstance(answer, DurabilityUncertain), answer

    async def look() -> tuple[str, str]:
        """Return the settings of the caller's connection, which the store leaves unchanged."""
        names = ("client_min_messages", "lock_timeout")
        first, second = [await pool.fetchval(f"SHOW {name}") for name in names]
        await pool.close()
        return first, second

    assert unconfirmed.loop.drive(look()) == ("error", "0")
