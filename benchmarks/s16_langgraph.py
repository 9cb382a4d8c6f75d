"""S16: LangGraph on Holdfast against its own savers: bytes, time, and two writers on one thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contender import Contender, Running
from benchmarks.core import Bench, Result, Table
from benchmarks.statistics import Spread, number, percentile

ID, QUESTION = "S16", "LangGraph: stored bytes and time of a chat against its own savers"
MEGABYTE = 1_000_000
OURS, THEIRS = "HoldfastSaver", {"SQLite": "SqliteSaver", "PostgreSQL": "PostgresSaver"}
LEAST_RATIO = 20


def run(bench: Bench) -> Result:
    """Run the same chat on both savers of a database, in processes of their own."""
    result = Result(ID, QUESTION)
    # Each contender takes seconds to import its framework.
    kinds = ("SQLite", "PostgreSQL") if bench.size(2, 1) == 2 else ("SQLite",)
    for turns in (200, 1000) if len(kinds) == 2 else (5,):
        for kind in kinds:
            columns = ("", "stored, MB", "turn p50 ms", "put p50 ms", "put_writes p50 ms", "get_tuple p50 ms")
            table = Table(f"{kind}: one thread, {turns:,} turns with add_messages", columns)
            result.tables.append(table)
            sizes: dict[str, float] = {}
            for contender in bench.wanted(contenders(bench, kind)):
                bench.tell(f"{kind}, {turns} turns: {contender.name}")
                found, stored = measured(bench, contender, turns)
                sizes[contender.name] = stored
                calls: dict[str, list[float]] = found["calls"]
                shown = [number(percentile(calls[name], 0.5)) for name in ("put", "put_writes", "get_tuple")]
                each = found["seconds"] / turns * 1000
                table.rows.append([contender.name, number(stored / MEGABYTE), number(each), *shown])
                result.data[f"{kind}, {turns} turns, {contender.name}"] = {"bytes": stored, "seconds": found["seconds"]}
            if kind == "SQLite" and len(sizes) > 1 and turns >= 200:
                ratio = Spread((sizes[THEIRS[kind]] / sizes[OURS],))
                result.at_least(f"{kind}, {turns} turns: {LEAST_RATIO} x less than {THEIRS[kind]}", ratio, LEAST_RATIO)
    writers(bench, result, kinds)
    return result


def contenders(bench: Bench, kind: str) -> list[Contender]:
    """Return both savers, each with a database of its own."""

    def of(name: str, saver: str) -> Contender:
        url = bench.postgres.database() if kind == "PostgreSQL" else bench.file()
        return Contender(name, "benchmarks.drivers.langgraph_graph", {"url": url, "saver": saver})

    return [of(OURS, "holdfast"), of(THEIRS[kind], {"SQLite": "sqlite", "PostgreSQL": "postgres"}[kind])]


def measured(bench: Bench, contender: Contender, turns: int) -> tuple[dict[str, Any], float]:
    """Return the answers of a run, and the bytes on disk after its end."""
    running = Running(contender)
    try:
        running.open()
        found: dict[str, Any] = running.ask("turns", count=turns)
    finally:
        running.close()
    return found, size(bench, contender)


def size(bench: Bench, contender: Contender) -> float:
    """Return the size of its database."""
    url = str(contender.where["url"])
    if url.startswith("postgresql"):
        return bench.postgres.size(url)
    return sum(each.stat().st_size for each in Path(url).parent.iterdir() if each.name.startswith(Path(url).name))


def writers(bench: Bench, result: Result, kinds: Sequence[str]) -> None:
    """Let two processes take a turn from the same checkpoint, and see whose turn is left."""
    table = Table(
        "Two processes take a turn of one thread at the same time", ("", "second writer", "turn of the first")
    )
    result.tables.append(table)
    for kind in kinds:
        for contender in bench.wanted(contenders(bench, kind))[: len(kinds)]:
            bench.tell(f"{kind}, two writers: {contender.name}")
            running = Running(contender)
            try:
                running.open()
                running.ask("turns", count=1)
                found: dict[str, Any] = running.ask("two_writers")
            finally:
                running.close()
            kept = "kept" if found["other"] else "lost"
            table.rows.append([f"{contender.name}, {kind}", found["refused"] or "told nothing", kept])
            result.data[f"two writers, {kind}, {contender.name}"] = found
