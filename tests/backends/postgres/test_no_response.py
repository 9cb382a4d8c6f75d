"""A server that accepts everything and never answers costs a caller its deadline, and never yields a wrong answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest
from tests.backends.postgres.wire import Cut, Wire

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions, executor, pool
from holdfast.backends.postgres.connection import statements_of
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop

Call = Callable[[Store], Awaitable[Any]]

STATEMENT_S, GRACE_S, ACQUIRE_S, CLOSE_S = 0.6, 0.1, 1.0, 0.1
SLACK_S = 5.0
"""Tolerance for other load of the machine."""

ANSWERED_S = STATEMENT_S + GRACE_S
"""Statement timeout."""

WHEN = pytest.mark.parametrize("when", ["before", "after"])


class Mutable:
    """A store behind a wire that can fall silent, and a second store that reads the result."""

    def __init__(self, url: str, loop: EventLoop, *, caller_pool: bool) -> None:
        self.loop = loop
        self.wire = Wire(url, statements_of("holdfast"), loop)
        self._pool = loop.drive(_pool(self.wire.url)) if caller_pool else None
        options = PostgresOptions(
            max_connections=2, statement_timeout_ms=int(STATEMENT_S * 1000), acquire_timeout_ms=int(ACQUIRE_S * 1000)
        )
        self.backend = loop.drive(PostgresBackend.open(self._pool or self.wire.url, options, None))
        self._other = loop.drive(PostgresBackend.open(url, PostgresOptions(max_connections=1), None))
        self.store, self.head = (Store(Context(one, holdfast.Limits())) for one in (self.backend, self._other))

    def close(self) -> None:
        self.loop.drive(self.backend.close())
        self.loop.drive(self._other.close())
        if self._pool is not None:
            self.loop.drive(self._pool.close())
        self.wire.close()

    def do(self, call: Call) -> Any:
        return self.loop.drive(call(self.store))

    def seen(self, call: Call) -> Any:
        """Run a read on the second store."""
        return self.loop.drive(call(self.head))

    def silent(self, statement: str, when: Cut, call: Call) -> tuple[Any, float]:
        """Silence the connection at the statement; return the caller's answer and the seconds that it took."""
        self.wire.fall_silent(statement, when)
        answer = self.timed(call)
        assert self.wire.silent_done == [statement], f"the wire never fell silent: {self.wire.trips}"
        return answer

    def timed(self, call: Call) -> tuple[Any, float]:
        began_s = time.monotonic()
        try:
            answer = self.do(call)
        except holdfast.HoldfastError as error:
            answer = error
        return answer, time.monotonic() - began_s

    def no_silent_connection_is_left(self) -> bool:
        """Report whether the store dropped every silent connection, so that nothing holds its end open."""
        deadline_s = time.monotonic() + CLOSE_S + SLACK_S
        while self.wire.silent_passages and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return self.wire.silent_passages == 0


async def _pool(url: str) -> Any:
    return await asyncpg.create_pool(url, min_size=0, max_size=2)


@pytest.fixture
def open_mutable(
    clean_postgres_url: str, loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Mutable]]:
    monkeypatch.setattr(executor, "GRACE_S", GRACE_S)
    monkeypatch.setattr(pool, "CLOSE_TIMEOUT_S", CLOSE_S)
    opened: list[Mutable] = []

    def open_one(*, caller_pool: bool = False) -> Mutable:
        opened.append(Mutable(clean_postgres_url, loop, caller_pool=caller_pool))
        opened[-1].do(commit(turn_id="t1"))
        opened[-1].do(commit("warm"))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def commit(session_id: str = "chat", **given: Any) -> Call:
    return lambda store: store.sessions.handle(session_id).commit(holdfast.Commit(**given))


def load(session_id: str = "chat") -> Call:
    return lambda store: store.sessions.handle(session_id).load()


def create(session_id: str) -> Call:
    return lambda store: store.sessions.create(session_id)


def history(session_id: str = "chat") -> Call:
    return lambda store: store.sessions.handle(session_id).history()


@WHEN
def test_a_turn_with_an_id_is_committed_once_on_another_connection(
    open_mutable: Callable[..., Mutable], when: Cut
) -> None:
    mutable = open_mutable()
    receipt, took_s = mutable.silent("commit_turn", when, commit(turn_id="t2", config=1))
    assert (receipt.revision, receipt.replayed) == (2, when == "after")
    assert ANSWERED_S <= took_s < ANSWERED_S + SLACK_S
    assert mutable.seen(load()).revision == 2
    assert mutable.no_silent_connection_is_left()


@WHEN
def test_a_turn_without_an_id_is_in_doubt_and_nothing_that_was_seen_is_trusted(
    open_mutable: Callable[..., Mutable], when: Cut
) -> None:
    mutable = open_mutable()
    doubt, took_s = mutable.silent("commit_turn", when, commit(config=1))
    assert isinstance(doubt, holdfast.Unavailable)
    assert doubt.outcome == "unknown"
    assert ANSWERED_S <= took_s < ANSWERED_S + SLACK_S
    assert mutable.no_silent_connection_is_left()
    stored = 2 if when == "after" else 1
    assert mutable.seen(load()).revision == stored
    mutable.wire.take()
    assert mutable.do(commit()).revision == stored + 1
    assert "show_head" in mutable.wire.take()


@pytest.mark.parametrize("caller_pool", [False, True], ids=["own pool", "caller's pool"])
@pytest.mark.parametrize(
    ("statement", "call"),
    [("gather_view", load()), ("list_revisions", history()), ("insert_session", create("new"))],
    ids=["view", "read", "write"],
)
def test_a_call_without_effect_is_repeated_on_another_connection(
    open_mutable: Callable[..., Mutable], statement: str, call: Call, caller_pool: bool
) -> None:
    mutable = open_mutable(caller_pool=caller_pool)
    answer, took_s = mutable.silent(statement, "after", call)
    assert not isinstance(answer, holdfast.HoldfastError)
    assert ANSWERED_S <= took_s < ANSWERED_S + SLACK_S
    assert mutable.no_silent_connection_is_left()
    assert mutable.do(commit()).revision == 2


@pytest.mark.parametrize("caller_pool", [False, True], ids=["own pool", "caller's pool"])
def test_a_server_that_is_silent_on_every_connection_is_given_up_in_time_and_found_again(
    open_mutable: Callable[..., Mutable], caller_pool: bool
) -> None:
    mutable = open_mutable(caller_pool=caller_pool)
    mutable.wire.all_silent = True
    calls: list[Call] = [commit(turn_id="t2"), load(), create("new")]
    for call in calls:
        given_up, took_s = mutable.timed(call)
        assert isinstance(given_up, holdfast.Unavailable), given_up
        # One statement, and one more connection.
        assert took_s < ANSWERED_S + ACQUIRE_S + SLACK_S
    mutable.wire.all_silent = False
    assert mutable.no_silent_connection_is_left()
    assert mutable.do(commit(turn_id="t2")).revision == 2
    assert mutable.seen(load()).revision == 2


def test_opening_a_store_on_a_silent_server_ends_in_time(open_mutable: Callable[..., Mutable]) -> None:
    mutable = open_mutable()
    mutable.wire.all_silent = True
    began_s = time.monotonic()
    with pytest.raises(holdfast.Unavailable, match="did not answer in time"):
        mutable.loop.drive(
            PostgresBackend.open(mutable.wire.url, PostgresOptions(acquire_timeout_ms=int(ACQUIRE_S * 1000)), None)
        )
    assert ACQUIRE_S <= time.monotonic() - began_s < ACQUIRE_S + SLACK_S
    mutable.wire.all_silent = False
