"""Losing a connection of the caller's pool during a write has the effects of losing one of the store's own pool.

The pool takes a lost connection back at once, and from then on the driver refuses every call on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

import asyncpg
import pytest
from tests.backends.postgres.test_lost_answers import append, commit, enqueue, is_unknown, load, logged, meta, queued
from tests.backends.postgres.wire import Cut, Wire

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.backends.postgres.connection import statements_of
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop

Call = Callable[[Store], Awaitable[Any]]
Owner = Literal["our pool", "the caller's pool"]

CONNECTIONS = 2
TIMEOUT_S = 20
EVERYTHING = "LOCK TABLE holdfast.sessions, holdfast.processes, holdfast.leases IN ACCESS EXCLUSIVE MODE"
WAITERS = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


class Losable:
    """A store behind a wire, on our pool or the caller's; a connection that locks; one that terminates others."""

    def __init__(self, url: str, loop: EventLoop, owner: Owner) -> None:
        self.loop = loop
        self.wire = Wire(url, statements_of("holdfast"), loop)
        self.pool: Any = None
        where: Any = self.wire.url
        if owner == "the caller's pool":
            where = self.pool = loop.drive(_pool(self.wire.url))
        options = PostgresOptions(max_connections=CONNECTIONS, acquire_timeout_ms=5_000)
        self.backend = loop.drive(PostgresBackend.open(where, options, None))
        self.store = Store(Context(self.backend, holdfast.Limits()))
        self.locker: Any = loop.drive(asyncpg.connect(url))
        self.administrator: Any = loop.drive(asyncpg.connect(url))

    def close(self) -> None:
        self.loop.drive(self.backend.close())
        if self.pool is not None:
            self.loop.drive(self.pool.close())
        for connection in (self.locker, self.administrator):
            self.loop.drive(connection.close())
        self.wire.close()

    def do(self, call: Call) -> Any:
        return self.loop.drive(call(self.store))

    def cut(self, statement: str, when: Cut, call: Call) -> Any:
        """Cut the connection at the statement; return the caller's answer or its typed error."""
        self.wire.cut(statement, when)
        try:
            answer = self.do(call)
        except holdfast.HoldfastError as error:
            answer = error
        assert self.wire.cut_done == [statement], f"the wire was never cut: {self.wire.trips}"
        self.wire.cut_done.clear()
        return answer

    def terminated(self, call: Call) -> Any:
        """Terminate the server process while the call waits for a lock; return the call's answer."""
        return self.loop.drive(self._terminated(call))

    async def _terminated(self, call: Call) -> Any:
        async with self.locker.transaction():
            await self.locker.execute(EVERYTHING)
            answer = asyncio.ensure_future(call(self.store))
            deadline_s = time.monotonic() + TIMEOUT_S
            while not await self.administrator.fetchval(f"SELECT count(pg_terminate_backend(pid)) {WAITERS}"):
                assert time.monotonic() < deadline_s, "nothing waits for the lock"
        return await answer


async def _pool(url: str) -> Any:
    return await asyncpg.create_pool(url, min_size=1, max_size=CONNECTIONS)


@pytest.fixture(params=["our pool", "the caller's pool"])
def losable(clean_postgres_url: str, loop: EventLoop, request: pytest.FixtureRequest) -> Iterator[Losable]:
    made = Losable(clean_postgres_url, loop, request.param)
    fill(made)
    yield made
    made.close()


def fill(losable: Losable) -> None:
    losable.do(commit(turn_id="t1"))
    losable.do(commit("warm"))
    types = [holdfast.events.EventType("progress")]
    losable.do(
        lambda store: store.processes.register(
            holdfast.ProcessRegistration("job", holdfast.processes.External(), event_types=types)
        )
    )


CALLS: dict[str, tuple[Call, Call]] = {
    "turn": (commit(turn_id="t2"), commit()),
    "work": (enqueue(source_key="k"), enqueue()),
    "event": (append(replay_key="k"), append()),
}
"""Calls with a key, which find their own trace when they are run again, and the same without one."""

EACH = pytest.mark.parametrize("kind", CALLS)


def stored(losable: Losable, kind: str) -> int:
    """Count what the call adds: turns after the first, batches, events."""
    if kind == "turn":
        return int(losable.do(load()).revision) - 1
    return len(losable.do(queued if kind == "work" else logged))


def statement_of(losable: Losable, kind: str) -> str:
    """Name the statement that makes the call durable; a caller's connection runs it in a transaction."""
    if losable.pool is not None:
        return "commit"
    return {"turn": "commit_turn", "work": "enqueue_batch", "event": "append_event"}[kind]


@EACH
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_write_with_a_key_is_answered_once_it_is_found(losable: Losable, kind: str, when: Cut) -> None:
    answer = losable.cut(statement_of(losable, kind), when, CALLS[kind][0])
    assert not isinstance(answer, holdfast.HoldfastError)
    assert stored(losable, kind) == 1


@EACH
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_write_without_a_key_is_in_doubt_and_applied_at_most_once(losable: Losable, kind: str, when: Cut) -> None:
    assert is_unknown(losable.cut(statement_of(losable, kind), when, CALLS[kind][1]))
    assert stored(losable, kind) == (1 if when == "after" else 0)


def test_a_connection_that_is_lost_between_two_statements_is_replaced(losable: Losable) -> None:
    losable.cut("now_ms", "after", meta("mine"))
    assert losable.do(lambda store: store.sessions.handle("chat").meta()).name == "mine"


@EACH
def test_a_write_whose_server_process_is_terminated_is_run_again(losable: Losable, kind: str) -> None:
    # More often than there are connections: none of them may leak.
    for number in range(1, CONNECTIONS + 2):
        key = {"turn": {"turn_id": f"t{number + 1}"}, "work": {"source_key": str(number)}}
        call = {"turn": commit, "work": enqueue, "event": append}[kind](**key.get(kind, {"replay_key": str(number)}))
        losable.terminated(call)
        assert stored(losable, kind) == number
    if losable.pool is not None:
        losable.loop.drive(losable.backend.close())
        assert losable.pool.get_idle_size() == losable.pool.get_size()
