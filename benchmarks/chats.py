"""One conversation in two stores of a framework: they take turns, part by part, and every target is judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import child
from benchmarks.contender import Contender, Running
from benchmarks.core import Bench, Entry, Result, Table, race, whole_way
from benchmarks.statistics import Spread, number

MEGABYTE = 1_000_000
PARTS = 10
"""Parts of a conversation: a disturbance of the machine, and the growth, reach both stores."""
MOST_TIME = 1.0
"""Most time of a conversation, as a multiple of that in the framework's own store."""

Cells = Callable[[Entry], list[str]]


def compared(
    bench: Bench,
    result: Result,
    table: Table,
    pair: Sequence[Contender],
    *,
    turns: int,
    most_bytes: float,
    cells: Cells,
    empty: Sequence[Contender] = (),
    timed: int | None = None,
) -> None:
    """Have a conversation in both stores at once, part by part. Add a row for each, and the targets.

    Holdfast comes first. Columns: the name, the bytes, the time and the processor time of a turn, and `cells`. `empty`
    are the same contenders on databases that get no turn: then the bytes beyond those are shown and judged, too.
    `timed` is the number of turns of each part, at its end, that are timed; the others only add to the conversation.
    """
    parts = min(PARTS, turns)
    more = {} if timed is None else {"timed": timed}
    measured = turns if timed is None else parts * timed
    watched = [dataclasses.replace(each, environment=each.environment | _server(bench, each)) for each in pair]
    entries = race(bench, watched, rounds=parts, audit=False, warm=None, count=turns // parts, **more)
    sizes = {each.name: size(bench, each) for each in pair if entries[each.name].error is None}
    for name, entry in entries.items():
        if entry.error is not None:
            table.rows.append([name, f"cannot run here: {entry.error}", *["-"] * (len(table.columns) - 2)])
            continue
        seconds = sum(each["seconds"] for each in entry.rounds)
        processor = sum(each["client_cpu_s"] + each["server_cpu_s"] for each in entry.rounds)
        each_ms = [number(total / measured * 1000) for total in (seconds, processor)]
        shown = [number(sizes[name] / MEGABYTE), *each_ms]
        table.rows.append([name, *shown, *cells(entry)])
        result.data[f"{table.title}: {name}"] = {"bytes": sizes[name], "seconds": seconds, "processor_s": processor}
    grown = {each.name: sizes[each.name] - empty_size(bench, each) for each in empty if each.name in sizes}
    for row in table.rows:
        if grown:
            row.append(number(grown[row[0]] / MEGABYTE) if row[0] in grown else "-")
    if len(pair) < 2:
        return
    ours, theirs = (each.name for each in pair)
    share = Spread((sizes[ours] / sizes[theirs],)) if len(sizes) == 2 else None
    result.at_most(f"{table.title}: bytes <= {most_bytes:g} of {theirs}", share, most_bytes)
    if empty:
        growth = Spread((grown[ours] / grown[theirs],)) if len(grown) == 2 else None
        result.at_most(f"{table.title}: bytes beyond the empty store <= {most_bytes:g}", growth, most_bytes)
    time = whole_way(entries, theirs, ours)
    result.at_most(f"{table.title}: time <= {MOST_TIME:g} of {theirs}", time, MOST_TIME)


def size(bench: Bench, contender: Contender) -> float:
    """Return the bytes of its database on disk. It must be closed."""
    url = str(contender.where["url"])
    if url.startswith("postgresql"):
        return bench.postgres.size(url)
    return sum(each.stat().st_size for each in Path(url).parent.iterdir() if each.name.startswith(Path(url).name))


def empty_size(bench: Bench, contender: Contender) -> float:
    """Return the bytes of a database that was opened, with its tables, and closed again."""
    running = Running(contender)
    try:
        running.open()
    finally:
        running.close()
    return size(bench, contender)


def _server(bench: Bench, contender: Contender) -> dict[str, str]:
    """Return the variable that makes a contender measure the server's processor time, too."""
    if not str(contender.where["url"]).startswith("postgresql"):
        return {}
    pid = (bench.postgres.server.folder / "data" / "postmaster.pid").read_text(encoding="utf-8").split()[0]
    return {child.SERVER_VARIABLE: pid}


def merged(entry: Entry, key: str) -> list[Any]:
    """Return the lists under a key of all parts as one."""
    return [value for each in entry.rounds for value in each[key]]
