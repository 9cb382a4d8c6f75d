"""S3: the rate of full turn commits on PostgreSQL, alone, among sixteen, and across a network."""

from __future__ import annotations

from benchmarks import plot, rows
from benchmarks.contender import Contender, Running
from benchmarks.core import FLOOR, Bench, Result, Table, race, rate_table, ratio, whole_way
from benchmarks.postgres import Wire
from benchmarks.statistics import Spread, number

ID, QUESTION = "S3", "Full turn commit on PostgreSQL with fsync, 1 and 16 sessions at once"
HOLDFAST = "Holdfast"
MANY = 16
DELAY_MS = 2.0
AT_ONCE = (1, 4, MANY)


def run(bench: Bench) -> Result:
    """Measure all on the same server, in the same run, with the same durability."""
    result = Result(ID, QUESTION)
    alone(bench, result)
    many(bench, result)
    network(bench, result)
    return result


def alone(bench: Bench, result: Result) -> None:
    """Measure one session."""
    # A thousand in all, for any number of rounds, so that a contender that slows down shows it.
    turns = bench.size(1000, 60) // bench.rounds
    contenders = [
        rows.floor_postgres(bench.postgres.database()),
        rows.holdfast(HOLDFAST, bench.postgres.database()),
        *rows.postgres_peers(bench),
    ]
    entries = race(bench, contenders, sessions=1, turns=turns)
    result.enter("one at a time", entries)
    result.tables.append(rate_table(f"One session, {turns * bench.rounds:,} turns", entries))
    against = ratio(entries, HOLDFAST, rows.OPENAI_POSTGRES)
    result.at_least("1 at once: >= 2 x OpenAI SQLAlchemySession", against, 2)
    against = whole_way(entries, HOLDFAST, rows.LANGGRAPH_POSTGRES)
    result.at_least(">= 20 x LangGraph `put` over 1,000 turns", against, 20)


def many(bench: Bench, result: Result) -> None:
    """Measure up to sixteen sessions."""
    turns = bench.size(640, 128)
    contenders: list[Contender] = []
    at_once = bench.size(AT_ONCE, (1, MANY))
    for sessions in at_once:
        floor = rows.renamed(rows.floor_postgres(bench.postgres.database()), f"{FLOOR}, {sessions}")
        ours = rows.holdfast(f"{HOLDFAST}, {sessions}", bench.postgres.database())
        contenders += [rows.asking(each, sessions=sessions, turns=turns // sessions) for each in (floor, ours)]
    name = f"{rows.OPENAI_POSTGRES}, {MANY}"
    for peer in rows.postgres_peers(bench):
        if peer.name == rows.OPENAI_POSTGRES:
            contenders.append(rows.asking(rows.renamed(peer, name), sessions=MANY, turns=turns // MANY))
    entries = race(bench, contenders)
    result.enter("at once", entries)
    title = f"{turns:,} turns a round, by how many sessions commit at once (ratio to the floor at {MANY})"
    result.tables.append(rate_table(title, entries, floor=f"{FLOOR}, {MANY}"))
    against = ratio(entries, f"{HOLDFAST}, {MANY}", f"{FLOOR}, {MANY}")
    result.at_least(f"{MANY} at once: >= 0.4 of the floor", against, 0.4)
    result.at_least(f"{MANY} at once: >= 2 x OpenAI SQLAlchemySession", ratio(entries, f"{HOLDFAST}, {MANY}", name), 2)
    series = {
        label: [(float(each), entries[f"{label}, {each}"].rates.median) for each in at_once]
        for label in (HOLDFAST, FLOOR)
    }
    result.plots["throughput-postgres.svg"] = plot.lines(
        "Turns a second on PostgreSQL, fsync=on", "sessions that commit at once", "turns a second", series
    )


def network(bench: Bench, result: Result) -> None:
    """Count trips on the wire, then add a delay to the wire."""
    turns = bench.size(100, 20)
    folder = str(bench.postgres.server.folder)
    trips: dict[str, float] = {}
    with Wire(folder) as wire:
        for make in (rows.floor_postgres, lambda url: rows.holdfast(HOLDFAST, url)):
            contender = make(wire.url(bench.postgres.database()))
            running = Running(contender)
            try:
                running.open()
                running.ask("turns", sessions=1, turns=10)
                before = wire.trips
                running.ask("turns", sessions=1, turns=turns)
                trips[contender.name] = (wire.trips - before) / turns
            finally:
                running.close()
    with Wire(folder, DELAY_MS) as wire:
        contenders = [
            rows.floor_postgres(wire.url(bench.postgres.database())),
            rows.holdfast(HOLDFAST, wire.url(bench.postgres.database())),
        ]
        entries = race(bench, contenders, sessions=1, turns=turns)
    result.enter("delayed", entries)
    result.data["trips a turn"] = trips
    table = Table(
        f"Trips counted on the wire, and a round trip that takes {DELAY_MS:g} ms longer", ("", "trips a turn", "p50 ms")
    )
    table.rows = [[name, number(trips[name]), entry.latency(0.5).show()] for name, entry in entries.items()]
    result.tables.append(table)
    result.at_most("one trip a commit, counted", Spread((trips[HOLDFAST],)), 1)
    slower = entries[HOLDFAST].latency(0.5).over(entries[FLOOR].latency(0.5))
    result.at_most(f"at {DELAY_MS:g} ms network delay: p50 <= 1.3 x floor", slower, 1.3)
