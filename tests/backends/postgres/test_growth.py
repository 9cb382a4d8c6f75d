"""A hot path reads as many blocks at turn 2,500 as at turn 300, with any planner statistics.

The server counts blocks for the connection that runs the call, inside functions, too. Each call runs in a
transaction of its own, as the store sends it, with the plan that the store's connection has made.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar

import asyncpg
import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.backends.postgres.connection import StatementRunner
from holdfast.backends.postgres.notifier import Notifier
from holdfast.events import EventType, Payload, WakeRule
from holdfast.leases import OnSession
from holdfast.processes import Completed, External, RunClaim, SignalWait
from holdfast.sessions import ActivePath
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop

Call = Callable[[Store, int], Awaitable[Any]]

SHORT, LONG = 300, 2_500
ROUNDS = 3
SERVERS = ("newest", "oldest")
MOST_GROWTH = 1.2
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
KNOWLEDGE = ("none", "stale", "skewed", "one family", "tiny families")
"""Tables that were never analysed; analysed with one short session; with 800 short sessions and the long one, at each
size; the same in one family; and with 2,000 families of one turn, of which one has grown since."""
WHOLE = bool(os.environ.get("HOLDFAST_WHOLE"))
FAR_MS, FAR_KEY = 4_000_000_000_000, 1_000_000_000


class Counting(StatementRunner):
    """Records how many blocks of our tables and indexes each call of a statement fetched."""

    __slots__ = ()

    noted: ClassVar[dict[str, list[int]]] = {}

    async def all(self, name: str, *bindings: Any) -> Any:
        connection: Any = self.connection
        alone = not connection.is_in_transaction() and not name.startswith(("begin", "notify"))
        if alone:
            await self._ask(connection.execute, "BEGIN", timeout_s=None)
        before = await self._ask(connection.fetchval, BLOCKS, timeout_s=None)
        try:
            return await super().all(name, *bindings)
        finally:
            blocks = await self._ask(connection.fetchval, BLOCKS, timeout_s=None) - before
            self.noted.setdefault(name, []).append(int(blocks))
            if alone:
                await self._ask(connection.execute, "COMMIT", timeout_s=None)


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
        self.backend._executor.runner = lambda connection: Counting(
            connection, self.backend._texts, None, self.backend._executor.counter
        )
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
        fresh = {name: None for name in waiting if name.startswith(("claim", "settled"))}
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

    def blocks(self, size: int, calls: dict[str, Call]) -> dict[tuple[str, str], float]:
        """Return the blocks of each statement of each call: the median of a few rounds."""
        found: dict[tuple[str, str], float] = {}
        for name, call in calls.items():
            counts: dict[str, list[int]] = {}
            for number in range(-2, ROUNDS):
                Counting.noted.clear()
                self.do(lambda store, call=call, number=number: call(store, size * 100 + number))
                for statement, each in Counting.noted.items() if number >= 0 else ():
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


def commit(store: Store, number: int) -> Awaitable[Any]:
    return store.sessions.handle("long").commit(turn(number))


async def settle(store: Store, number: int) -> None:
    """Enqueue, claim and renew work, and complete it by a turn that leaves more work."""
    await store.queue.enqueue(holdfast.WorkDraft(session_id="long", payloads=[1], source_key=f"work{number}"))
    claim = await store.queue.claim("long", owner_id="w1")
    assert claim is not None
    await store.queue.renew(claim)
    await store.sessions.handle("long").commit(holdfast.Commit(completes=[claim]))


async def work_off(store: Store, number: int) -> None:
    """Claim jobs from any session; settle, settle and claim the next, fail, and cancel."""
    for name in "abc":
        await store.queue.enqueue(holdfast.WorkDraft(session_id="long", payloads=[1], source_key=f"{name}{number}"))
    claim = await store.queue.claim_next(owner_id="w1", kinds=["turn"])
    assert claim is not None
    _, following = await store.queue.complete_and_claim_next(claim, owner_id="w1", kinds=["turn"])
    assert following is not None
    await store.queue.complete(following)
    last = await store.queue.claim_next(owner_id="w1", kinds=["turn"])
    assert last is not None
    [failed] = await store.queue.fail(last, "no", retry_in_ms=0)
    await store.queue.cancel("long", failed.batch_id)


async def take_from_backlog(store: Store, number: int) -> None:
    """Claim and complete the first of many batches that wait in one session."""
    for name in "ab":
        claim = await store.queue.claim_next(owner_id=name, kinds=["backlog"], max_batches=1)
        assert claim is not None
        await store.queue.complete(claim)
    claim = await store.queue.claim("busy", owner_id="c", max_batches=1)
    assert claim is not None
    await store.queue.complete(claim)


async def lead(store: Store, number: int) -> None:
    """Commit a turn under a lease."""
    lease = await store.leases.claim(OnSession("long"), owner_id="w1")
    await store.sessions.handle("long").commit(holdfast.Commit(lease=lease))
    await store.leases.release(lease)


async def follow_up(store: Store, number: int) -> None:
    """Commit a turn that leaves work, and cancel that work."""
    draft = holdfast.WorkDraft(payloads=[1], source_key=f"next{number}")
    receipt = await store.sessions.handle("long").commit(holdfast.Commit(enqueues=[draft]))
    await store.queue.cancel("long", receipt.enqueued[0])


async def wake(store: Store, number: int) -> None:
    """Append an event that wakes the long session, and cancel the batch."""
    receipt = await store.events.append("job", "news", number)
    assert receipt.batch_id is not None
    await store.queue.cancel("long", receipt.batch_id)


async def sleep(store: Store) -> None:
    """Start a run that sleeps until a signal comes."""
    await store.processes.start("a", id="sleeper")
    claim = await claim_run(store)
    await store.processes.suspend(claim.lease, seen=0, wait=SignalWait("go", 1))


async def claim_run(store: Store, kinds: list[str] | None = None) -> RunClaim:
    claim = await store.processes.claim_next(owner_id="w1", kinds=kinds)
    assert claim is not None
    return claim


async def run(store: Store, number: int) -> None:
    """Start a run, let it sleep, wake it, fail it, give it back, and end it."""
    name = f"run{number}"
    await store.processes.start("a", id=name)
    claim = await claim_run(store, ["a"])
    await store.events.append(name, "step", lease=claim.lease)
    await store.processes.suspend(claim.lease, seen=1, wait=SignalWait("go", 1))
    await store.events.signal(name, "go")
    await store.processes.retry_later((await claim_run(store)).lease, "no", retry_in_ms=0)
    await store.leases.release((await claim_run(store, ["a", "b"])).lease)
    await store.processes.complete(name, Completed(), lease=(await claim_run(store)).lease)


CALLS: dict[str, Call] = {
    "commit": commit,
    "replay of a turn": lambda store, number: store.sessions.handle("long").commit(turn(0)),
    "commit that completes work": settle,
    "jobs": work_off,
    "jobs of a backlog": take_from_backlog,
    "commit under a lease": lead,
    "commit that enqueues": follow_up,
    "append": lambda store, number: store.events.append("job", "progress", 1, replay_key=f"new{number}"),
    "replay of an event": lambda store, number: store.events.append("job", "progress", 1, replay_key="k0"),
    "append that wakes": wake,
    "load of the last nodes": lambda store, number: store.sessions.handle("long").load(ActivePath(last=20)),
    "load of a node": lambda store, number: store.sessions.handle("long").load_node("m0"),
    "page of a log": lambda store, number: store.events.after("job", after=20, limit=20),
    "page of a log of one type": lambda store, number: store.events.after("job", after=20, limit=20, type="progress"),
    "page of a log of a rare type": lambda store, number: store.events.after("job", type="rare"),
    "page of wakes": lambda store, number: store.events.wakes("job", after=LONG * 9),
}


@pytest.fixture(params=SERVERS)
def ground(request: pytest.FixtureRequest, loop: EventLoop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    database = request.getfixturevalue("postgres_database" if request.param == "newest" else "second_database")

    async def nothing(notifier: Notifier, payload: str) -> None: ...

    monkeypatch.setattr(Notifier, "_try_to_send", nothing)
    made = Ground(database, loop)
    yield made
    made.close()
    database.empty()


@pytest.mark.parametrize(
    ("ground", "knowledge"),
    [
        (server, knowledge)
        for server in SERVERS
        for knowledge in KNOWLEDGE
        if WHOLE or knowledge == "skewed" or (server == "newest" and knowledge in ("none", "stale"))
    ],
    indirect=["ground"],
)
def test_a_hot_path_reads_no_more_of_a_long_session_than_of_a_short_one(ground: Ground, knowledge: str) -> None:
    if knowledge in ("skewed", "one family"):
        ground.surround(800, one_family=knowledge == "one family")
    if knowledge == "tiny families":
        ground.surround(2_000, one_family=False)
    if knowledge in ("stale", "tiny families"):
        ground.analyze()
    ground.grow(SHORT)
    if knowledge in ("skewed", "one family"):
        ground.analyze()
    short = ground.blocks(SHORT, CALLS)
    ground.grow(LONG)
    kept = ground.blocks(LONG, CALLS)
    if knowledge in ("skewed", "one family"):
        ground.analyze()
    ground.reopen()
    anew = ground.blocks(LONG + 1, CALLS)
    told = {place: (short[place], kept.get(place, 0), anew.get(place, 0)) for place in short}
    grown = {place: counts for place, counts in told.items() if max(counts) > MOST_GROWTH * counts[0]}
    assert grown == {}, told


def test_a_claim_of_a_run_reads_no_more_among_many_that_cannot_be_claimed(ground: Ground) -> None:
    ground.lay_to_sleep()
    ground.add_sleepers(range(SHORT))
    short = ground.blocks(SHORT, {"run": run})
    ground.add_sleepers(range(SHORT, LONG))
    long = ground.blocks(LONG, {"run": run})
    told = {place: (few, long.get(place, 0)) for place, few in short.items()}
    assert {place: counts for place, counts in told.items() if counts[1] > MOST_GROWTH * counts[0]} == {}, told
