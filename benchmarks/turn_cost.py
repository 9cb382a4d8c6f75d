"""Count what full turns cost on SQLite: pages of the log by table and index, and statements. Counts, no times.

.venv/bin/python -m benchmarks.turn_cost --sessions 16
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw

import holdfast
from benchmarks import work
from benchmarks.drivers.holdfast_turns import commit_of
from holdfast.backends.sqlite import SqliteBackend
from holdfast.blocking import BlockingStore
from holdfast.store import Context, Store
from holdfast.testing.clock import ManualClock
from holdfast.wait import BlockingWaiting

WAL_HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24
TURN_MS = 5_000
"""Time between two turns, so that the minute of the last change sometimes moves on."""


class Cost(NamedTuple):
    """Counts of all turns together: pages by tree and kind of page, statements by name."""

    turns: int
    pages: Counter[str]
    statements: Counter[str]

    @property
    def pages_per_turn(self) -> float:
        """Pages that a turn adds to the log."""
        return self.pages.total() / self.turns

    @property
    def statements_per_turn(self) -> float:
        """Statements that SQLite begins for a turn, BEGIN and COMMIT included."""
        return self.statements.total() / self.turns


def measure(folder: Path, *, sessions: int = 1, before: int = 500, turns: int = 200) -> Cost:
    """Commit `before` turns of each session, then count `turns` more of each."""

    def prepare(store: BlockingStore, clock: ManualClock) -> Callable[[int], None]:
        handles = {name: store.sessions.create(name) for name in (f"chat-{number}" for number in range(sessions))}

        def run(number: int) -> None:
            for name, handle in handles.items():
                handle.commit(commit_of(work.turn(name, number)))
                clock.advance(TURN_MS)

        return run

    cost = _counted(folder, prepare, before, turns)
    return cost._replace(turns=turns * sessions)


def measure_events(folder: Path, *, before: int = 300, events: int = 100) -> Cost:
    """Append `before` events to a process, then count `events` more. A turn is one event here."""

    def prepare(store: BlockingStore, clock: ManualClock) -> Callable[[int], None]:
        kinds = [holdfast.events.EventType("progress")]
        target = holdfast.processes.External()
        store.processes.register(holdfast.ProcessRegistration("process", target, event_types=kinds))

        def run(number: int) -> None:
            store.events.append("process", "progress", {"percent": number % 100, "text": "x" * 180})
            clock.advance(TURN_MS)

        return run

    return _counted(folder, prepare, before, events)


def _counted(
    folder: Path, prepare: Callable[[BlockingStore, ManualClock], Callable[[int], None]], before: int, turns: int
) -> Cost:
    clock = ManualClock()
    options = holdfast.SqliteOptions(synchronous="off")
    backend = SqliteBackend.open(folder / "cost.db", options, clock, BlockingWaiting())
    store = BlockingStore(Store(Context(backend, holdfast.Limits())), backend)
    connection = backend._runner.connection
    connection.wal_autocheckpoint(0)
    run = prepare(store, clock)
    for number in range(1, before + 1):
        run(number)
    log = Path(connection.filename_wal)
    log_bytes = log.stat().st_size
    names = {text: name for name, text in backend._runner.names.items()}
    begun: Counter[str] = Counter()

    def note(event: Any) -> None:
        begun[names[event["sql"]]] += 1

    connection.trace_v2(apsw.SQLITE_TRACE_STMT, note)
    for number in range(before + 1, before + turns + 1):
        run(number)
    connection.trace_v2(0, None)
    listed: list[Any] = connection.execute("SELECT pageno, name || ', ' || pagetype FROM dbstat").fetchall()
    trees: dict[int, str] = dict(listed) | {1: "page 1"}
    pages = Counter(trees.get(page, "free") for page in _pages(log, log_bytes))
    store.close()
    return Cost(turns, pages, begun)


def _pages(log: Path, start: int) -> Iterator[int]:
    """Yield the page number of each frame of a log, from a byte offset on."""
    data = log.read_bytes()
    (page_bytes,) = struct.unpack_from(">I", data, 8)
    for at in range(max(start, WAL_HEADER_BYTES), len(data), FRAME_HEADER_BYTES + page_bytes):
        yield struct.unpack_from(">I", data, at)[0]


def main() -> None:
    """Print both counts for one turn."""
    parser = argparse.ArgumentParser(description="Count pages of the log and statements of full turns on SQLite.")
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--before", type=int, default=500)
    parser.add_argument("--turns", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cost = measure(Path(folder), sessions=given.sessions, before=given.before, turns=given.turns)
    for title, counts in (("pages of the log", cost.pages), ("statements", cost.statements)):
        sys.stdout.write(f"{title} a turn: {counts.total() / cost.turns:.2f}\n")
        for name, count in counts.most_common():
            sys.stdout.write(f"  {count / cost.turns:6.2f}  {name}\n")


if __name__ == "__main__":
    main()
