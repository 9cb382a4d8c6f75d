"""Reads of a file whose pages form loops end, in time bounded by the size of the file."""

from __future__ import annotations

import re
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.backends.sqlite import budget
from holdfast.backends.sqlite.connection import StatementRunner, statements
from holdfast.backends.sqlite.schema_setup import schema_text
from holdfast.events import EventType
from holdfast.maintenance import VerifyReport
from holdfast.processes import External
from holdfast.sessions import FullGraph

PAGE_BYTES = 4_096
LONGEST_S = 60
"""Far more than any reading takes, and far less than one of billions of rows."""

Read = Callable[[holdfast.BlockingStore], object]

TREES = {
    "sessions": 13, "nodes": 13, "sessions_live_id": 10, "sessions_family": 10, "turn_ids": 10, "node_ids": 10,
    "revisions": 13, "blobs": 13, "events": 13, "usage": 10,
}  # fmt: skip
"""Tables and indexes, and the kind of page that the leaf of each is: of a table with row ids, or of an index."""


def fill(path: Path) -> None:
    with holdfast.open_blocking(path) as store:
        session = store.sessions.create("chat")
        for number in range(3):
            node = holdfast.Node(f"n{number}", payload="x" * 50)
            session.commit(
                holdfast.Commit(
                    turn_id=f"t{number}",
                    graph=holdfast.Append([node], leaf=node.id),
                    checkpoint=holdfast.Checkpoint(turn_state={"number": number}),
                    usage=[holdfast.Usage("chat", "m", input_tokens=1)],
                )
            )
        kinds = [EventType("ping")]
        store.processes.register(holdfast.ProcessRegistration("p", External(), event_types=kinds))
        store.events.append("p", "ping", 1)


def varint(number: int) -> bytes:
    """Encode a number as SQLite encodes row ids: seven bits a byte, the highest first."""
    parts = [number & 127]
    while number := number >> 7:
        parts.append(number & 127 | 128)
    return bytes(reversed(parts))


def interior(leaf: bytes, child: int, fan_out: int, last: int) -> bytes:
    """Return an interior page that points to one child many times. `last` is the greatest row id of a table."""
    is_table = leaf[0] == 13
    if is_table:
        payload = varint(last)
    else:
        (start,) = struct.unpack_from(">H", leaf, 8)
        assert leaf[start + 1] < 128, "the first cell has a length of one or two bytes"
        head, length = (2, (leaf[start] & 127) << 7 | leaf[start + 1]) if leaf[start] > 127 else (1, leaf[start])
        payload = leaf[start : start + head + length]
        fan_out = min(fan_out, (PAGE_BYTES - 100) // (len(payload) + 6))
    page, top, places = bytearray(PAGE_BYTES), PAGE_BYTES, []
    for _ in range(fan_out):
        cell = struct.pack(">I", child) + payload
        top -= len(cell)
        page[top : top + len(cell)] = cell
        places.append(top)
    page[0] = 5 if is_table else 2
    struct.pack_into(">HHHB", page, 1, 0, fan_out, top, 0)
    struct.pack_into(">I", page, 8, child)
    for index, place in enumerate(places):
        struct.pack_into(">H", page, 12 + 2 * index, place)
    return bytes(page)


def cycle(path: Path, tree: str, *, fan_out: int = 20, levels: int = 10) -> None:
    """Make the root of a table or an index point to its only leaf billions of times, through shared pages."""
    connection = apsw.Connection(str(path))
    connection.pragma("wal_checkpoint(truncate)")
    root: int = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (tree,)).get
    last: int = connection.execute(f"SELECT max(rowid) FROM {tree}").get if TREES[tree] == 13 else 0
    connection.close()
    file = bytearray(path.read_bytes())
    count = len(file) // PAGE_BYTES
    leaf = bytes(file[(root - 1) * PAGE_BYTES : root * PAGE_BYTES])
    assert leaf[0] == TREES[tree]
    file += leaf
    child = count + 1
    for _ in range(levels):
        file += interior(leaf, child, fan_out, last)
        child += 1
    file[(root - 1) * PAGE_BYTES : root * PAGE_BYTES] = interior(leaf, child, fan_out, last)
    struct.pack_into(">I", file, 28, child)
    path.write_bytes(file)


