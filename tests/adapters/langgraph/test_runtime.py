"""LangGraph's own runtime tests, with our saver in place of its SQLite saver."""

from __future__ import annotations

from collections.abc import Callable

import pytest

FILES = (
    "tests/test_checkpoint_migration.py",
    "tests/test_delta_channel_exit_mode.py",
    "tests/test_delta_channel_fork.py",
    "tests/test_delta_channel_parallel_order.py",
    "tests/test_delta_channel_subgraph.py",
    "tests/test_delta_channel_to_plain.py",
    "tests/test_delta_channel_update_state.py",
    "tests/test_interrupt_state.py",
    "tests/test_interruption.py",
    "tests/test_large_cases.py",
    "tests/test_large_cases_async.py",
    "tests/test_pregel.py",
    "tests/test_pregel_async.py",
    "tests/test_pydantic.py",
    "tests/test_strict_resume.py",
    "tests/test_subgraph_persistence.py",
    "tests/test_subgraph_persistence_async.py",
    "tests/test_time_travel.py",
    "tests/test_time_travel_async.py",
)
"""Tests that use a checkpointer of a database."""
TIMED = ("test_imp_nested", "test_stream_buffering_single_node", "test_stream_subgraphs_during_execution")
"""Tests that require an order of sleeps of 10 ms, or an answer within 100 ms."""


@pytest.mark.timeout(1_500)
def test_the_runtime_tests_of_langgraph_pass(run_suite: Callable[..., None], lasting_url: str) -> None:
    run_suite(
        adapter="langgraph",
        suite="runtime tests of langgraph",
        distribution="langgraph",
        files=FILES,
        plugin="langgraph_saver",
        url=lasting_url,
        options=("-p", "no:asyncio", "-p", "no:langsmith_plugin"),
        marks=True,
        timed=TIMED,
    )
