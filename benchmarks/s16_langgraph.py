"""S16: LangGraph on Holdfast against its own savers: bytes, time, and two writers on one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.chats import compared, merged
from benchmarks.contender import Contender, Running
from benchmarks.core import Bench, Entry, Result, Table
from benchmarks.statistics import number, percentile

ID, QUESTION = "S16", "LangGraph: stored bytes and time of a chat against its own savers"
OURS, THEIRS = "HoldfastSaver", {"SQLite": "SqliteSaver", "PostgreSQL": "PostgresSaver"}
MOST_BYTES = 1 / 20
CALLS = ("put", "put_writes", "get_tuple")


def run(bench: Bench) -> Result:
    """Run the same chat on both savers of a database, in processes of their own."""
    result = Result(ID, QUESTION)
    # Each contender takes seconds to import its framework.
    kinds = ("SQLite", "PostgreSQL") if bench.size(2, 1) == 2 else ("SQLite",)
    for turns in (200, 1000) if len(kinds) == 2 else (5,):
        for kind in kinds:
            columns = ("", "stored, MB", "turn ms", "processor ms", *(f"{name} p50 ms" for name in CALLS))
            table = Table(f"{kind}: one thread, {turns:,} turns with add_messages", columns)
            result.tables.append(table)
            pair = contenders(bench, kind)
            compared(bench, result, table, pair, turns=turns, most_bytes=MOST_BYTES, cells=_calls)
    writers(bench, result, kinds)
    return result


def _calls(entry: Entry) -> list[str]:
    return [number(percentile(merged(entry, name), 0.5)) for name in CALLS]


def contenders(bench: Bench, kind: str) -> list[Contender]:
    """Return both savers, each with a database of its own."""

    def of(name: str, saver: str) -> Contender:
        url = bench.postgres.database() if kind == "PostgreSQL" else bench.file()
        return Contender(name, "benchmarks.drivers.langgraph_graph", {"url": url, "saver": saver})

    return [of(OURS, "holdfast"), of(THEIRS[kind], {"SQLite": "sqlite", "PostgreSQL": "postgres"}[kind])]


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
            table.rows.append([f"{contender.name}, {kind}", found["refused"] or "not reported", kept])
            result.data[f"two writers, {kind}, {contender.name}"] = found
