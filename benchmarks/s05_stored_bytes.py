"""S5: the stored bytes for a byte of new content."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import plot, rows, work
from benchmarks.contender import CannotRun, Contender, Running
from benchmarks.core import Bench, Result, Table
from benchmarks.statistics import Spread, number

ID, QUESTION = "S5", "Stored bytes against new content"
MEGABYTE = 1_000_000
STATE_BYTES, CHANGED_BYTES = 1_048_576, 10_480
POINTS, QUICK_POINTS = 5, 1


def run(bench: Bench) -> Result:
    """Store the same turns with each contender, and measure its database on disk after a close or a checkpoint."""
    result = Result(ID, QUESTION)
    turns = bench.size(1000, 50)
    sqlite = [
        rows.floor_sqlite(bench),
        rows.holdfast("Holdfast, full turn", bench.file()),
        counting("Holdfast, 2 KB and a count", bench.file()),
        *rows.sqlite_peers(bench),
    ]
    measured = conversations(bench, result, "SQLite", sqlite, turns)
    postgres = [
        rows.floor_postgres(bench.postgres.database()),
        rows.holdfast("Holdfast, full turn", bench.postgres.database()),
        counting("Holdfast, 2 KB and a count", bench.postgres.database()),
        *rows.postgres_peers(bench),
    ]
    on_server = conversations(bench, result, "PostgreSQL", postgres, turns)
    for kind, found in (("SQLite", measured), ("PostgreSQL", on_server)):
        for name in ("Holdfast, 2 KB and a count", "Holdfast, full turn"):
            result.at_most(f"{kind}, {name}: <= 2 x the new content", Spread((found[name],)), 2)
    large(bench, result)
    return result


def counting(name: str, url: str) -> Contender:
    """Return Holdfast with a count as its checkpoint, so that only the messages are new."""
    contender = rows.holdfast(name, url)
    return dataclasses.replace(
        contender, where=contender.where | {"state": False}, carries=("messages",), less="the checkpoint is a count"
    )


def conversations(bench: Bench, result: Result, kind: str, contenders: list[Contender], turns: int) -> dict[str, float]:
    """Measure the bytes on disk of each contender, and their growth."""
    table = Table(f"{kind}: one session, {turns:,} turns", ("", "new content, MB", "stored, MB", "ratio", "does less"))
    ratios: dict[str, float] = {}
    series: dict[str, list[tuple[float, float]]] = {}
    for contender in bench.wanted(contenders):
        bench.tell(f"{kind}: {contender.name}")
        fresh = turns * sum(work.PARTS[part] for part in contender.carries)
        try:
            series[contender.name] = growth(bench, contender, turns)
        except CannotRun as failure:
            if not contender.peer:
                raise
            table.rows.append([contender.name, "-", "-", "-", f"cannot run here: {failure}".splitlines()[0]])
            continue
        stored = series[contender.name][-1][1] * MEGABYTE
        ratios[contender.name] = stored / fresh
        row = [contender.name, number(fresh / MEGABYTE), number(stored / MEGABYTE), number(stored / fresh)]
        table.rows.append([*row, contender.less])
    result.tables.append(table)
    result.data[kind] = {"ratios": ratios, "megabytes over turns": series}
    result.plots[f"bytes-over-turns-{kind.lower()}.svg"] = plot.lines(
        f"Stored for 6 KB of new content a turn, {kind}", "turn", "MB on disk", series, logarithmic=True
    )
    return ratios


def growth(bench: Bench, contender: Contender, turns: int) -> list[tuple[float, float]]:
    """Return the megabytes on disk at several points. The log of a file-based contender counts until the end."""
    running = Running(contender)
    try:
        running.open()
        empty = size(bench, contender) if "postgres" in location(contender) else 0
        points: list[tuple[float, float]] = []
        steps = bench.size(POINTS, QUICK_POINTS)
        for step in range(1, steps + 1):
            running.ask("turns", sessions=1, turns=turns // steps)
            points.append((step * turns / steps, (size(bench, contender) - empty) / MEGABYTE))
        running.audit()
    finally:
        running.close()
    points[-1] = (points[-1][0], (size(bench, contender) - empty) / MEGABYTE)
    return points


def location(contender: Contender) -> str:
    """Return the location of its database."""
    return str(contender.where.get("path") or contender.where["url"])


def size(bench: Bench, contender: Contender) -> int:
    """Return the current size of its database on disk."""
    where = location(contender)
    if where.startswith("postgresql"):
        return bench.postgres.size(where)
    path = urlsplit(where).path.replace("//", "/")
    return sum(each.stat().st_size for each in Path(path).parent.iterdir() if not each.name.endswith("-shm"))


def large(bench: Bench, result: Result) -> None:
    """Measure a state of 1 MB of which one per cent changes, in ten scattered pieces."""
    count = bench.size(200, 20)
    table = Table(
        f"A state of 1 MB, 1 % of it new in each of {count} turns", ("", "sent, MB", "new, MB", "stored, MB", "p50 ms")
    )
    for kind, url in (("SQLite", bench.file()), ("PostgreSQL", bench.postgres.database())):
        bench.tell(f"large state on {kind}")
        contender = rows.holdfast("Holdfast", url)
        running = Running(contender)
        try:
            running.open()
            empty = size(bench, contender) if kind == "PostgreSQL" else 0
            answer = running.ask("states", count=count, state_bytes=STATE_BYTES, changed_bytes=CHANGED_BYTES)
        finally:
            running.close()
        stored = (size(bench, contender) - empty) / MEGABYTE
        fresh = (STATE_BYTES + CHANGED_BYTES * (count - 1)) / MEGABYTE
        p50 = sorted(answer["latencies_ms"])[count // 2]
        table.rows.append([kind, number(STATE_BYTES * count / MEGABYTE), number(fresh), number(stored), number(p50)])
        result.at_most(f"{kind}: 200 turns of a 1 MB state: <= 12 MB", Spread((stored,)), 12, unit=" MB")
    result.tables.append(table)
