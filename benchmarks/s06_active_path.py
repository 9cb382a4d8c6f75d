"""S6: does reading a path cost its length, or the size of the graph?"""

from __future__ import annotations

from benchmarks.contender import Contender
from benchmarks.core import Bench, Result, Table, race

ID, QUESTION = "S6", "Active path of 200 out of 100,000 nodes; last 50 of a chain of 100,000"
READS = (("path", "the path of 200"), ("last", "the last 50 of a chain"))
LIMIT_MS = {"SQLite": 2.0, "PostgreSQL": 4.0}


def run(bench: Bench) -> Result:
    """Run the same reads in a graph and in one ten times as large, taking turns."""
    result = Result(ID, QUESTION)
    large = bench.size(100_000, 1_000)
    reads = bench.size(100, 20)
    for kind in ("SQLite", "PostgreSQL"):
        table = Table(f"{kind}: p50 in ms", ("", f"{large // 10:,} nodes", f"{large:,} nodes", "ratio"))
        result.tables.append(table)
        for do, title in READS:
            new = bench.file if kind == "SQLite" else bench.postgres.database
            contenders = [
                Contender(f"{count:,}", "benchmarks.drivers.holdfast_reads", {"url": new(), "nodes": count})
                for count in (large // 10, large)
            ]
            entries = race(bench, contenders, do, audit=False, warm={"reads": 3}, reads=reads)
            result.enter(f"{kind}, {do}", entries)
            few, many = (entry.latency(0.5) for entry in entries.values())
            table.rows.append([title, few.show(), many.show(), many.over(few).show()])
            result.at_most(f"{kind}, {title}: <= {LIMIT_MS[kind]:g} ms", many, LIMIT_MS[kind], unit=" ms")
            result.at_most(f"{kind}, {title}: flat (<= 1.2 x) when the graph grows 10 x", many.over(few), 1.2)
    return result
