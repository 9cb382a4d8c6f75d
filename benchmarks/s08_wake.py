"""S8: how long does a waiter in another process sleep on, and what do a hundred idle waiters cost?"""

from __future__ import annotations

import time

from benchmarks.contender import CannotRun, Contender, Running
from benchmarks.core import FLOOR, Bench, Result, Table
from benchmarks.statistics import Spread, number, percentile

ID, QUESTION = "S8", "Wake of a waiter in another process, and the CPU of 100 idle waiters"
PAUSE_MS = 15.0
IDLE_WAITERS = 100
OURS = "Holdfast"


def run(bench: Bench) -> Result:
    """From the call that appends to the return of the call that waits; the append's own flush is part of it."""
    result = Result(ID, QUESTION)
    count = bench.size(300, 40)
    for kind in ("SQLite", "PostgreSQL"):
        table = Table(f"{kind}: {count} wakes a round", ("", "p50 ms", "p99 ms"))
        result.tables.append(table)
        new = bench.file if kind == "SQLite" else bench.postgres.database
        contenders = [
            Contender(FLOOR, "benchmarks.drivers.floor_events", {"url": new()}),
            Contender(OURS, "benchmarks.drivers.holdfast_events", {"url": new()}),
        ]
        if kind == "PostgreSQL":
            contenders.append(Contender("DBOS send and recv", "benchmarks.peers.dbos_wake", {"url": new()}, peer=True))
        found: dict[str, tuple[Spread, Spread]] = {}
        for contender in bench.wanted(contenders):
            bench.tell(f"{kind}: {contender.name}")
            try:
                found[contender.name] = measured(contender, count, bench.size(bench.rounds, 1))
            except CannotRun as failure:
                if not contender.peer:
                    raise
                table.rows.append([contender.name, "-", f"cannot run here: {failure}".splitlines()[0]])
                continue
            table.rows.append([contender.name, *(each.show() for each in found[contender.name])])
        result.data[kind] = {name: {"p50_ms": p50.data(), "p99_ms": p99.data()} for name, (p50, p99) in found.items()}
        p50 = found[OURS][0]
        if kind == "PostgreSQL":
            result.at_most("PostgreSQL: p50 <= 2 x bare LISTEN", Spread((p50.median / found[FLOOR][0].median,)), 2)
        else:
            result.at_most("SQLite: p50 <= 3 ms", p50, 3, unit=" ms")
        idle(bench, result, kind, new())
    return result


def measured(contender: Contender, count: int, rounds: int) -> tuple[Spread, Spread]:
    """Two processes: one waits, the other wakes it."""
    waiter, waker = Running(contender), Running(contender)
    p50, p99 = [], []
    try:
        waker.open()
        waiter.open()
        for _ in range(rounds if contender.name != "DBOS send and recv" else 1):
            waiter.send("wait", count=count)
            # Long enough for the waiter to wait; the first wakes are left out of account anyway.
            time.sleep(0.5)
            asked = waker.ask("wake", count=count, pause_ms=PAUSE_MS)
            seen = waiter.receive()
            delays = [(to - start) / 1e6 for start, to in zip(asked, seen[-count:], strict=True)][3:]
            p50.append(percentile(delays, 0.5))
            p99.append(percentile(delays, 0.99))
    finally:
        waiter.close()
        waker.close()
    return Spread(tuple(p50)), Spread(tuple(p99))


def idle(bench: Bench, result: Result, kind: str, url: str) -> None:
    """A hundred waiters that nobody wakes."""
    running = Running(Contender(OURS, "benchmarks.drivers.holdfast_events", {"url": url}))
    try:
        running.open()
        share = running.ask("idle", waiters=IDLE_WAITERS, seconds=bench.size(10.0, 2.0)) * 100
    finally:
        running.close()
    result.data[f"{kind}, idle"] = share
    result.at_most(f"{kind}: {IDLE_WAITERS} idle waiters <= 1 % of a core", Spread((share,)), 1, unit=" %")
    result.notes.append(f"{kind}: {IDLE_WAITERS} idle waiters take {number(share)} % of a core.")
