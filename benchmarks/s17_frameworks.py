"""S17: OpenAI Agents, Google ADK and A2A on Holdfast against the frameworks' own stores: bytes and time of a chat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contender import Contender, Running
from benchmarks.core import Bench, Result, Table
from benchmarks.statistics import number, percentile

ID, QUESTION = "S17", "Stored bytes and time of a chat in the stores of other frameworks"
MEGABYTE = 1_000_000
FRAMEWORKS = {
    "openai": ("HoldfastSession", "SQLiteSession", "SQLAlchemySession"),
    "adk": ("HoldfastSessionService", "DatabaseSessionService", "DatabaseSessionService"),
    "a2a": ("HoldfastTaskStore", "DatabaseTaskStore", "DatabaseTaskStore"),
}
"""For each framework, our store, and its own on SQLite and on PostgreSQL."""
LAST = 20
"""The turns at the end whose time is shown: a store that rewrites its history gets slower."""


def run(bench: Bench) -> Result:
    """Run the same chat on both stores of a database, in processes of their own."""
    result = Result(ID, QUESTION)
    whole = bench.size(2, 1) == 2
    # Each contender takes seconds to import its framework.
    for turns in (200, 1000) if whole else (5,):
        for kind in ("SQLite", "PostgreSQL") if whole else ("SQLite",):
            table = Table(
                f"{kind}: one conversation, {turns:,} turns", ("", "stored, MB", "turn p50 ms", f"last {LAST} p50 ms")
            )
            result.tables.append(table)
            for contender in contenders(bench, kind, list(FRAMEWORKS) if whole else ["openai"], theirs=whole):
                bench.tell(f"{kind}, {turns} turns: {contender.name}")
                times, stored = measured(bench, contender, turns)
                shown = [number(percentile(each, 0.5)) for each in (times, times[-LAST:])]
                table.rows.append([contender.name, number(stored / MEGABYTE), *shown])
                result.data[f"{kind}, {turns} turns, {contender.name}"] = {"bytes": stored, "ms": sum(times)}
    return result


def contenders(bench: Bench, kind: str, frameworks: list[str], *, theirs: bool) -> list[Contender]:
    """Return both stores of each framework, each with a database of its own."""

    def of(framework: str, name: str, *, ours: bool) -> Contender:
        url = bench.postgres.database() if kind == "PostgreSQL" else bench.file()
        where = {"url": url, "framework": framework, "ours": ours}
        return Contender(f"{framework}: {name}", "benchmarks.drivers.framework_sessions", where)

    found: list[Contender] = []
    for framework in frameworks:
        our_name, *their_names = FRAMEWORKS[framework]
        found.append(of(framework, our_name, ours=True))
        if theirs:
            found.append(of(framework, their_names[kind == "PostgreSQL"], ours=False))
    return found


def measured(bench: Bench, contender: Contender, turns: int) -> tuple[list[float], float]:
    """Return the time of each turn, and the bytes on disk after its end."""
    running = Running(contender)
    try:
        running.open()
        found: dict[str, Any] = running.ask("turns", count=turns)
    finally:
        running.close()
    url = str(contender.where["url"])
    if url.startswith("postgresql"):
        return found["times"], bench.postgres.size(url)
    files = [each for each in Path(url).parent.iterdir() if each.name.startswith(Path(url).name)]
    return found["times"], sum(each.stat().st_size for each in files)
