"""S2: the rate of full turn commits on SQLite when many sessions commit at once."""

from __future__ import annotations

from benchmarks import plot, rows
from benchmarks.contender import Contender
from benchmarks.core import FLOOR, Bench, Result, race, rate_table, ratio

ID, QUESTION = "S2", "Full turn commit, many sessions at once, SQLite with WAL and synchronous=FULL"
AT_ONCE = (1, 4, 16, 64)


def run(bench: Bench) -> Result:
    """Compare with one writer as the floor. Holdfast shares each disk flush among waiting commits."""
    result = Result(ID, QUESTION)
    turns = bench.size(640, 128)
    contenders = [rows.asking(rows.floor_sqlite(bench), sessions=1, turns=turns)]
    for sessions in AT_ONCE:
        contender = rows.holdfast(f"Holdfast, {sessions}", bench.file())
        contenders.append(rows.asking(contender, sessions=sessions, turns=turns // sessions))
    peer = Contender(
        f"{rows.OPENAI_SQLITE}, 16",
        "benchmarks.peers.openai_session",
        {"path": bench.file()},
        peer=True,
        carries=("messages",),
        less=rows.MESSAGES_ONLY,
    )
    contenders.append(rows.asking(peer, sessions=16, turns=turns // 16))
    entries = race(bench, contenders)
    result.enter("entries", entries)
    result.tables.append(rate_table(f"{turns:,} turns a round, by how many sessions commit at once", entries))
    result.at_least("16 at once: >= 1.0 of the single-writer floor", ratio(entries, "Holdfast, 16", FLOOR), 1.0)
    series = {
        "Holdfast": [(float(each), entries[f"Holdfast, {each}"].rates.median) for each in AT_ONCE],
        "floor, one writer": [(float(each), entries[FLOOR].rates.median) for each in AT_ONCE],
    }
    result.plots["throughput-sqlite.svg"] = plot.lines(
        "Turns a second on SQLite, synchronous=FULL", "sessions that commit at once", "turns a second", series
    )
    return result
