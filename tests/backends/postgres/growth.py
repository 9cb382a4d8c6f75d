"""A long session, log, backlog, limit and list of workers among others, and a count of the blocks that a call reads.

The server counts blocks for the connection that runs the call, inside functions, too. Each call runs in a transaction
of its own, as the store sends it, with the plan that the store's connection has made.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar

import asyncpg

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.backends.postgres.connection import LateRunner, StatementRunner
from holdfast.backends.postgres.thread_offload import LoopCall
from holdfast.events import EventType, Payload, WakeRule
from holdfast.processes import External, RunClaim, SignalWait
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop

Call = Callable[[Store, int], Awaitable[Any]]

ROUNDS = 3
POSITION_BITS = 32
TYPES = (
    EventType("progress"),
    EventType("news", wake=WakeRule(Payload())),
)
BLOCKS = """
SELECT sum(pg_stat_get_xact_blocks_fetched(oid))
FROM pg_class
WHERE relnamespace = 'holdfast'::regnamespace AND relkind IN ('r', 'i')
"""
FAR_MS, FAR_KEY = 4_000_000_000_000, 1_000_000_000
DAY_MS = 24 * 3_600_000


class Blocks:
    """Records how many blocks of our tables and indexes each call of a statement fetched."""

    __slots__ = ()

    noted: ClassVar[dict[str, list[int]]] = {}

    async def counted(self, runner: StatementRunner, name: str, work: Coroutine[Any, Any, Any]) -> Any:
        """Return a statement's answer, and count its blocks in a transaction."""
        connection: Any = runner.connection
        alone = not connection.is_in_transaction() and not name.startswith(("begin", "notify"))
        if alone:
            await self._send(runner, connection.execute, "BEGIN")
        before = await self._send(runner, connection.fetchval, BLOCKS)
        try:
            return await work
        finally:
            blocks = await self._send(runner, connection.fetchval, BLOCKS) - before
            self.noted.setdefault(name, []).append(int(blocks))
            if alone:
                await self._send(runner, connection.execute, "COMMIT")

    async def _send(self, runner: StatementRunner, call: Callable[[str], Awaitable[Any]], text: str) -> Any:
        return await (LoopCall(lambda: call(text)) if runner.stepping else call(text))


class Counting(Blocks, StatementRunner):
    """Counts the statements of a transaction."""

    __slots__ = ()

    async def all(self, name: str, *bindings: Any) -> Any:
        return await self.counted(self, name, StatementRunner.all(self, name, *bindings))

    async def run(self, name: str, *bindings: Any) -> int:
        return int(await self.counted(self, name, StatementRunner.run(self, name, *bindings)))


class CountingLate(Blocks, LateRunner):
    """Counts the calls of server functions."""

    __slots__ = ()

    async def all(self, name: str, *bindings: Any) -> Any:
        await self.connect()
        return await self.counted(self, name, StatementRunner.all(self, name, *bindings))


