"""S12: what do writers notice of a prune and a garbage collection?"""

from __future__ import annotations

from benchmarks.contender import Contender, Running
from benchmarks.core import Bench, Result, Table
from benchmarks.statistics import Spread, number, percentile

ID, QUESTION = "S12", "Prune and garbage collection of 100,000 dead rows while 8 writers commit"


def run(bench: Bench) -> Result:
    """Writers alone, writers beside the housekeeping, writers alone again: one store, one process."""
    result = Result(ID, QUESTION)
    dead = bench.size(100_000, 5_000)
    seconds = bench.size(5.0, 1.0)
    table = Table(f"Full turns of 8 writers, {dead:,} dead rows", ("", "turns/s", "p50 ms", "p99 ms", "removed"))
    for kind in ("SQLite", "PostgreSQL"):
        url = bench.file() if kind == "SQLite" else bench.postgres.database()
        bench.tell(f"{kind}: {dead:,} dead rows")
        running = Running(Contender("Holdfast", "benchmarks.drivers.holdfast_upkeep", {"url": url, "dead": dead}))
        try:
            running.open()
            running.ask("writes", seconds=0.5)
            before = running.ask("writes", seconds=seconds)
            bench.tell(f"{kind}: housekeeping")
            during = running.ask("upkeep")
            after = running.ask("writes", seconds=seconds)
        finally:
            running.close()
        removed = f"{during['nodes']:,} nodes, {during['revisions']:,} revisions in {number(during['seconds'])} s"
        for name, told in (("before", before), ("during", during), ("after", after)):
            quantiles = [number(percentile(told["latencies_ms"], share)) for share in (0.5, 0.99)]
            rate = number(told["count"] / told["seconds"])
            table.rows.append([f"{kind}, {name}", rate, *quantiles, removed if name == "during" else ""])
            result.data[f"{kind}, {name}"] = told
        quiet = max(percentile(told["latencies_ms"], 0.99) for told in (before, after))
        ratio = percentile(during["latencies_ms"], 0.99) / quiet
        result.at_most(f"{kind}: the writers' p99 <= 2 x", Spread((ratio,)), 2)
    result.tables.append(table)
    return result
