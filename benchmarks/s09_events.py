"""S9: the rate of event appends, to one process and to a hundred at once."""

from __future__ import annotations

from benchmarks.contender import Contender
from benchmarks.core import FLOOR, Bench, Result, race, rate_table, ratio

ID, QUESTION = "S9", "Event append: one process, and 100 processes at once"
OURS = "Holdfast"


def run(bench: Bench) -> Result:
    """Measure appends. The floor on PostgreSQL has sixteen connections at most, as many as Holdfast's pool."""
    result = Result(ID, QUESTION)
    total = bench.size(1000, 100)
    for kind in ("SQLite", "PostgreSQL"):
        for writers in (1, 100):
            new = bench.file if kind == "SQLite" else bench.postgres.database
            lanes = min(writers, 16)
            floor = {"writers": lanes, "events": total // lanes}
            contenders = [
                Contender(FLOOR, "benchmarks.drivers.floor_events", {"url": new()}, request=floor),
                Contender(OURS, "benchmarks.drivers.holdfast_events", {"url": new()}),
            ]
            asked = {"writers": writers, "events": total // writers}
            entries = race(bench, contenders, "append", audit=False, warm={"events": 1}, **asked)
            title = f"{kind}, {writers} at once"
            result.enter(title, entries)
            result.tables.append(rate_table(title, entries, unit="events/s"))
            result.at_least(f"{title}: >= 0.5 of the floor", ratio(entries, OURS, FLOOR), 0.5)
    return result
