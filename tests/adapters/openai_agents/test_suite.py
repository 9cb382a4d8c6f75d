"""The session tests of the OpenAI Agents SDK pass with our session, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable

import pytest

CONNECTIONS = "looks into the connections or tables of SQLiteSession"
LEFT_OUT = {
    **dict.fromkeys(
        [
            "test_suffix_transaction_rolls_back_failed_insert[sqlite]",
            "test_cancelled_suffix_transaction_settles_before_newer_append[sqlite]",
            "test_failed_encrypted_suffix_transaction_preserves_original_tokens[sqlite",
            "test_settled_pop_failure_invalidates_response_chain",
            "test_settled_clear_failure_invalidates_response_chain",
            "test_sqlite_session_close_closes_worker_thread_connections",
            "test_sqlite_session_reaps_connections_from_exited_worker_threads",
            "test_sqlite_session_closes_retired_connections_before_the_next_allocation",
            "test_sqlite_session_keeps_connections_of_live_worker_threads",
            "test_sqlite_session_file_lock_is_shared_across_instances",
            "test_sqlite_session_failed_add_items_releases_write_lock",
            "test_sqlite_session_failed_clear_session_rolls_back",
            "test_sqlite_session_failed_pop_item_releases_write_lock",
            "test_sqlite_session_rollback_failure_evicts_connection",
            "test_sqlite_session_close_retries_quarantined_connection",
            "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome",
            "test_handoff_resume_after_cancelled_compaction_commits",
        ],
        CONNECTIONS,
    ),
    **dict.fromkeys(
        ["corrupt_most_recent", "dropping_only_corrupt_rows", "limit_skips_corrupt"],
        "plants corrupt rows with SQL; Holdfast raises Corrupt instead of skipping",
    ),
    "test_encrypted_pop_": "the SDK authenticates before a pop only with its own SQLiteSession",
    "test_session_add_items_called_multiple_times": "patches the class SQLiteSession",
    "test_sqlite_session_closed_rejects_empty_add_items": "expects RuntimeError; a closed session raises StoreClosed",
}
FILES = [
    "tests/memory/test_session.py",
    "tests/memory/test_session_limit.py",
    "tests/memory/test_session_context_wrapper.py",
    "tests/memory/test_session_persistence_sanitize.py",
    "tests/memory/test_compaction_suffix.py",
    "tests/memory/test_compaction_model_visibility.py",
    "tests/memory/test_openai_responses_compaction_session.py",
    "tests/extensions/memory/test_encrypt_session.py",
    "tests/deferred_session_writes",
    "tests/test_agent_runner.py",
    "tests/test_agent_runner_streamed.py",
    "tests/test_hitl_session_scenario.py",
    "tests/test_max_turns.py",
    "tests/test_native_tool_failure_history.py",
    "tests/test_programmatic_tool_calling.py",
    "tests/test_run_impl_resume_paths.py",
    "tests/test_soft_cancel.py",
    "tests/test_tool_batch_failure_history.py",
    "tests/test_tool_failure_boundaries.py",
]


@pytest.mark.timeout(1_500)
def test_the_session_tests_of_the_sdk_pass(run_suite: Callable[..., None], lasting_url: str) -> None:
    run_suite(
        adapter="openai_agents",
        suite="session, compaction, encryption and runner tests that use a `SQLiteSession`",
        distribution="openai-agents",
        files=FILES,
        plugin="openai_agents_sessions",
        url=lasting_url,
        left_out=LEFT_OUT,
        marks=True,
    )
