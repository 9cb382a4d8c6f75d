"""S8: the latency of a wake in another process, and the cost of a hundred idle waiters."""

from __future__ import annotations

import time

from benchmarks.contender import CannotRun, Contender, Running
from benchmarks.core import FLOOR, Bench, Result, Table
from benchmarks.statistics import Spread, number, percentile

ID, QUESTION = "S8", "Wake of a waiter in another process, and the CPU of 100 idle waiters"
PAUSE_MS = 15.0
IDLE_WAITERS = 100
OURS = "Holdfast"
DBOS = "DBOS send and recv, one round"


def run(bench: Bench) -> Result:
    """Measure from the call that appends to the return of the call that waits, including the append's own flush."""
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
            contenders.append(Contender(DBOS, "benchmarks.peers.dbos_wake", {"url": new()}, peer=True))
        found = measured(bench, result, table, kind, contenders, count)
        p50 = found[OURS][0]
        if kind == "PostgreSQL":
            result.at_most("PostgreSQL: p50 <= 2 x bare LISTEN", p50.over(found[FLOOR][0]), 2)
        else:
            result.at_most("SQLite: p50 <= 3 ms", p50, 3, unit=" ms")
        idle(bench, result, kind, new())
    return result


def measured(
    bench: Bench, result: Result, table: Table, kind: str, contenders: list[Contender], count: int
) -> dict[str, tuple[Spread, Spread]]:
    """Return the p50 and the p99 of each round. All are open at once and take turns; each round begins with another."""
    pairs: dict[str, tuple[Running, Running]] = {}
    rounds: dict[str, list[list[float]]] = {}
    failed: dict[str, str] = {}
    wanted = bench.wanted(contenders)
    try:
        for turn in range(bench.rounds):
            first = turn % len(wanted)
            for contender in wanted[first:] + wanted[:first]:
                name = contender.name
                # DBOS keeps a workflow under its name for good: a message that woke it once does not wake it again.
                if name in failed or (contender.peer and rounds.get(name)):
                    continue
                bench.tell(f"{kind}, round {turn + 1} of {bench.rounds}: {name}")
                try:
                    if name not in pairs:
                        pairs[name] = Running(contender), Running(contender)
                        for each in pairs[name]:
                            each.open()
                    rounds.setdefault(name, []).append(wakes(*pairs[name], count))
                except CannotRun as failure:
                    if not contender.peer:
                        raise
                    failed[name] = str(failure).splitlines()[0]
    finally:
        for pair in pairs.values():
            for each in pair:
                each.close()
    found: dict[str, tuple[Spread, Spread]] = {}
    for name in (each.name for each in wanted):
        if name in failed:
            table.rows.append([name, "-", f"cannot run here: {failed[name]}"])
            continue
        p50, p99 = (Spread(tuple(percentile(each, share) for each in rounds[name])) for share in (0.5, 0.99))
        found[name] = p50, p99
        table.rows.append([name, p50.show(), p99.show()])
    result.data[kind] = {name: {"p50_ms": p50.data(), "p99_ms": p99.data()} for name, (p50, p99) in found.items()}
    return found


def wakes(waker: Running, waiter: Running, count: int) -> list[float]:
    """Return the milliseconds of each wake, with one process that waits and another that wakes it."""
    waiter.send("wait", count=count)
    # Long enough for the waiter to wait. The first wakes are dropped anyway.
    time.sleep(0.5)
    asked = waker.ask("wake", count=count, pause_ms=PAUSE_MS)
    seen = waiter.receive()
    return [(to - start) / 1e6 for start, to in zip(asked, seen[-count:], strict=True)][3:]


def idle(bench: Bench, result: Result, kind: str, url: str) -> None:
    """Measure a hundred idle waiters."""
    running = Running(Contender(OURS, "benchmarks.drivers.holdfast_events", {"url": url}))
    try:
        running.open()
        share = running.ask("idle", waiters=IDLE_WAITERS, seconds=bench.size(10.0, 2.0)) * 100
    finally:
        running.close()
    result.data[f"{kind}, idle"] = share
    result.at_most(f"{kind}: {IDLE_WAITERS} idle waiters <= 1 % of a core", Spread((share,)), 1, unit=" %")
    result.notes.append(f"{kind}: {IDLE_WAITERS} idle waiters take {number(share)} % of a core.")
