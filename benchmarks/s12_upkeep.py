"""S12: the effect of a prune and a garbage collection on writers."""

from __future__ import annotations

from typing import Any

from benchmarks.contender import Contender, Running
from benchmarks.core import Bench, Result, Table
from benchmarks.statistics import Spread, latency, number, rates

ID, QUESTION = "S12", "Prune and garbage collection of 100,000 dead rows while 8 writers commit"
PHASES = ("before", "during", "after")
MOST_ROUNDS = 2
"""Filling and clearing a store of this size takes a minute or more."""


def run(bench: Bench) -> Result:
    """Measure in a new store each round: writers alone, writers beside the housekeeping, writers alone again."""
    result = Result(ID, QUESTION)
    dead = bench.size(100_000, 5_000)
    table = Table(f"Full turns of 8 writers, {dead:,} dead rows", ("", "turns/s", "p50 ms", "p99 ms", "removed"))
    kinds = ("SQLite", "PostgreSQL")
    found: dict[str, list[dict[str, Any]]] = {f"{kind}, {phase}": [] for kind in kinds for phase in PHASES}
    for turn in range(min(bench.rounds, MOST_ROUNDS)):
        for kind in kinds:
            bench.tell(f"round {turn + 1}, {kind}: {dead:,} dead rows")
            for phase, answer in zip(PHASES, measured(bench, kind, dead), strict=True):
                found[f"{kind}, {phase}"].append(answer)
    for name, rounds in found.items():
        quantiles = {f"p{share}_ms": latency(rounds, share / 100) for share in (50, 99)}
        removed = f"{rounds[0]['nodes']:,} nodes, {rounds[0]['revisions']:,} revisions" if "nodes" in rounds[0] else ""
        if removed:
            removed += f" in {number(rounds[0]['seconds'])} s"
        table.rows.append([name, rates(rounds).show(), *(each.show() for each in quantiles.values()), removed])
        result.data[name] = {"per_second": rates(rounds).data(), "removed": removed}
        result.data[name] |= {key: each.data() for key, each in quantiles.items()}
    for kind in kinds:
        before, during = (latency(found[f"{kind}, {phase}"], 0.99) for phase in PHASES[:2])
        result.at_most(f"{kind}: the writers' p99 during it <= 2 x their p99 before it", during.over(before), 2)
        longest = Spread(tuple(max(answer["latencies_ms"]) for answer in found[f"{kind}, during"]))
        result.data[f"{kind}, during"]["longest_ms"] = longest.data()
        result.notes.append(f"{kind}: the longest that a writer waited during it: {longest.show()} ms.")
    result.tables.append(table)
    return result


def measured(bench: Bench, kind: str, dead: int) -> list[dict[str, Any]]:
    """Measure the writers before, during and after the housekeeping of one store, in one process."""
    url = bench.file() if kind == "SQLite" else bench.postgres.database()
    seconds = bench.size(5.0, 1.0)
    running = Running(Contender("Holdfast", "benchmarks.drivers.holdfast_upkeep", {"url": url, "dead": dead}))
    try:
        running.open()
        running.ask("writes", seconds=0.5)
        before = running.ask("writes", seconds=seconds)
        during = running.ask("upkeep")
        return [before, during, running.ask("writes", seconds=seconds)]
    finally:
        running.close()
