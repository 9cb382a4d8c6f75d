"""S17: OpenAI Agents, Google ADK and A2A on Holdfast against the frameworks' own stores: bytes and time of a chat."""

from __future__ import annotations

from benchmarks.chats import PARTS, compared, merged
from benchmarks.contender import Contender
from benchmarks.core import Bench, Entry, Result, Table
from benchmarks.statistics import number, percentile

ID, QUESTION = "S17", "Stored bytes and time of a chat in the stores of other frameworks"
MOST_BYTES = 1.2
"""Most bytes, as a multiple of those of the framework's own store."""
FRAMEWORKS = {
    "openai": ("HoldfastSession", "SQLiteSession", "SQLAlchemySession"),
    "adk": ("HoldfastSessionService", "DatabaseSessionService", "DatabaseSessionService"),
    "a2a": ("HoldfastTaskStore", "DatabaseTaskStore", "DatabaseTaskStore"),
}
"""For each framework, our store, and its own on SQLite and on PostgreSQL."""
LAST = 20
"""The turns at the end whose time is shown: a store that rewrites its history gets slower."""
TIMED = 20
"""The turns of each part that are timed, at its end. Reading a long conversation takes ADK a second."""


def run(bench: Bench) -> Result:
    """Run the same chat on both stores of a database, in processes of their own."""
    result = Result(ID, QUESTION)
    whole = bench.size(2, 1) == 2
    # Each contender takes seconds to import its framework.
    for turns in (200, 1000) if whole else (5,):
        for kind in ("SQLite", "PostgreSQL") if whole else ("SQLite",):
            for framework in FRAMEWORKS if whole else ("openai",):
                columns = ("", "stored, MB", "turn ms", "processor ms", f"last {LAST} p50 ms", "beyond empty, MB")
                table = Table(f"{framework}, {kind}: one conversation, {turns:,} turns", columns)
                result.tables.append(table)
                pair = contenders(bench, kind, framework)[: 2 if whole else 1]
                empty = contenders(bench, kind, framework)[: len(pair)]
                compared(
                    bench,
                    result,
                    table,
                    pair,
                    turns=turns,
                    most_bytes=MOST_BYTES,
                    cells=_last,
                    empty=empty,
                    timed=TIMED if turns > TIMED * PARTS else None,
                )
    result.notes.append(
        f"Of 1,000 turns, the last {TIMED} of each {1000 // PARTS} are timed. The others do not read the conversation."
    )
    result.notes.append(
        "A Holdfast store has tables for everything that it can do: an empty SQLite file is 0.38 MB, so that the bytes "
        "beyond it are judged, too."
    )
    return result


def _last(entry: Entry) -> list[str]:
    return [number(percentile(merged(entry, "times")[-LAST:], 0.5))]


def contenders(bench: Bench, kind: str, framework: str) -> list[Contender]:
    """Return both stores of a framework, ours first, each with a database of its own."""
    our_name, *their_names = FRAMEWORKS[framework]

    def of(name: str, *, ours: bool) -> Contender:
        url = bench.postgres.database() if kind == "PostgreSQL" else bench.file()
        where = {"url": url, "framework": framework, "ours": ours}
        return Contender(f"{framework}: {name}", "benchmarks.drivers.framework_sessions", where)

    return [of(our_name, ours=True), of(their_names[kind == "PostgreSQL"], ours=False)]
