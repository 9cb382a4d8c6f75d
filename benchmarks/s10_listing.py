"""S10: does page 1,000 of a listing cost more than page 1?"""

from __future__ import annotations

from benchmarks.contender import Contender, Running
from benchmarks.core import Bench, Result, Table
from benchmarks.statistics import Spread, latency

ID, QUESTION = "S10", "Listing: page 1 and page 1,000 of 100,000 sessions and of 100,000 processes"
PAGE = 100


def run(bench: Bench) -> Result:
    """Read the two pages in turns from one store."""
    result = Result(ID, QUESTION)
    rows = bench.size(100_000, 500)
    reads = bench.size(50, 20)
    for kind in ("SQLite", "PostgreSQL"):
        table = Table(f"{kind}: p50 in ms of a page of {PAGE}", ("", "page 1", f"page {rows // PAGE:,}", "ratio"))
        result.tables.append(table)
        url = bench.file() if kind == "SQLite" else bench.postgres.database()
        bench.tell(f"{kind}: {rows:,} sessions and processes")
        running = Running(Contender("Holdfast", "benchmarks.drivers.holdfast_reads", {"url": url, "rows": rows}))
        try:
            running.open()
            for of in ("sessions", "processes"):
                for last in (False, True):
                    running.ask("page", of=of, reads=3, last=last)
                rounds = [
                    [running.ask("page", of=of, reads=reads, last=last) for last in (False, True)]
                    for _ in range(bench.rounds)
                ]
                first, final = (latency([pair[side] for pair in rounds], 0.5) for side in (0, 1))
                keep(result, table, f"{kind}, {of}", first, final)
        finally:
            running.close()
    return result


def keep(result: Result, table: Table, title: str, first: Spread, final: Spread) -> None:
    """Add a row, and its targets."""
    table.rows.append([title, first.show(), final.show(), final.over(first).show()])
    result.data[title] = {"first_ms": first.data(), "last_ms": final.data()}
    result.at_most(f"{title}: equal within 1.5 x", final.over(first), 1.5)
    result.at_most(f"{title}: <= 5 ms", final, 5, unit=" ms")
