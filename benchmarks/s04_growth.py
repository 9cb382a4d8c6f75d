"""S4: does a commit cost more at turn 10,000 than at turn 10?"""

from __future__ import annotations

from benchmarks import plot, rows
from benchmarks.contender import CannotRun, Contender, Running
from benchmarks.core import Bench, Result, Table
from benchmarks.postgres import Wire
from benchmarks.statistics import Spread, median, number

ID, QUESTION = "S4", "Growth: commit latency at turn 10,000 against turn 10, and statements a commit"
YOUNG = 20
"""A young session is measured over its first turns, so that turn 10 is in the middle."""
POINTS = 20


def run(bench: Bench) -> Result:
    """Alternate between a long session and young ones, in stores of their own, so that each pair shares its noise."""
    result = Result(ID, QUESTION)
    turns = bench.size(10_000, 200)
    table = Table(
        f"p50 of a commit around turn {turns:,} and around turn 10, measured alternately",
        ("", "ms, long", "ms, young", "ratio", "statements or trips a commit, long and young"),
    )
    result.tables.append(table)
    curves: dict[str, list[tuple[float, float]]] = {}
    file = Spread(compare(bench, result, table, curves, "Holdfast on SQLite", turns))
    with Wire(str(bench.postgres.server.folder)) as wire:
        server = Spread(compare(bench, result, table, curves, "Holdfast on PostgreSQL", turns, wire))
    result.at_most("SQLite: <= 1.2 x", file, 1.2)
    result.at_most("PostgreSQL: <= 1.2 x", server, 1.2)
    peers(bench, result, curves)
    shown = {name: [point for point in points if point[0] <= bench.size(1000, 200)] for name, points in curves.items()}
    result.plots["latency-over-turns.svg"] = plot.lines(
        "Latency of a turn as the conversation grows", "turn", "p50 of a turn, ms", shown, logarithmic=True
    )
    result.data["curves"] = curves
    return result


def compare(
    bench: Bench,
    result: Result,
    table: Table,
    curves: dict[str, list[tuple[float, float]]],
    name: str,
    turns: int,
    wire: Wire | None = None,
) -> tuple[float, ...]:
    """Fill one store, then let both take turns. Work is counted on the wire, or by SQLite itself."""

    def start() -> Running:
        where = bench.file() if wire is None else wire.url(bench.postgres.database())
        contender = rows.holdfast(name, where)
        contender.where["traced"] = wire is None
        running = Running(contender)
        running.open()
        return running

    def measure(running: Running, prefix: str) -> tuple[float, float]:
        # Create the session before it is measured.
        running.ask("turns", sessions=1, turns=2, prefix=prefix)
        before = 0 if wire is None else wire.trips
        answer = running.ask("turns", sessions=1, turns=YOUNG, prefix=prefix)
        work = answer["statements"] if wire is None else wire.trips - before
        return median(answer["latencies_ms"]), work / YOUNG

    long, young = start(), start()
    try:
        bench.tell(f"{name}: {turns:,} turns")
        curves[name] = curve(long, turns)
        measure(young, "warm")
        pairs = [(measure(long, "chat"), measure(young, f"young-{each}")) for each in range(bench.rounds * 2)]
    finally:
        long.close()
        young.close()
    ratios = tuple(old[0] / new[0] for old, new in pairs)
    counts = {round(old[1], 2) for old, _ in pairs[1:]}, {round(new[1], 2) for _, new in pairs[1:]}
    answer = [Spread(tuple(pair[side][0] for pair in pairs)).show() for side in (0, 1)]
    table.rows.append(
        [name, *answer, Spread(ratios).show(), " / ".join(", ".join(map(number, each)) for each in counts)]
    )
    result.data[name] = {"pairs": pairs}
    # Counts need no tolerance. The first pair still prepares statements.
    work = "statements" if wire is None else "trips"
    grown = Spread(tuple(old[1] / new[1] for old, new in pairs[1:]))
    result.at_most(f"{name}: {work} a commit constant, turn {turns:,} / turn 10 (1.0 x)", grown, 1)
    return ratios


def curve(running: Running, turns: int) -> list[tuple[float, float]]:
    """Return the median latency of each stretch."""
    points: list[tuple[float, float]] = []
    step = max(10, turns // (POINTS * 10))
    done = 0
    while done < turns:
        answer = running.ask("turns", sessions=1, turns=min(step, turns - done))
        points.append((done + step / 2, median(answer["latencies_ms"])))
        done += step
    return points


def peers(bench: Bench, result: Result, curves: dict[str, list[tuple[float, float]]]) -> None:
    """Measure the growth of the peers' latencies over fewer turns: some of them would take all day."""
    turns = bench.size(1000, 100)
    table = Table(
        f"Peers: p50 of a turn at the beginning and at turn {turns:,}", ("", "ms, first", "ms, last", "ratio")
    )
    chosen: list[Contender] = [
        *(peer for peer in rows.sqlite_peers(bench) if peer.name in {rows.LANGGRAPH_SQLITE, rows.OPENAI_SQLITE}),
        *(peer for peer in rows.postgres_peers(bench) if peer.name == rows.LANGGRAPH_POSTGRES),
    ]
    for contender in bench.wanted(chosen):
        bench.tell(contender.name)
        running = Running(contender)
        try:
            running.open()
            running.ask("turns", sessions=1, turns=5)
            points = curve(running, turns)
        except CannotRun as failure:
            table.rows.append([contender.name, "-", "-", f"cannot run here: {failure}".splitlines()[0]])
            continue
        finally:
            running.close()
        curves[contender.name] = points
        first, last = points[0][1], points[-1][1]
        table.rows.append([contender.name, number(first), number(last), number(last / first)])
    if table.rows:
        result.tables.append(table)
