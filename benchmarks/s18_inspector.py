"""S18: does the inspector show a page of a million sessions at once, and a long conversation?"""

from __future__ import annotations

from benchmarks.contender import Contender, Running
from benchmarks.core import Bench, Result, Table
from benchmarks.statistics import latency

ID, QUESTION = "S18", "Inspector: the first page of a million sessions, and a session of 10,000 nodes"
SESSIONS_MS = 100.0
SESSION_MS = 200.0


def run(bench: Bench) -> Result:
    """Ask for each page in turns, on both databases."""
    result = Result(ID, QUESTION)
    sessions, nodes = bench.size(1_000_000, 2_000), bench.size(10_000, 500)
    reads = bench.size(30, 5)
    table = Table(f"{sessions:,} sessions, one of {nodes:,} nodes", ("", "p50 ms", "p99 ms"))
    result.tables.append(table)
    for kind in ("SQLite", "PostgreSQL"):
        url = bench.file() if kind == "SQLite" else bench.postgres.database()
        bench.tell(f"{kind}: makes {sessions:,} sessions and {nodes:,} nodes")
        where = {"url": url, "sessions": sessions, "nodes": nodes}
        running = Running(Contender("Holdfast", "benchmarks.drivers.holdfast_inspector", where))
        try:
            running.open()
            second = running.ask("next_of", path="/sessions", query={})
            pages = {
                "first page of the sessions": ("/sessions", {}, SESSIONS_MS),
                "second page": ("/sessions", second, SESSIONS_MS),
                "first page of a label": ("/sessions", {"text": "plan:team"}, SESSIONS_MS),
                "the long session": ("/session", {"id": "long"}, SESSION_MS),
                "its tree": ("/tree", {"id": "long"}, SESSION_MS),
            }
            for path, query, _ in pages.values():
                running.ask("page", path=path, query=query, reads=2)
            for title, (path, query, most_ms) in pages.items():
                bench.tell(f"{kind}: {title}")
                rounds = [running.ask("page", path=path, query=query, reads=reads) for _ in range(bench.rounds)]
                p50, p99 = latency(rounds, 0.5), latency(rounds, 0.99)
                table.rows.append([f"{kind}, {title}", p50.show(), p99.show()])
                result.data[f"{kind}, {title}"] = {"p50_ms": p50.data(), "p99_ms": p99.data()}
                result.at_most(f"{kind}, {title}: <= {most_ms:g} ms", p50, most_ms, unit=" ms")
        finally:
            running.close()
    result.notes.append("From the request to the last byte of the answer, in one process, without a network.")
    return result
