"""Fault: another client holds a lock that a call needs. The call waits, or fails in time with nothing stored."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

import holdfast
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, PostgresScratch, Scratch, on_connection
from holdfast.torture.soundness import unsound

SESSION = "locked"
TIMEOUT_MS = 60
LATEST_S = 20.0
"""A call that answers later than this hangs, however busy the machine is."""

POOL_TASKS, POOL_SIZE, POOL_MS = 50, 2, 150
CROSSING, CROSSINGS = 4, 20
"""Number of threads that contend, and number of turns."""


def hold_locks(scratch: Scratch, seed: int) -> Ran:
    """Hold the database or the session for longer than a caller waits, and then for less."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    place = scratch.fresh()
    with place.open() as store:
        store.sessions.handle(SESSION).commit(holdfast.Commit(turn_id="first"))
    hold = _hold_file if place.kind == "sqlite" else _hold_row(scratch)
    wrong: list[str] = []
    with place.with_lock_timeout(TIMEOUT_MS).open() as store:
        turn = holdfast.Commit(turn_id="second", config=rng.randrange(1_000))
        began_s = time.monotonic()
        try:
            hold(place, lambda: store.sessions.handle(SESSION).commit(turn))
            wrong.append("I9: a commit went through although another program held what it needs")
        except holdfast.Unavailable as error:
            if error.outcome != "not_applied" or not error.retryable:
                wrong.append(f"I9: a lock was reported as {error.outcome}, retryable={error.retryable}: {error}")
        if time.monotonic() - began_s > LATEST_S:
            wrong.append(f"I9: a lock was reported after {time.monotonic() - began_s:.1f} s")
        receipt = store.sessions.handle(SESSION).commit(turn)
        if (receipt.revision, receipt.replayed) != (2, False):
            wrong.append(f"I2: a commit that was not applied left a trace: {receipt}")
        wrong += unsound(store)
    return Ran(1, tuple(wrong))


def _hold_file(place: Place, call: Callable[[], Any]) -> None:
    import apsw

    other = apsw.Connection(str(place.path))
    try:
        other.execute("BEGIN IMMEDIATE")
        call()
    finally:
        other.close()


def _hold_row(scratch: Scratch) -> Callable[[Place, Callable[[], Any]], None]:
    assert isinstance(scratch, PostgresScratch)

    def hold(place: Place, call: Callable[[], Any]) -> None:
        async def work(connection: Any) -> None:
            async with connection.transaction():
                await connection.fetch(scratch.statements["hold_session"], SESSION)
                await asyncio.get_running_loop().run_in_executor(None, call)

        asyncio.run(on_connection(place.url, work))

    return hold


def exhaust_pool(scratch: Scratch, seed: int) -> Ran:
    """Let fifty callers share two stuck connections: those without one fail in time, and later all continue."""
    assert isinstance(scratch, PostgresScratch)
    place = scratch.fresh()
    options = msgspec.structs.replace(
        scratch.options, max_connections=POOL_SIZE, acquire_timeout_ms=POOL_MS, lock_timeout_ms=60_000
    )
    with place.open() as store:
        store.sessions.handle(SESSION).commit(holdfast.Commit(turn_id="first"))
    wrong: list[str] = []
    with Place(place.url, options).open() as store, ThreadPoolExecutor(POOL_TASKS) as threads:

        def commit(number: int) -> str:
            try:
                store.sessions.handle(SESSION).commit(holdfast.Commit(turn_id=f"turn-{seed}-{number}"))
            except Exception as error:  # any error that a caller sees is judged
                return type(error).__name__
            return "stored"

        futures: list[Any] = []

        def crowd() -> None:
            futures.extend(threads.submit(commit, number) for number in range(POOL_TASKS))
            _until_few_left(futures)

        _hold_row(scratch)(place, crowd)
        answers = [future.result(LATEST_S) for future in futures]
        if set(answers) - {"stored", "PoolTimeout"} or answers.count("PoolTimeout") < POOL_TASKS - POOL_SIZE:
            wrong.append(f"I9: an exhausted pool was reported as { {one: answers.count(one) for one in set(answers)} }")
        after = [commit(number) for number in range(POOL_TASKS)]
        if set(after) != {"stored"}:
            wrong.append(f"I10: after the pool was exhausted: {set(after)}")
        wrong += unsound(store)
    return Ran(1, tuple(wrong))


def cross_commits(scratch: Scratch, seed: int) -> Ran:
    """Let turns of two sessions enqueue work for each other, in opposite lock orders: all of them must succeed."""
    place = scratch.fresh()
    names = ("one", "two")
    wrong: list[str] = []
    with place.open() as store, ThreadPoolExecutor(CROSSING) as threads:
        for name in names:
            store.sessions.create(name)

        def commit(number: int) -> str:
            mine, other = names if number % 2 else reversed(names)
            work = [
                holdfast.WorkDraft(session_id=to, payloads=[number], source_key=f"{number}") for to in (other, mine)
            ]
            try:
                store.sessions.handle(mine).commit(holdfast.Commit(turn_id=f"turn-{seed}-{number}", enqueues=work))
            except Exception as error:  # any error that a caller sees is judged
                return f"{type(error).__name__}: {error}"
            return "stored"

        answers = list(threads.map(commit, range(CROSSINGS), timeout=LATEST_S * 3))
        wrong += [f"I9: turns that cross failed with {one}" for one in sorted(set(answers) - {"stored"})]
        for name in names:
            view, waiting = store.sessions.handle(name).load(), len(store.queue.list(name, limit=1_000))
            stands = (None if view is None else view.revision, waiting)
            if stands != (CROSSINGS // 2, CROSSINGS):
                wrong.append(f"I2: session {name} has turns and work {stands}")
        wrong += unsound(store)
    return Ran(CROSSINGS, tuple(wrong))


def _until_few_left(futures: list[Any]) -> None:
    """Wait until all callers were answered but those that hold a connection."""
    deadline_s = time.monotonic() + LATEST_S
    while sum(not future.done() for future in futures) > POOL_SIZE and time.monotonic() < deadline_s:
        time.sleep(0.005)


HELD_LOCKS = Fault(
    "held-locks",
    "another program holds the file or the row that a commit needs, for longer than it waits",
    ("I2", "I9", "I10"),
    {"sqlite": Numbers(5, 500), "postgres": Numbers(5, 500)},
    hold_locks,
)

CROSS_COMMITS = Fault(
    "cross-commits",
    "turns of two sessions leave work for each other at the same time, which may end in a deadlock",
    ("I2", "I9", "I10"),
    {"sqlite": Numbers(20, 2_000), "postgres": Numbers(60, 10_000)},
    cross_commits,
    unit="turns",
)

EXHAUSTED_POOL = Fault(
    "pool-exhausted",
    "fifty callers share two connections that are both stuck",
    ("I9", "I10"),
    {"postgres": Numbers(1, 20)},
    exhaust_pool,
)
