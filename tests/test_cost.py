"""The cost of a call depends on what it does, never on how much is stored."""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.backends.sqlite import SqliteBackend
from holdfast.backends.sqlite.connection import StatementRunner, statements
from holdfast.blocking import BlockingStore
from holdfast.sessions import ActivePath, FullGraph
from holdfast.store import Context, Store
from holdfast.testing.clock import ManualClock
from holdfast.wait import BlockingWaiting


class Measured:
    """A SQLite store that records the names of a call's statements, and the steps that SQLite takes for it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        options = holdfast.SqliteOptions(synchronous="off")
        self.backend = SqliteBackend.open(path, options, ManualClock(), BlockingWaiting())
        self.store = BlockingStore(Store(Context(self.backend, holdfast.Limits())), self.backend)
        self._names: list[str] = []
        self._steps = 0
        for method in ("all", "page", "run", "run_many"):
            monkeypatch.setattr(StatementRunner, method, self._noting(getattr(StatementRunner, method)))

    def _noting(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def noting(runner: StatementRunner, name: str, *args: Any, **kwargs: Any) -> Any:
            self._names.append(name)
            runner.connection.set_progress_handler(self._step, 1)
            try:
                return inner(runner, name, *args, **kwargs)
            finally:
                runner.connection.set_progress_handler(None)

        return noting

    def _step(self) -> bool:
        self._steps += 1
        return False

    def statements(self, call: Callable[[], Any]) -> list[str]:
        """Return the statements that the call runs, in order; the backend's own counter must agree."""
        self._names, before = [], self.backend.statements_run
        call()
        assert self.backend.statements_run - before == len(self._names)
        return list(self._names)

    def executions(self, call: Callable[[], Any]) -> Counter[str]:
        """Count how often the writer's connection begins each statement during the call, as SQLite reports it."""
        begun: Counter[str] = Counter()
        connection = self.backend._runner.connection
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: begun.update([event["sql"]]))
        try:
            call()
        finally:
            connection.trace_v2(0, None)
        return begun

    def forget(self) -> None:
        """Clear the caches, as in a new process."""
        self.store = BlockingStore(Store(Context(self.backend, holdfast.Limits())), self.backend)

    def steps(self, call: Callable[[], Any]) -> int:
        """Count the instructions of SQLite's virtual machine that the call takes."""
        self._steps = 0
        call()
        return self._steps


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    opened = Measured(tmp_path / "cost.db", monkeypatch)
    yield opened
    opened.store.close()


def turn(number: int) -> holdfast.Commit:
    """Return a whole turn: two nodes, a checkpoint and usage; work that it settles is added."""
    question, answer = f"q{number}", f"a{number}"
    return holdfast.Commit(
        turn_id=f"turn-{number}",
        expected_revision=number - 1,
        graph=holdfast.Append(
            [
                holdfast.Node(question, parent=None if number == 1 else f"a{number - 1}", payload={"n": number}),
                holdfast.Node(answer, parent=question, payload={"n": number}),
            ],
            leaf=answer,
        ),
        checkpoint=holdfast.Checkpoint(turn_state={"turn": number}, execution_state=b"%d" % number),
        usage=[holdfast.Usage("turn", "some-model", input_tokens=3)],
    )


def test_a_commit_costs_the_same_at_turn_10_and_at_turn_1034(measured: Measured) -> None:
    # Both have the same place in a block of 64, whose ids are found by reading its rows.
    session = measured.store.sessions.create("chat")
    statements_at: dict[int, list[str]] = {}
    steps_at: dict[int, int] = {}
    for number in range(1, 1_089):
        commit = turn(number)
        if number in (10, 1_034):
            statements_at[number] = measured.statements(lambda commit=commit: session.commit(commit))
        elif number in (11, 1_035, 1_055, 1_087):
            steps_at[number] = measured.steps(lambda commit=commit: session.commit(commit))
        else:
            session.commit(commit)
    assert statements_at[1_034] == statements_at[10]
    # Trees grow by a level, so that a search takes a few more steps; nothing is read that the turn does not name.
    assert steps_at[1_035] <= steps_at[11] * 1.05
    # Most rows of a block: 62 nodes, and 62 revisions.
    assert max(steps_at.values()) <= steps_at[11] * 2, steps_at
    assert session.history(limit=1, newest_first=True).items[0].revision == 1_088


