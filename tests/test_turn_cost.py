"""A full turn on SQLite writes few pages of the log and runs few statements, counted on the turn of the benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.turn_cost import measure, measure_events

import holdfast
from holdfast.backends.sqlite.transaction.base import BLOCK


def test_a_full_turn_writes_at_most_9_pages_of_the_log_and_runs_at_most_8_statements(tmp_path: Path) -> None:
    cost = measure(tmp_path, before=300, turns=128)
    assert cost.pages_per_turn <= 9.05, cost.pages
    at_the_end_of_a_block = cost.statements["list_node_ids"] + cost.statements["list_turn_ids"]
    assert at_the_end_of_a_block == 2 * 128 // BLOCK + 128 // BLOCK
    assert cost.statements.total() - at_the_end_of_a_block <= 8 * cost.turns, cost.statements


def test_a_turn_that_follows_the_head_without_naming_it_needs_no_further_statement(tmp_path: Path) -> None:
    with holdfast.open_blocking(tmp_path / "cost.db") as store:
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(payload="hi")])))
        backend: Any = session.backend
        before = backend.statements_run
        session.commit(holdfast.Commit(turn_id="turn", graph=holdfast.Append([holdfast.Node(payload="hello")])))
        # The session, the facts, the head, the revision and the node.
        assert backend.statements_run - before == 5


def test_an_event_writes_at_most_5_pages_and_no_index_of_its_process(tmp_path: Path) -> None:
    cost = measure_events(tmp_path)
    assert cost.pages_per_turn <= 4.3, cost.pages
    assert cost.statements_per_turn <= 5, cost.statements
    assert [name for name in cost.pages if name.startswith("processes_")] == []
