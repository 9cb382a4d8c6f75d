"""A waiter misses no change, also when the listening connection fails."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.backends.postgres import listener as listening
from holdfast.backends.postgres import notifier as notifying
from holdfast.backends.postgres.listener import Listener
from holdfast.backends.postgres.notifier import Notifier, channel_of, digest
from holdfast.signals import Signals

LISTENERS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'holdfast' AND query ILIKE 'LISTEN%'
"""
SOON_S = 0.7
"""Sooner than the poll: whatever happens within this time was pushed."""


async def tell(transaction: Any) -> None:
    transaction.notify("topic")


def wait_for(condition: Any, within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_a_connection_listens_only_while_there_is_a_waiter(
    open_store: Any, administrator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("QUIET_S", "CHECK_EVERY_S"):
        monkeypatch.setattr(listening, pause, 0.05)
    store = open_store()
    store.write(tell)
    assert administrator.rows(LISTENERS) == []
    changes = [store.backend.watch(f"topic-{number}") for number in range(20)]
    wait_for(lambda: len(administrator.rows(LISTENERS)) == 1)
    for change in changes:
        change.cancel()
    wait_for(lambda: administrator.rows(LISTENERS) == [])
    change = store.backend.watch("topic")
    wait_for(lambda: len(administrator.rows(LISTENERS)) == 1)
    change.cancel()


def test_a_change_in_another_store_is_pushed(open_store: Any, administrator: Any) -> None:
    one, other = open_store(), open_store()
    one.backend.watch("warm up")
    wait_for(lambda: len(administrator.rows(LISTENERS)) == 1)
    time.sleep(0.05)
    for _ in range(5):
        change = one.backend.watch("topic")
        began = time.monotonic()
        other.write(tell)
        change.result(10)
        assert time.monotonic() - began < SOON_S


def test_a_change_between_the_watch_and_the_listening_is_not_lost(open_store: Any) -> None:
    for _ in range(5):
        one, other = open_store(), open_store()
        change = one.backend.watch("topic")
        # The first watch of a store: it cannot listen yet.
        other.write(tell)
        began = time.monotonic()
        change.result(10)
        assert time.monotonic() - began < SOON_S
        one.close()
        other.close()


def test_a_change_here_needs_no_connection_to_wake_waiters_here(open_store: Any) -> None:
    store = open_store(pooler="transaction")
    change = store.backend.watch("topic")
    began = time.monotonic()
    store.write(tell)
    change.result(10)
    assert time.monotonic() - began < SOON_S


def test_a_listener_that_was_terminated_comes_back_and_catches_up(open_store: Any, administrator: Any) -> None:
    one, other = open_store(), open_store()
    one.backend.watch("warm up")
    wait_for(lambda: len(administrator.rows(LISTENERS)) == 1)
    for _ in range(3):
        [(pid,)] = administrator.rows(LISTENERS)
        change = one.backend.watch("topic")
        administrator.rows("SELECT pg_terminate_backend($1, 5000)", pid)
        other.write(tell)
        change.result(10)
        one.backend.watch("warm up")
        wait_for(lambda pid=pid: [row[0] for row in administrator.rows(LISTENERS)] not in ([], [pid]))


def test_a_notify_that_never_came_is_made_good_by_the_poll(open_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silence(notifier: Notifier, payload: str) -> None: ...

    for pause in ("SAFETY_POLL_S", "CHECK_EVERY_S"):
        monkeypatch.setattr(listening, pause, 0.05)
    one, other = open_store(), open_store()
    change = one.backend.watch("topic")
    time.sleep(0.3)
    change = one.backend.watch("topic")
    monkeypatch.setattr(Notifier, "_try_to_send", silence)
    other.write(tell)
    change.result(5)


def test_the_poll_asks_all_waiters_in_one_read_and_wakes_those_that_missed_a_change(
    open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silence(notifier: Notifier, payload: str) -> None: ...

    monkeypatch.setattr(Notifier, "_try_to_send", silence)
    store = open_store()
    backend, listener = store.backend, store.backend._listener
    # It would wake all waiters as soon as it listens: here only the polls below do.
    monkeypatch.setattr(listener, "wake", lambda: None)
    reads: list[Any] = []

    async def read(operation: Any) -> Any:
        reads.append(operation)
        return await backend.read(operation)

    def poll() -> None:
        asyncio.run_coroutine_threadsafe(listener._poll(), backend._loop).result(10)

    async def answers(found: bool, transaction: Any) -> bool:
        assert transaction.now_ms > 0
        return found

    listener._read = read
    missed, received, mute = (backend.watch(name) for name in ("missed", "received", "mute"))
    missed.concerns, received.concerns = partial(answers, True), partial(answers, False)
    poll()
    assert (missed.done(), received.done(), mute.done()) == (True, False, True)
    assert len(reads) == 1

    async def fails(transaction: Any) -> bool:
        raise holdfast.InvalidRequest("x", "cannot tell")

    received.concerns = fails
    poll()
    assert received.done(), "a waiter that cannot tell looks itself"


class Skipping(selectors.DefaultSelector):
    """A selector that never blocks: it moves the loop's time to the next timer."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nobody waits for a time"
        self.now_s += timeout
        return super().select(0)


def run_skipping(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine on a loop that skips every wait."""
    selector = Skipping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(body())


class Quiet:
    """A live connection on which no notification ever arrives."""

    def __init__(self) -> None:
        self.pinged_s: list[float] = []

    async def add_listener(self, channel: str, callback: Any) -> None: ...

    def add_termination_listener(self, callback: Any) -> None: ...

    async def fetch(self, query: str, *, timeout: float) -> list[Any]:
        self.pinged_s.append(asyncio.get_running_loop().time())
        return []


async def unread(_: Any) -> Any:
    raise AssertionError("no waiter can tell if a change concerns it")


@pytest.mark.parametrize("listens", [True, False])
def test_a_waiter_polls_every_half_minute_and_every_second_where_nothing_can_listen(listens: bool) -> None:
    connection, left = Quiet(), list[Any]()

    async def connect() -> Any:
        return connection

    async def disconnect(connection: Any) -> None:
        left.append(connection)

    async def body() -> None:
        signals, woken_s = Signals(), list[float]()
        listener = Listener(
            signals,
            lambda _: None,
            unread,
            channel="c",
            ping="SELECT 1",
            connect=connect if listens else None,
            disconnect=disconnect,
        )
        began_s = asyncio.get_running_loop().time()
        for _ in range(5):
            change = asyncio.wrap_future(signals.watch("topic"))
            listener.wake()
            await change
            woken_s.append(round(asyncio.get_running_loop().time() - began_s, 3))
        # First when it begins to listen, then by the poll.
        assert woken_s == ([0, 30, 60, 90, 120] if listens else [1, 2, 3, 4, 5])
        await listener.close()
        assert left == ([connection] if listens else [])

    run_skipping(body)
    assert [round(at_s) for at_s in connection.pinged_s] == ([*range(5, 121, 5)] if listens else [])


@pytest.mark.parametrize("apart", [False, True])
def test_behind_a_pooler_waiters_poll_or_listen_past_it(
    open_store: Any, clean_postgres_url: str, administrator: Any, apart: bool
) -> None:
    one = open_store(pooler="transaction", listen_url=clean_postgres_url if apart else None)
    other = open_store(pooler="transaction")
    one.backend.watch("warm up")
    if apart:
        wait_for(lambda: len(administrator.rows(LISTENERS)) == 1)
        time.sleep(0.05)
    change = one.backend.watch("topic")
    began = time.monotonic()
    other.write(tell)
    change.result(10)
    assert not apart or time.monotonic() - began < SOON_S
    assert len(administrator.rows(LISTENERS)) == int(apart)


def test_a_listener_whose_server_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("CHECK_EVERY_S", "PING_EVERY_S"):
        monkeypatch.setattr(listening, pause, 0.01)
    monkeypatch.setattr(listening, "RETRY_FIRST_S", 0.001)

    class Mute:
        """A connection whose other end vanished."""

        async def add_listener(self, channel: str, callback: Any) -> None: ...

        def add_termination_listener(self, callback: Any) -> None: ...

        async def fetch(self, query: str, *, timeout: float) -> list[Any]:
            raise TimeoutError

    made: list[Mute] = []
    left: list[Any] = []

    async def connect() -> Any:
        made.append(Mute())
        return made[-1]

    async def disconnect(connection: Any) -> None:
        left.append(connection)

    async def body() -> None:
        signals = Signals()
        listener = Listener(
            signals, lambda _: None, unread, channel="c", ping="SELECT 1", connect=connect, disconnect=disconnect
        )
        stop = time.monotonic() + 5
        while len(made) < 2 and time.monotonic() < stop:
            signals.watch("topic")
            listener.wake()
            await asyncio.sleep(0.01)
        assert left[0] is made[0]
        await listener.close()
        assert left == made

    asyncio.run(body())


def test_an_idle_listener_sleeps_until_its_next_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps_s: list[float | None] = []
    wait_real = asyncio.wait

    async def noting(awaited: Any, *, timeout: float | None = None) -> Any:
        if timeout is not None:  # not the wait for the end of the task
            sleeps_s.append(timeout)
        return await wait_real(awaited, timeout=timeout)

    class Quiet:
        """A connection that never delivers a notification."""

        async def add_listener(self, channel: str, callback: Any) -> None: ...

        def add_termination_listener(self, callback: Any) -> None: ...

    async def connect() -> Any:
        return Quiet()

    async def disconnect(connection: Any) -> None: ...

    async def body() -> None:
        signals = Signals()
        listener = Listener(
            signals, lambda _: None, unread, channel="c", ping="SELECT 1", connect=connect, disconnect=disconnect
        )
        first = signals.watch("topic")
        listener.wake()
        # A listener wakes all waiters once when it begins.
        await asyncio.wait_for(asyncio.wrap_future(first), 60)
        while not sleeps_s:
            await asyncio.sleep(0)
        await listener.close()
        assert sleeps_s == [pytest.approx(listening.PING_EVERY_S)]

    monkeypatch.setattr(asyncio, "wait", noting)
    asyncio.run(body())


def test_topics_of_many_commits_are_sent_together_and_never_twice_in_two_milliseconds() -> None:
    async def body() -> None:
        sent: list[tuple[float, str]] = []

        async def send(payload: str) -> None:
            sent.append((time.monotonic(), payload))

        notifier = Notifier(send)
        for number in range(1_000):
            notifier.add([digest(f"topic-{number}")])
            if number % 100 == 0:
                await asyncio.sleep(0)
        await notifier.close()
        assert all(len(payload) < 8_000 for _, payload in sent)
        answer = [one for _, payload in sent for one in payload.partition(":")[2].split(",")]
        assert sorted(answer) == sorted(digest(f"topic-{number}") for number in range(1_000))
        assert len(sent) < 20
        assert notifier.from_others(sent[0][1]) == [], "its own messages are no news"
        assert Notifier(send).from_others(sent[0][1]) == sent[0][1].partition(":")[2].split(",")

    asyncio.run(body())


def test_notifications_become_rare_where_each_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ms, pauses_ms = [0.0], list[int]()
    sleep = asyncio.sleep

    async def send(_payload: str) -> None:
        clock_ms[0] += 4

    async def noting(seconds: float) -> None:
        pauses_ms.append(round(seconds * 1000))
        if len(pauses_ms) < 8:
            notifier.add([digest("changes keep coming")])
        await sleep(0)

    async def body() -> None:
        notifier.add([digest("first")])
        await notifier.close()

    notifier = Notifier(send)
    monkeypatch.setattr(notifying, "time", SimpleNamespace(monotonic=lambda: clock_ms[0] / 1000))
    monkeypatch.setattr(asyncio, "sleep", noting)
    asyncio.run(body())
    assert pauses_ms == [2, 4, 8, 16, 32, 40, 40, 40]


def test_a_refused_operation_wakes_no_waiter(store: Any) -> None:
    async def failing(transaction: Any) -> None:
        transaction.notify("topic")
        raise LookupError

    change = store.backend.watch("topic")
    time.sleep(0.2)
    change = store.backend.watch("topic")
    with pytest.raises(LookupError):
        store.write(failing)
    assert not change.done()


def test_waits_for_work_and_for_runs_that_are_there_end_at_once(clean_postgres_url: str) -> None:
    with holdfast.open_blocking(clean_postgres_url) as store:
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["hello"]))
        store.queue.wait_next(timeout_ms=60_000)
        store.processes.start("research", {"question": "why?"})
        store.processes.wait_next(timeout_ms=60_000)


def test_channels_of_two_schemas_differ_and_fit() -> None:
    assert channel_of("a") != channel_of("b")
    assert len(channel_of("a" * 63)) < 64


def test_the_notify_is_not_part_of_the_commit(open_store: Any, clean_postgres_url: str) -> None:
    """A NOTIFY inside the commit's transaction would hold a database-wide lock until the commit is on disk."""
    store = open_store()
    received: list[str] = []

    async def body() -> None:
        connection = await asyncpg.connect(clean_postgres_url)
        await connection.add_listener(channel_of("holdfast"), lambda *said: received.append(said[3]))

        async def operation(transaction: Any) -> None:
            transaction.notify("topic")
            assert await transaction._runner.all("ping") is not None

        await store.backend.write(operation)
        for _ in range(100):
            await connection.fetch("SELECT 1")
            if received:
                break
            await asyncio.sleep(0.01)
        await connection.close()

    store.loop.drive(body())
    assert [payload.partition(":")[2] for payload in received] == [digest("topic")]
