"""A connection serves one operation at a time, is dropped when in doubt, and never outlives its maximum age."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.driver_errors import DriverFailure
from holdfast.backends.postgres.pool import Pool
from holdfast.errors import PoolTimeout, StoreClosed
from holdfast.records.options import PostgresOptions


class Fake:
    """A connection that does nothing."""

    def __init__(self) -> None:
        self.closed = False
        self.terminated = False

    def is_closed(self) -> bool:
        return self.closed or self.terminated

    async def close(self, *, timeout: float | None = None) -> None:
        self.closed = True

    def terminate(self) -> None:
        self.terminated = True


class Maker:
    """Makes connections, and counts them."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.made: list[Fake] = []
        self.error = error

    async def __call__(self, timeout_s: float) -> Any:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.made.append(Fake())
        return self.made[-1]


def pool_of(maker: Maker, **options: Any) -> Pool:
    return Pool(maker, PostgresOptions(**options))


async def one_at_a_time() -> None:
    maker = Maker()
    pool = pool_of(maker, max_connections=3)
    used: set[Any] = set()

    async def use() -> None:
        connection = await pool.acquire()
        assert connection not in used
        used.add(connection)
        await asyncio.sleep(0.001)
        used.remove(connection)
        await pool.release(connection)

    await asyncio.gather(*(use() for _ in range(50)))
    assert len(maker.made) == 3
    await pool.close()
    assert all(connection.is_closed() for connection in maker.made)


def test_a_connection_has_one_user_and_there_are_never_more_than_allowed() -> None:
    asyncio.run(one_at_a_time())


def test_a_connection_on_its_way_to_a_waiter_leaves_no_room_for_another() -> None:
    async def body() -> None:
        maker = Maker()
        pool = pool_of(maker, max_connections=1, acquire_timeout_ms=1_000)
        held = await pool.acquire()
        waiting = asyncio.ensure_future(pool.acquire())
        await asyncio.sleep(0)
        newcomer = asyncio.ensure_future(pool.acquire())
        await pool.release(held)
        # The newcomer runs before the waiter does: no other call waits, and no connection is idle.
        assert await waiting is held
        await pool.release(held)
        assert await newcomer is held
        assert (len(maker.made), pool.size) == (1, 1)

    asyncio.run(body())


def test_a_connection_on_its_way_to_a_waiter_that_is_cancelled_serves_the_next() -> None:
    async def body() -> None:
        pool = pool_of(Maker(), max_connections=1, acquire_timeout_ms=1_000)
        held = await pool.acquire()
        waiting, next_one = asyncio.ensure_future(pool.acquire()), asyncio.ensure_future(pool.acquire())
        await asyncio.sleep(0)
        await pool.release(held)
        waiting.cancel()
        assert await next_one is held
        await pool.release(held)
        assert await pool.acquire() is held
        assert pool.size == 1

    asyncio.run(body())


def test_a_caller_that_waits_too_long_gets_a_pool_timeout_and_others_continue() -> None:
    async def body() -> None:
        pool = pool_of(Maker(), max_connections=1, acquire_timeout_ms=30)
        held = await pool.acquire()
        with pytest.raises(PoolTimeout, match="max_connections"):
            await pool.acquire()
        waiting = asyncio.ensure_future(pool.acquire())
        await asyncio.sleep(0)
        await pool.release(held)
        assert await waiting is held

    asyncio.run(body())


def test_waiters_are_served_in_the_order_of_asking() -> None:
    async def body() -> None:
        pool = pool_of(Maker(), max_connections=1)
        held = await pool.acquire()
        order: list[int] = []

        async def use(number: int) -> None:
            connection = await pool.acquire()
            order.append(number)
            await pool.release(connection)

        tasks = [asyncio.ensure_future(use(number)) for number in range(10)]
        await asyncio.sleep(0)
        await pool.release(held)
        await asyncio.gather(*tasks)
        assert order == [*range(10)]

    asyncio.run(body())


@pytest.mark.parametrize("served", [False, True])
def test_a_cancelled_waiter_takes_nothing_with_it(served: bool) -> None:
    async def body() -> None:
        pool = pool_of(Maker(), max_connections=1, acquire_timeout_ms=500)
        held = await pool.acquire()
        waiting = asyncio.ensure_future(pool.acquire())
        await asyncio.sleep(0)
        if served:
            await pool.release(held)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        if not served:
            await pool.release(held)
        assert await pool.acquire() is held

    asyncio.run(body())


def test_a_dropped_connection_makes_room_for_the_next_waiter() -> None:
    async def body() -> None:
        maker = Maker()
        pool = pool_of(maker, max_connections=1)
        held = await pool.acquire()
        waiting = asyncio.ensure_future(pool.acquire())
        await asyncio.sleep(0)
        await pool.discard(held)
        assert await waiting is maker.made[1]
        assert maker.made[0].closed

    asyncio.run(body())


def test_a_connection_that_cannot_be_made_leaves_its_place_to_others() -> None:
    async def body() -> None:
        maker = Maker(ConnectionRefusedError())
        pool = pool_of(maker, max_connections=1)
        for _ in range(3):
            with pytest.raises(DriverFailure):
                await pool.acquire()
        maker.error = None
        assert await pool.acquire() is maker.made[0]

    asyncio.run(body())


