"""Fault: a crash after transactions of the application's own. Its acknowledged rows are there, and match ours.

The application inserts an order, and through `store.within` its turn, work and event. Occasionally it undoes a part
with a savepoint, or all of it with a rollback.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import holdfast
from holdfast.statements import Statements, load_statements
from holdfast.torture.children import Child, Port
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, PostgresScratch, Scratch
from holdfast.torture.servers import no_server
from holdfast.torture.soundness import unsound

ORDERS = "orders"
"""The session and the process that the orders belong to."""

CRASHES_A_STORE = 2
LEAST_RECEIVED, MOST_RECEIVED = 5, 20
"""Numbers of orders that are acknowledged before a crash: any that is not on disk by then is lost."""

PAGE = 1_000


def crash_within(scratch: Scratch, seed: int) -> Ran:
    """Crash the server, or on SQLite kill the process, under an application with rows of its own."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    if scratch.kind == "sqlite":
        return Ran(CRASHES_A_STORE, tuple(_run(scratch.fresh(), rng, None)))
    server = scratch.server()
    with PostgresScratch(server.url, scratch.folder) as own:
        return Ran(CRASHES_A_STORE, tuple(_run(own.fresh(), rng, server)))


def _run(place: Place, rng: random.Random, server: Any) -> list[str]:
    wrong: list[str] = []
    reported: list[int] = []
    asyncio.run(_prepare(place))
    for _ in range(CRASHES_A_STORE):
        with Child(application, place, max(reported, default=0) + 1) as child:
            reported += [child.receive() for _ in range(rng.randrange(LEAST_RECEIVED, MOST_RECEIVED))]
            if server is not None:
                server.stop("immediate")
            reported += child.kill()
            if server is not None:
                server.start()
        found = asyncio.run(_orders(place))
        with place.open() as store:
            wrong += check(store, reported, found)
            wrong += unsound(store)
        # An order that was stored and never acknowledged is not sent again.
        reported = found
    return wrong


def check(store: holdfast.BlockingStore, reported: Sequence[int], found: Sequence[int]) -> list[str]:
    """Return the problems of a store beside which these orders were found, if these were acknowledged."""
    lost = sorted(set(reported) - set(found))
    wrong = [f"I1: the orders {lost} were acknowledged, and are gone"] if lost else []
    view = store.sessions.handle(ORDERS).load()
    kept: dict[str, list[Any]] = {
        "the work": [int(batch.source_key or 0) for batch in store.queue.list(ORDERS, limit=PAGE)],
        "the log": [event.payload for event in store.events.after(ORDERS, limit=PAGE)],
        "the turns": [] if view is None else [node.payload for node in view.graph.nodes],
    }
    wrong += [
        f"I2: {what} speaks of {ours}, and the orders are {found}" for what, ours in kept.items() if ours != found
    ]
    return wrong


# The application, in a process of its own.


def application(port: Port, place: Place, first: int) -> None:
    """Place one order after another, and report each commit, until the connection is lost."""
    asyncio.run(_place_orders(port, place, first))


async def _place_orders(port: Port, place: Place, first: int) -> None:
    from asyncpg import InterfaceError, PostgresError

    number = first
    try:
        async with place.open_async() as store, _connected(place) as caller:
            while True:
                if await _place_order(store, caller, number):
                    port.send(number)
                    number += 1
    except (holdfast.HoldfastError, PostgresError, InterfaceError, OSError):
        return  # the server is gone


async def _place_order(store: holdfast.Store, caller: Caller, number: int) -> bool:
    """Run one transaction. Return False if the application rolled it back."""
    rng = random.Random(number)  # noqa: S311 - the same number does the same
    undone, part_undone = number % 4 == 0 and caller.undone != number, rng.random() < 0.5
    await caller.run("begin")
    within = store.within(caller.connection)
    await caller.run("insert_order", number)
    await _accept(within, number)
    if part_undone:
        await caller.run("save_part")
        await caller.run("insert_order", -number)
        await within.queue.enqueue(holdfast.WorkDraft(session_id=ORDERS, payloads=[-number], source_key=str(-number)))
        await caller.run("undo_part")
    caller.undone = number if undone else 0
    await caller.run("rollback" if undone else "commit")
    return not undone


async def _accept(within: holdfast.Store, number: int) -> None:
    work = holdfast.WorkDraft(payloads=[number], source_key=str(number))
    node = holdfast.Node(str(number), parent=str(number - 1) if number > 1 else None, payload=number)
    turn = holdfast.Commit(turn_id=str(number), graph=holdfast.Append([node], leaf=node.id), enqueues=[work])
    await within.sessions.handle(ORDERS).commit(turn)
    await within.events.append(ORDERS, "ordered", number, replay_key=str(number))


class Caller:
    """A connection of the application's, with its statements."""

    def __init__(self, connection: Any, statements: Statements, *, blocks: bool) -> None:
        self.connection = connection
        self.undone = 0
        """The order that was rolled back last. It is not rolled back again."""
        self._statements = statements
        self._blocks = blocks

    async def run(self, name: str, *bindings: Any) -> list[Any]:
        """Run one of the application's statements, and return its rows."""
        text = self._statements[name]
        if self._blocks:
            return list(self.connection.execute(text, bindings))
        return list(await self.connection.fetch(text, *bindings))


@asynccontextmanager
async def _connected(place: Place) -> AsyncGenerator[Caller, None]:
    if isinstance(place.options, holdfast.SqliteOptions):
        import apsw

        connection = apsw.Connection(place.url)
        try:
            yield Caller(connection, _statements("main", "sqlite"), blocks=True)
        finally:
            connection.close()
        return
    import asyncpg

    caller: Any = await asyncpg.connect(place.url)
    try:
        yield Caller(caller, _statements(place.options.schema, "postgres"), blocks=False)
    finally:
        caller.terminate()


def _statements(schema: str, kind: str) -> Statements:
    texts = load_statements("holdfast.torture", schema=schema)
    # SQLite takes write transactions only.
    return Statements({**texts, "begin": texts["begin_immediate" if kind == "sqlite" else "begin"]})


async def _prepare(place: Place) -> None:
    kinds = [holdfast.events.EventType("ordered")]
    async with place.open_async() as store, _connected(place) as caller:
        await caller.run("make_orders")
        await store.processes.register(
            holdfast.ProcessRegistration(ORDERS, holdfast.processes.External(), event_types=kinds)
        )


async def _orders(place: Place) -> list[int]:
    async with _connected(place) as caller:
        return [row[0] for row in await caller.run("list_orders")]


def skip_reason(scratch: Scratch) -> str | None:
    """Return why it cannot be run here: on PostgreSQL a private server is needed."""
    return no_server(scratch) if scratch.kind == "postgres" else None


WITHIN_CRASH = Fault(
    "within-crash",
    "a private server is stopped, or on SQLite the process killed, after transactions with rows of the caller's",
    ("I1", "I2", "I10"),
    {"sqlite": Numbers(6, 300), "postgres": Numbers(2, 60)},
    crash_within,
    unit="crashes",
    skip_reason=skip_reason,
)
