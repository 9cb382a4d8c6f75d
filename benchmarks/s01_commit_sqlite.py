"""S1: the rate of full turn commits of one session on SQLite, synchronous=FULL."""

from __future__ import annotations

from benchmarks import rows
from benchmarks.core import FLOOR, Bench, Result, race, rate_table, ratio, whole_way

ID, QUESTION = "S1", "Full turn commit, one session, SQLite with WAL and synchronous=FULL"


def run(bench: Bench) -> Result:
    """Store the same turns with each contender, one after another."""
    result = Result(ID, QUESTION)
    # A thousand in all, for any number of rounds, so that a contender that slows down shows it.
    turns = bench.size(1000, 60) // bench.rounds
    contenders = [
        rows.floor_sqlite(bench),
        rows.holdfast("Holdfast, blocking", bench.file(), blocking=True),
        rows.holdfast("Holdfast", bench.file()),
        rows.langgraph_async(bench),
        *rows.sqlite_peers(bench),
    ]
    entries = race(bench, contenders, sessions=1, turns=turns)
    result.enter("entries", entries)
    result.tables.append(rate_table(f"{turns * bench.rounds:,} turns of 2 KB and a 4 KB checkpoint", entries))
    for name in ("Holdfast, blocking", "Holdfast"):
        result.at_least(f"{name}: >= 0.5 of the floor", ratio(entries, name, FLOOR), 0.5)
        for peer in (rows.LANGGRAPH_SQLITE, rows.LANGGRAPH_SQLITE_ASYNC):
            against = whole_way(entries, name, peer)
            result.at_least(f"{name}: >= 10 x {peer} over 1,000 turns", against, 10)
        result.at_least(f"{name}: not slower than OpenAI SQLiteSession", ratio(entries, name, rows.OPENAI_SQLITE), 1)
    if bench.peers:
        result.notes.append(
            "Payloads are made before the clock starts, except ADK's events, which it stamps when made."
        )
    return result
