"""A full turn on SQLite writes few pages of the log and runs few statements, counted on the turn of the benchmark."""

from __future__ import annotations

from pathlib import Path

from benchmarks.turn_cost import measure, measure_events

from holdfast.backends.sqlite.transaction.base import BLOCK


def test_a_full_turn_writes_at_most_9_pages_of_the_log_and_runs_at_most_8_statements(tmp_path: Path) -> None:
    cost = measure(tmp_path, before=300, turns=128)
    assert cost.pages_per_turn <= 9.05, cost.pages
    at_the_end_of_a_block = cost.statements["list_node_ids"] + cost.statements["list_turn_ids"]
    assert at_the_end_of_a_block == 2 * 128 // BLOCK + 128 // BLOCK
    assert cost.statements.total() - at_the_end_of_a_block <= 8 * cost.turns, cost.statements


def test_an_event_writes_at_most_5_pages_and_no_index_of_its_process(tmp_path: Path) -> None:
    cost = measure_events(tmp_path)
    assert cost.pages_per_turn <= 4.3, cost.pages
    assert cost.statements_per_turn <= 5, cost.statements
    assert [name for name in cost.pages if name.startswith("processes_")] == []