def test_a_connection_is_replaced_when_its_time_is_up() -> None:
    async def body() -> None:
        maker = Maker()
        pool = pool_of(maker, max_lifetime_ms=30)
        held = await pool.acquire()
        await asyncio.sleep(0.04)
        await pool.release(held)
        assert await pool.acquire() is not held
        await pool.close()
        assert maker.made[0].closed

    asyncio.run(body())


def test_connections_without_a_limit_are_kept() -> None:
    async def body() -> None:
        maker = Maker()
        pool = pool_of(maker, max_lifetime_ms=None, idle_timeout_ms=None)
        held = await pool.acquire()
        await pool.release(held)
        for pooled in pool._idle:  # as if years had passed
            pooled.opened_s -= 1e9
            pooled.idle_since_s -= 1e9
        pool._clean_up()
        assert await pool.acquire() is held
        await pool.release(held)
        await pool.close()

    asyncio.run(body())


@pytest.mark.parametrize("pooler", ["none", "transaction"])
def test_timeouts_of_none_limit_nothing(clean_postgres_url: str, pooler: Any) -> None:
    options = PostgresOptions(
        idle_timeout_ms=None, max_lifetime_ms=None, lock_timeout_ms=None, statement_timeout_ms=None, pooler=pooler
    )

    async def settings() -> tuple[str, str]:
        backend = await PostgresBackend.open(clean_postgres_url, options, None)

        async def look(transaction: Any) -> tuple[str, str]:
            runner = transaction._runner
            [(lock,)] = await runner._ask(runner.connection.fetch, "SHOW lock_timeout", timeout_s=None)
            [(statement,)] = await runner._ask(runner.connection.fetch, "SHOW statement_timeout", timeout_s=None)
            assert runner._timeout_s is None
            return lock, statement

        try:
            return await backend.write(look)
        finally:
            await backend.close()

    assert asyncio.run(settings()) == ("0", "0")


def test_unused_connections_are_closed_but_for_the_minimum() -> None:
    async def body() -> None:
        maker = Maker()
        pool = pool_of(maker, min_connections=1, idle_timeout_ms=20)
        await pool.fill()
        held = [await pool.acquire() for _ in range(4)]
        for connection in held:
            await pool.release(connection)
        deadline = time.monotonic() + 5
        while pool.size > 1 and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert pool.size == 1
        await asyncio.sleep(0.1)
        assert sum(not connection.is_closed() for connection in maker.made) == 1
        await pool.close()

    asyncio.run(body())


def test_a_closed_pool_refuses_waiting_and_later_callers() -> None:
    async def body() -> None:
        maker = Maker()
        pool = pool_of(maker, max_connections=1)
        held = await pool.acquire()
        waiting = asyncio.ensure_future(pool.acquire())
        await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(StoreClosed):
            await waiting
        with pytest.raises(StoreClosed):
            await pool.acquire()
        await pool.release(held)
        await asyncio.sleep(0)
        assert maker.made[0].is_closed()

    asyncio.run(body())


# With a server.


def connections(administrator: Any) -> int:
    [(count,)] = administrator.rows(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'"
    )
    return int(count)


def test_a_store_opens_no_more_connections_than_it_may_and_closes_them(open_store: Any, administrator: Any) -> None:
    store = open_store(max_connections=3)

    async def many() -> None:
        await asyncio.gather(*(store.backend.read(lambda tx: tx.find_session("chat")) for _ in range(40)))

    store.loop.drive(many())
    assert connections(administrator) <= 3
    store.close()
    deadline = time.monotonic() + 5
    while connections(administrator) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert connections(administrator) == 0


def test_a_pool_of_the_caller_is_used_and_not_closed(clean_postgres_url: str) -> None:
    async def body() -> None:
        pool = await asyncpg.create_pool(clean_postgres_url, min_size=0, max_size=2)
        async with holdfast.open(pool, options=PostgresOptions(lock_timeout_ms=777)) as store:
            receipt = await store.sessions.handle("chat").commit(holdfast.Commit())
            assert receipt.revision == 1
            with pytest.raises(holdfast.WaitTimeout):
                await store.queue.wait("chat", timeout_ms=50)
        assert await pool.fetchval("SELECT count(*) FROM holdfast.revisions") == 1
        assert await pool.fetchval("SHOW lock_timeout") == "0", "nothing of ours stays on a caller's connection"
        await pool.close()

    asyncio.run(body())


def test_no_connection_is_held_while_a_caller_waits(open_store: Any, clean_postgres_url: str) -> None:
    async def body() -> None:
        async with holdfast.open(clean_postgres_url, options=PostgresOptions(max_connections=1)) as store:
            waiters = [asyncio.ensure_future(store.queue.wait(f"s{n}", timeout_ms=20_000)) for n in range(5)]
            await asyncio.sleep(0.05)
            for n in range(5):
                await store.queue.enqueue(holdfast.WorkDraft(session_id=f"s{n}", payloads=[n]))
            await asyncio.wait_for(asyncio.gather(*waiters), 10)

    asyncio.run(body())