def state_after(changes: int, size: int = 1 << 20) -> bytes:
    """Return a megabyte that compresses to a half, of which each change replaced a hundredth, in ten pieces."""
    state = bytearray(hashlib.shake_128(b"state").hexdigest(size // 2).encode())
    for change in range(1, changes + 1):
        for piece in range(10):
            text = hashlib.shake_128(f"{change}/{piece}".encode()).hexdigest(size // 2_000).encode()
            at = int.from_bytes(hashlib.sha256(text).digest()[:4]) % (size - len(text))
            state[at : at + len(text)] = text
    return bytes(state)


def test_a_large_state_of_which_a_hundredth_changes_takes_a_sixth_of_what_whole_ones_would(measured: Measured) -> None:
    session = measured.store.sessions.create("chat")
    for number in range(40):
        checkpoint = holdfast.Checkpoint(execution_state=state_after(number))
        session.commit(holdfast.Commit(checkpoint=checkpoint))
    stored = measured.store.maintenance.stats().blob_bytes
    # Stored whole, each takes half of its megabyte. 200 turns may take 12 MB instead of 100, 40 of them in proportion.
    assert stored < 40 * (1 << 19) * 0.18
    for number in (0, 1, 20, 39):
        view = session.load(at=number + 1)
        assert view is not None
        assert view.checkpoint == holdfast.Checkpoint(execution_state=state_after(number))


def test_a_delta_costs_a_statement_and_one_more_if_its_past_was_not_seen(
    measured: Measured,
) -> None:
    session = measured.store.sessions.create("chat")

    def commit(state: bytes) -> Callable[[], Any]:
        return lambda: session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=state)))

    large = [hashlib.shake_128(b"%d" % number).digest(100) + bytes(70_000) for number in range(5)]
    commit(b"small")()
    usual = measured.statements(commit(b"other"))
    assert usual == measured.statements(commit(large[0][:4_095])), "nothing is paid for a small one"
    # The content that it replaces is small, which only a read can tell.
    assert Counter(measured.statements(commit(large[0]))) - Counter(usual) == Counter(["load_blobs"])
    assert Counter(measured.statements(commit(large[1]))) - Counter(usual) == Counter(["hold_key_frames"])
    assert measured.store.maintenance.stats().blobs == 5
    measured.forget()
    session = measured.store.sessions.handle("chat")
    assert Counter(measured.statements(commit(large[2]))) - Counter(usual) == Counter(["load_blobs", "hold_key_frames"])
    assert Counter(measured.statements(commit(large[3]))) - Counter(usual) == Counter(["hold_key_frames"])


def test_a_thousand_small_turns_take_at_most_twice_their_content(measured: Measured) -> None:
    session = measured.store.sessions.create("chat")
    words = random.Random(7)

    def text() -> str:
        return "".join(words.choices("abcdefghij klmnopqrst uvwxyz", k=1024))

    def stored_bytes() -> int:
        connection = measured.backend._runner.connection
        return int(connection.pragma("page_count") - connection.pragma("freelist_count")) * connection.pragma(
            "page_size"
        )

    empty = stored_bytes()
    for number in range(1, 1001):
        question, answer = f"q{number}", f"a{number}"
        nodes = [
            holdfast.Node(question, parent=None if number == 1 else f"a{number - 1}", payload=text()),
            holdfast.Node(answer, parent=question, payload=text()),
        ]
        session.commit(
            holdfast.Commit(
                turn_id=f"turn-{number}",
                expected_revision=number - 1,
                graph=holdfast.Append(nodes, leaf=answer),
                checkpoint=holdfast.Checkpoint(turn_state={"turn": number}),
                usage=[holdfast.Usage("turn", "some-model", input_tokens=3)],
            )
        )
    assert empty <= 378_000
    assert stored_bytes() - empty <= 2.0 * 1000 * 2048


def test_a_full_turn_writes_at_most_18_pages_of_the_log(tmp_path: Path) -> None:
    options = holdfast.SqliteOptions(synchronous="off")
    backend = SqliteBackend.open(tmp_path / "log.db", options, ManualClock(), BlockingWaiting())
    store = BlockingStore(Store(Context(backend, holdfast.Limits())), backend)
    backend._runner.connection.wal_autocheckpoint(0)
    log = tmp_path / "log.db-wal"
    session = store.sessions.create("chat")
    for number in range(1, 101):
        session.commit(turn(number))
    before = log.stat().st_size
    for number in range(101, 201):
        session.commit(turn(number))
    assert log.stat().st_size - before <= 100 * 18 * (4096 + 24)
    store.close()


def test_a_thousand_handles_take_less_than_two_megabytes(measured: Measured) -> None:
    measured.store.sessions.handle("chat")
    tracemalloc.start()
    try:
        handles = [measured.store.sessions.handle(f"chat-{number}") for number in range(1000)]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(handles) == 1000
    assert held < 2_000_000