READINGS: dict[str, Read] = {
    "verify": lambda store: store.maintenance.verify(),
    "stats": lambda store: store.maintenance.stats(),
    "diagnose": lambda store: store.maintenance.diagnose(),
    "sessions": lambda store: store.sessions.list(),
    "load": lambda store: store.sessions.handle("chat").load(),
    "whole graph": lambda store: store.sessions.handle("chat").load(FullGraph()),
    "nodes": lambda store: store.sessions.handle("chat").nodes(),
    "history": lambda store: store.sessions.handle("chat").history(),
    "events": lambda store: store.events.after("p"),
    "prune": lambda store: store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1), dry_run=True),
    "garbage": lambda store: store.maintenance.collect_garbage(),
}


@pytest.mark.parametrize("tree", TREES)
def test_every_reading_of_pages_that_lead_to_each_other_ends(tmp_path: Path, tree: str) -> None:
    path = tmp_path / "state.db"
    fill(path)
    cycle(path, tree)
    began = time.monotonic()
    outcomes: dict[str, object] = {}
    with holdfast.open_blocking(path) as store:
        for name, read in READINGS.items():
            try:
                outcomes[name] = read(store)
            except holdfast.Corrupt as error:
                outcomes[name] = error
        report = outcomes["verify"]
        assert isinstance(report, VerifyReport)
        assert not report.ok
    assert time.monotonic() - began < LONGEST_S


def test_a_count_that_does_not_end_says_why(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    fill(path)
    cycle(path, "sessions")
    with holdfast.open_blocking(path) as store:
        with pytest.raises(holdfast.Corrupt, match="beyond what a file of this size can hold"):
            store.maintenance.stats()
        assert store.sessions.handle("chat").load() is not None, "the store continues"
        found = {finding.table for finding in store.maintenance.verify().findings}
    assert found == {"database", "sessions", "usage"}, "the first counter of a session is in its row"


def test_rows_that_come_again_and_again_do_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    fill(path)
    cycle(path, "sessions_family")
    runner = StatementRunner(str(path), create=False, place=str(path))
    tracemalloc.start()
    try:
        with pytest.raises(holdfast.Corrupt, match="beyond what a file of this size can hold"):
            runner.all("family_sessions", (1,))
        assert tracemalloc.get_traced_memory()[1] < 4 * budget.BASE_BYTES
    finally:
        tracemalloc.stop()
        runner.close()


def test_a_statement_that_is_given_much_may_take_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "BASE_STEPS", 100_000)
    with holdfast.open_blocking(tmp_path / "state.db", limits=holdfast.Limits(commit_nodes=50_000)) as store:
        nodes = [holdfast.Node(f"n{index}") for index in range(50_000)]
        store.sessions.create("chat").commit(holdfast.Commit(graph=holdfast.Append(nodes, leaf="n0")))
        assert store.maintenance.verify().ok


def test_no_statement_goes_through_all_pages_in_one_step() -> None:
    """SQLite checks between instructions whether to stop, and a count without a condition is a single instruction."""
    connection = apsw.Connection(":memory:")
    connection.execute(schema_text())
    assert "Count" in {row[1] for row in connection.execute("EXPLAIN SELECT count(*) FROM nodes")}
    for name, text in statements().items():
        named = dict.fromkeys(re.findall(r":(\w+)", text))
        numbered = (None,) * max(map(int, re.findall(r"\?(\d+)", text)), default=0)
        steps = {row[1] for row in connection.execute(f"EXPLAIN {text}", named or numbered)}
        assert "Count" not in steps, name
    connection.close()


def test_a_sound_file_is_far_from_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "BASE_STEPS", 100_000)
    monkeypatch.setattr(budget, "BASE_BYTES", 0)
    asked: list[str] = []
    right = budget._bytes_of

    def noting(path: str) -> int:
        asked.append(path)
        return right(path) // 10

    monkeypatch.setattr(budget, "_bytes_of", noting)
    with holdfast.open_blocking(tmp_path / "state.db", options=holdfast.SqliteOptions(synchronous="off")) as store:
        for number in range(40):
            session = store.sessions.create(f"s{number}")
            nodes = [holdfast.Node(f"n{index}") for index in range(500)]
            session.commit(holdfast.Commit(graph=holdfast.Append(nodes, leaf="n0")))
        store.sessions.delete("s0")
        for read in READINGS.values():
            if read is not READINGS["events"]:
                read(store)
        assert store.maintenance.verify().ok
        assert len(store.sessions.handle("s1").load(FullGraph()).graph.nodes) == 500  # type: ignore[union-attr]
    assert asked, "it took long enough to be asked"
