"""The tests of LangGraph's store on SQLite pass with our store, but for vectors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

FILES = ("tests/test_store.py", "tests/test_async_store.py", "tests/test_ttl.py")
LEFT_OUT = {
    **dict.fromkeys(["test_vector_", "test_embed_with_path", "test_scores", "test_non_ascii"], "searches by vectors"),
    **dict.fromkeys(
        [
            "test_nonnull_migrations",
            "test_escape_glob_literal",
            "test_namespace_match_pattern",
            "test_list_namespaces_prefix_uses_indexable_condition",
        ],
        "looks into the SQL of SqliteStore",
    ),
    "test_sql_injection_vulnerability": "expects a filter's odd key to be refused; here it is a key that no item has",
    "test_filter_keys_with_hyphens_and_digits": "reads a dotted filter key as a path, as SqliteStore alone does",
    "test_ttl_override_default": "expects that reads renew no item by default; BaseStore says that they do",
    "test_no_running_loop": "expects InvalidStateError; a store for tasks raises InvalidRequest",
    "ttl_sweeper": "starts a background task; here an item is absent once its time has passed",
}


@pytest.mark.timeout(1_500)
def test_the_store_tests_of_langgraph_pass(run_suite: Callable[..., None], lasting_url: str) -> None:
    run_suite(
        adapter="langgraph",
        suite="store tests of langgraph-checkpoint-sqlite",
        distribution="langgraph-checkpoint-sqlite",
        files=FILES,
        plugin="langgraph_store",
        url=lasting_url,
        left_out=LEFT_OUT,
        marks=True,
    )