@pytest.mark.parametrize(
    ("program", "most"),
    [
        ("import holdfast", 28),
        ("import holdfast; holdfast.open", 273),
        ("import holdfast; [getattr(holdfast, name) for name in holdfast.__all__]", 280),
        ("import holdfast; holdfast.open_blocking('sqlite::memory:').close()", 358),
    ],
)
def test_starting_loads_no_more_modules_than_it_did(program: str, most: int) -> None:
    count = "import sys; before = set(sys.modules); {}; sys.stdout.write(str(len(set(sys.modules) - before)))"
    result = subprocess.run(
        [sys.executable, "-c", count.format(program)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0 < int(result.stdout) <= most


def test_a_replay_costs_the_same_however_long_ago_the_turn_was(measured: Measured) -> None:
    session = measured.store.sessions.create("chat")
    for number in range(1, 301):
        session.commit(turn(number))
    recent = measured.statements(lambda: session.commit(turn(300)))
    assert measured.statements(lambda: session.commit(turn(1))) == recent
    assert measured.steps(lambda: session.commit(turn(1))) <= measured.steps(lambda: session.commit(turn(300))) * 1.05


def test_a_commit_uses_the_same_statements_for_any_number_of_nodes_and_inserts_two_at_a_time(
    measured: Measured,
) -> None:
    session = measured.store.sessions.create("chat")

    def append(first: int, count: int) -> Callable[[], Any]:
        made = [holdfast.Node(f"n{index}") for index in range(first, first + count)]
        return lambda: session.commit(holdfast.Commit(graph=holdfast.Append(made, leaf=made[-1].id)))

    append(0, 1)()
    # The same names in the same order: every query about the nodes is about all of them at once.
    many_at_once = measured.statements(append(3, 500))
    many_at_once.remove("list_node_ids")
    assert measured.statements(append(503, 2)) == many_at_once
    one, two = measured.executions(append(505, 1)), measured.executions(append(506, 2))
    many = measured.executions(append(508, 501))
    texts = statements()
    assert two - one == Counter({texts["insert_two_nodes"]: 1})
    # SQLite reports how often it began a statement.
    assert many - one == Counter({texts["insert_two_nodes"]: 250, texts["list_node_ids"]: 8})


def test_a_commit_never_counts_rows(measured: Measured) -> None:
    session = measured.store.sessions.create("chat")
    session.commit(turn(1))
    names = measured.statements(lambda: session.commit(turn(2)))
    assert len(names) >= 5
    texts = statements()
    assert [name for name in names if re.search(r"count\s*\(", texts[name], re.IGNORECASE)] == []


def test_an_active_path_costs_its_length_and_not_the_size_of_the_graph(measured: Measured) -> None:
    small, large = measured.store.sessions.create("small"), measured.store.sessions.create("large")
    path = [holdfast.Node(f"p{index}", parent=f"p{index - 1}" if index else None) for index in range(20)]
    for session in (small, large):
        session.commit(holdfast.Commit(graph=holdfast.Append(path, leaf="p19")))
    for batch in range(10):
        # Beside the path: other branches from its root.
        made = [holdfast.Node(f"x{batch}-{index}", parent="p0", payload="x" * 50) for index in range(500)]
        large.add_nodes(made)
    little = measured.steps(small.load)
    assert measured.steps(large.load) <= little * 1.1
    assert measured.steps(lambda: small.load(FullGraph())) * 20 < measured.steps(lambda: large.load(FullGraph()))


def test_the_newest_nodes_of_a_path_cost_the_same_on_a_long_one(measured: Measured) -> None:
    session = measured.store.sessions.create("chat")
    for number in range(1, 11):
        session.commit(turn(number))
    short = measured.steps(lambda: session.load(ActivePath(last=5)))
    for number in range(11, 601):
        session.commit(turn(number))
    assert measured.steps(lambda: session.load(ActivePath(last=5))) <= short * 1.1
    assert measured.steps(session.load) > short * 10


def test_claiming_costs_the_same_behind_a_long_queue_and_a_long_past(measured: Measured) -> None:
    queue = measured.store.queue
    session = measured.store.sessions.create("chat")
    for index in range(3):
        queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[index]))

    def claim_and_settle() -> None:
        claim = queue.claim("chat", owner_id="w", max_batches=2)
        assert claim is not None
        session.commit(holdfast.Commit(completes=[claim]))

    few = measured.steps(claim_and_settle)
    for index in range(600):
        queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[index], source_key=f"k{index}"))
    for _ in range(200):
        claim_and_settle()
    assert measured.steps(claim_and_settle) <= few * 1.3


def test_the_counter_can_tell_a_costly_call_from_a_cheap_one(measured: Measured) -> None:
    session = measured.store.sessions.create("chat")
    assert measured.statements(session.load) != measured.statements(lambda: session.commit(turn(1)))
    for number in range(2, 50):
        session.commit(turn(number))
    assert measured.steps(measured.store.maintenance.verify) > 5 * measured.steps(lambda: session.load_node("a1"))


@pytest.mark.parametrize(
    "heavy", ["asyncio", "concurrent.futures", "logging", "apsw", "asyncpg", "jsonschema_rs", "cronsim", "_hashlib"]
)
def test_importing_holdfast_does_not_import(heavy: str) -> None:
    program = "import sys; from holdfast import *; sys.stdout.write('\\n'.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split("\n"))
    assert {"holdfast.store", "holdfast.worker"} <= loaded
    assert heavy not in loaded


def test_a_blocking_memory_store_needs_neither_asyncio_nor_a_database_driver() -> None:
    program = (
        "import sys, holdfast\n"
        "with holdfast.open_blocking('memory:') as store:\n"
        "    checkpoint = holdfast.Checkpoint(turn_state=1)\n"
        "    store.sessions.create('chat').commit(holdfast.Commit(turn_id='t', checkpoint=checkpoint))\n"
        "sys.stdout.write('\\n'.join(sys.modules))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(result.stdout.split("\n")).isdisjoint({"asyncio", "apsw", "asyncpg"})