class Ground:
    """A long session and a long log among others, grown by copied rows."""

    def __init__(self, database: Any, loop: EventLoop) -> None:
        database.empty()
        self.loop, self.url = loop, database.url
        self.store = self._open()
        self.connection: Any = loop.drive(asyncpg.connect(database.url))
        for (table,) in self._rows("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'"):
            # The planner knows only the statistics that the test gathers.
            self._run(f"ALTER TABLE holdfast.{table} SET (autovacuum_enabled = false)")
        self.do(lambda store: store.sessions.handle("long").commit(turn(0)))
        kinds = holdfast.ProcessRegistration("job", External(), event_types=TYPES, wake_target=holdfast.Scope("long"))
        self.do(lambda store: store.processes.register(kinds))
        self.do(lambda store: store.events.append("job", "progress", 1, replay_key="k0"))
        self.do(lambda store: store.queue.enqueue(holdfast.WorkDraft(session_id="busy", payloads=[1], kind="backlog")))

    def lay_to_sleep(self) -> None:
        """Start a run that sleeps, among so many leases that their index has its depth from the start."""
        self.do(sleep)
        lease = self._one("leases", "kind = 'process'")
        self._copy("leases", [lease | {"resource": f"idle{number}"} for number in range(2_000)])

    def _open(self) -> Store:
        self.backend: Any = self.loop.drive(PostgresBackend.open(self.url, PostgresOptions(max_connections=1), None))
        executor = self.backend._executor
        parts = self.backend._texts, None, executor.counter
        executor.runner = lambda connection: Counting(connection, *parts)
        executor._late_runner = lambda: CountingLate(executor.connections.acquire, *parts)
        return Store(Context(self.backend, holdfast.Limits()))

    def reopen(self) -> None:
        """Reopen the store, as another process whose connection has no plans yet."""
        self.loop.drive(self.backend.close())
        self.store = self._open()

    def close(self) -> None:
        self.loop.drive(self.backend.close())
        self.loop.drive(self.connection.close())

    def do(self, call: Callable[[Store], Awaitable[Any]]) -> Any:
        return self.loop.drive(call(self.store))

    def _run(self, script: str) -> None:
        self.loop.drive(self.connection.execute(script))

    def _rows(self, statement: str, *arguments: Any) -> list[Any]:
        return self.loop.drive(self.connection.fetch(statement, *arguments))

    def _copy(self, table: str, records: list[dict[str, Any]]) -> None:
        columns = list(records[0])
        values = [tuple(record[column] for column in columns) for record in records]
        self.loop.drive(
            self.connection.copy_records_to_table(table, schema_name="holdfast", columns=columns, records=values)
        )

    def _one(self, table: str, condition: str) -> dict[str, Any]:
        [row] = self._rows(f"SELECT * FROM holdfast.{table} WHERE {condition}")
        return {name: value for name, value in row.items() if name not in ("dead", "changed_minute", "ended_at_ms")}

    def analyze(self) -> None:
        self._run("ANALYZE")

    def surround(self, count: int, *, one_family: bool) -> None:
        """Put short sessions around the long one: one turn each."""
        session = self._one("sessions", "session_id = 'long'")
        revision = self._one("revisions", f"session_key = {session['session_key']} AND revision = 1")
        node = self._rows(f"SELECT * FROM holdfast.nodes WHERE session_key = {session['session_key']} LIMIT 1")[0]
        [(first,)] = self._rows(f"SELECT setval('holdfast.session_keys', nextval('holdfast.session_keys') + {count})")
        keys = [(first - number, session["family"] if one_family else first - number) for number in range(count)]
        self._copy(
            "sessions",
            [session | {"session_key": key, "session_id": f"s{key}", "family": family} for key, family in keys],
        )
        self._copy("revisions", [revision | {"session_key": key, "family": family} for key, family in keys])
        nodes = [
            dict(node) | {"session_key": key, "family": family, "node_key": (key << POSITION_BITS) + 1}
            for key, family in keys
        ]
        self._copy("nodes", nodes)

    def grow(self, turns: int) -> None:
        """Grow the long session, the long log and the backlog to that many turns, events and batches."""
        session = self._one("sessions", "session_id = 'long'")
        key, family, before = session["session_key"], session["family"], session["revision"]
        head = self._one("revisions", f"session_key = {key} AND revision = {before}")
        last = (key << POSITION_BITS) + session["node_count"]
        node = self._one("nodes", f"family = {family} AND node_key = {last}")
        new = range(before + 1, turns + 1)
        nodes, revisions, batches = [], [], []
        position = session["node_count"]
        for number in new:
            for part in ("a", "b"):
                parent, position = position, position + 1
                keys = {"node_key": (key << POSITION_BITS) + position, "parent_key": (key << POSITION_BITS) + parent}
                nodes.append(node | keys | {"node_id": f"{part}{number}", "revision": number})
            leaf = {"leaf_key": (key << POSITION_BITS) + position, "leaf_id": f"b{number}"}
            revisions.append(head | {"revision": number, "turn_id": f"t{number}", "node_count": position} | leaf)
            batches.append(
                {
                    **{"enqueue_seq": 1_000_000 + number, "batch_id": f"done{number}", "session_key": key},
                    **{"family": family, "source_key": f"done{number}", "draft_hash": "h", "payloads": b"[1]"},
                    **{"delivery": "after_turn", "slot": "join", "merge_key": "never", "available_at_ms": 0},
                    **{"kind": "turn", "priority": 0, "claim_size": 1, "attempts": 1, "retry_at_ms": 0},
                    **{"enqueued_at_ms": number, "settled_state": "completed", "settled_at_ms": number},
                    **{"claim_fence": 1, "claim_exclusive": 0},
                }
            )
        self._copy("nodes", nodes)
        self._copy("revisions", revisions)
        self._copy("batches", batches)
        waiting = self._one("batches", "kind = 'backlog' ORDER BY enqueue_seq DESC LIMIT 1")
        fresh: dict[str, Any] = {name: None for name in waiting if name.startswith(("claim", "settled"))}
        fresh |= {"claim_fence": 0, "claim_exclusive": 0, "claim_size": 0, "claim_slot": 0, "attempts": 0}
        self._copy(
            "batches", [waiting | fresh | {"enqueue_seq": 1_000_000 + one, "batch_id": f"waiting{one}"} for one in new]
        )
        # Other sessions offer work of another kind, or work that is not due for long.
        offer = {"family": family, "priority": 0, "served": 0, "claimed_upto": 0}
        other, late = (
            {"level": 2, "kind": "other", "due_at_ms": None},
            {"level": 0, "kind": "turn", "due_at_ms": FAR_MS},
        )
        offers = [offer | {"session_key": FAR_KEY + one} | (late if one % 2 else other) for one in new]
        self._copy("ready", offers)
        self._run(f"UPDATE holdfast.sessions SET revision = {turns}, node_count = {position} WHERE session_key = {key}")
        event = self._one("events", "process_id = 'job' AND sequence = 1")
        counted = self._one("processes", "process_id = 'job'")["event_count"]
        events = [event | {"sequence": one, "replay_key": f"k{one}"} for one in range(counted + 1, turns + 1)]
        self._copy("events", events)
        self._run(f"UPDATE holdfast.processes SET event_count = {turns} WHERE process_id = 'job'")
        self.backend._executor.forget()

    def add_sleepers(self, new: range) -> None:
        """Add runs that cannot be claimed: asleep, waiting for a signal, under a lease, and ended."""
        run = self._one("processes", "process_id = 'sleeper'")
        states: list[dict[str, Any]] = [
            {"due_at_ms": FAR_MS, "claimable_at_ms": FAR_MS},
            {"due_at_ms": None, "claimable_at_ms": None},
            {"claimable_at_ms": FAR_MS, "suspended": 0, "attempt": 1, "claim_fence": 1},
            {"due_at_ms": None, "claimable_at_ms": None, "suspended": 0, "status": "completed"},
        ]
        self._copy(
            "processes",
            [
                run | states[number % 4] | {"process_id": f"sleeper{number}", "run_kind": "ab"[number % 2]}
                for number in new
            ],
        )

        lease = self._one("leases", "kind = 'process' AND resource = 'sleeper'")
        held = {"owner_id": "w2", "token_hash": "h", "expires_at_ms": FAR_MS}
        self._copy("leases", [lease | held | {"resource": f"sleeper{number}"} for number in new if number % 4 == 2])

    def limit_work(self) -> None:
        """Declare a limit for each key, and make a session that waits for a full key."""
        self.do(lambda store: store.queue.set_limit("mail", per_key=1))
        self._run("DELETE FROM holdfast.batches; DELETE FROM holdfast.ready")
        for session_id in ("holder", "waiter"):
            self.do(lambda store, session_id=session_id: store.queue.enqueue(mail(session_id, "full")))
        self.do(lambda store: store.queue.claim("holder", owner_id="w1", ttl_ms=DAY_MS))
        assert self.do(lambda store: store.queue.claim("waiter", owner_id="w1")) is None

    def add_waiting(self, new: range) -> None:
        """Add sessions that wait for the one full key, and as many slots and waiting sessions of other full keys."""
        waiter = self._one("ready", "waits_for = 'full' LIMIT 1")
        slot = self._one("slots", "limit_key = 'full'")
        key = self._one("waiting_keys", "limit_key = 'full'") | {"opens_at_ms": FAR_MS}
        self._copy("ready", [waiter | {"session_key": FAR_KEY + number} for number in new])
        others = [(2 * FAR_KEY + number, f"full{number}") for number in new[: len(new) // 2]]
        self._copy("ready", [waiter | {"session_key": place, "waits_for": name} for place, name in others])
        self._copy(
            "slots",
            [slot | {"session_key": place, "limit_key": name, "expires_at_ms": FAR_MS} for place, name in others],
        )
        self._copy("waiting_keys", [key | {"limit_key": name} for _, name in others])

    def add_idle(self, new: range) -> None:
        """Add workers, and schedules that are not due."""
        worker, schedule = self._one("workers", "worker_id = 'w1'"), self._one("schedules", "name = 'nightly'")
        self._copy("workers", [worker | {"worker_id": f"idle{number}"} for number in new])
        self._copy("schedules", [schedule | {"name": f"idle{number}", "due_at_ms": FAR_MS} for number in new])

    def blocks(self, size: int, calls: dict[str, Call]) -> dict[tuple[str, str], float]:
        """Return the blocks of each statement of each call: the median of a few rounds."""
        found: dict[tuple[str, str], float] = {}
        for name, call in calls.items():
            counts: dict[str, list[int]] = {}
            for number in range(-2, ROUNDS):
                Blocks.noted.clear()
                self.do(lambda store, call=call, number=number: call(store, size * 100 + number))
                for statement, each in Blocks.noted.items() if number >= 0 else ():
                    counts.setdefault(statement, []).append(sum(each))
            found |= {(name, statement): statistics.median(each) for statement, each in counts.items()}
        return found


def turn(number: int, **others: Any) -> holdfast.Commit:
    return holdfast.Commit(
        turn_id=f"turn{number}",
        graph=holdfast.Append([holdfast.Node(f"m{number}", payload={"n": number}), holdfast.Node(f"n{number}")]),
        checkpoint=holdfast.Checkpoint(turn_state={"n": number}),
        usage=[holdfast.Usage("turn", "model", input_tokens=3)],
        **others,
    )


async def sleep(store: Store) -> None:
    """Start a run that sleeps until a signal comes."""
    await store.processes.start("a", id="sleeper")
    claim = await claim_run(store)
    await store.processes.suspend(claim.lease, seen=0, wait=SignalWait("go", 1))


async def claim_run(store: Store, kinds: list[str] | None = None) -> RunClaim:
    claim = await store.processes.claim_next(owner_id="w1", kinds=kinds)
    assert claim is not None
    return claim


def mail(session_id: str, key: str) -> holdfast.WorkDraft:
    return holdfast.WorkDraft(session_id=session_id, payloads=[1], kind="mail", key=key)
