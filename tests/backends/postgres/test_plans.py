"""Every lookup and every listing uses an index."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.backends.postgres.connection import statements_of

WHOLE = re.compile(
    r"dump_|walk_|stats$|waiting$|check_structures|find_indexes|server_facts|bytes_on_disk|find_places|commit$|release_write$|find_pooler$"
    r"|drop_expired_workers$|claims_of_owner$|leases_of_owner$|claim_holders$|lease_holders$|expired_leases$"
)
"""Statements that are meant to read everything (dumps, walks, counts, catalogues), or that end transactions.

`find_places` is for batches that no reader has read before. There are few workers; their claims and leases are
looked for by a diagnosis, and those of one of them once, when it is dead.
"""

STATEMENTS = statements_of("holdfast")
ASCENDING = ("read_nodes+", "read_nodes_by_id+")
PLANNED = [
    name
    for name in (*STATEMENTS, *ASCENDING)
    if STATEMENTS[name].startswith(("SELECT", "WITH", "UPDATE", "DELETE", "INSERT"))
    and WHOLE.match(name) is None
    and ";" not in STATEMENTS[name]
]


@pytest.fixture(scope="module")
def planner(postgres_database: Any) -> Any:
    """An administrator whose plans avoid sequential scans wherever an index would do."""
    administrator = postgres_database.administrator
    [(version,)] = administrator.rows("SELECT current_setting('server_version_num')::bigint")
    if version < 160_000:
        pytest.skip("this server cannot plan a statement without its parameters")
    return administrator


@pytest.mark.parametrize("name", PLANNED)
def test_a_statement_reads_no_table_from_end_to_end(planner: Any, store: Any, name: str) -> None:
    assert store.backend.schema_version == 1
    planner.run("SET enable_seqscan = off; SET enable_bitmapscan = on; SET plan_cache_mode = force_generic_plan")
    try:
        plan = "\n".join(line for (line,) in planner.explain(STATEMENTS[name]))
    finally:
        planner.run("RESET ALL")
    scans = re.findall(r"Seq Scan on (\w+)", plan)
    tables = [table for table in scans if table not in {"pg_namespace", "pg_class"}]
    assert tables == [], plan


RANGES = {"batches_unsettled": ["session_key"], "usage_pkey": ["session_key"], "processes_status": ["status"]}
"""Indexes of which a hot path reads what begins so: what waits in a session, its counters, a page of a listing."""

HOT = [
    "gather_view+",
    "gather_view+leaf+",
    "gather_view+path+",
    "gather_view+path+claims+",
    "gather_view",
    "gather_group",
    "gather_workers",
    "read_path",
    "read_paths",
    "find_turns",
    "find_revisions",
    "find_nodes",
    "list_processes_of_status",
    "find_process",
    "find_subscription",
    "find_occurrence",
    "list_sessions",
    "list_processes",
]
LOOK_UP = re.compile(r"Index (?:Only )?Scan (?:Backward )?using (\w+) on (\w+)[^\n]*(?:\n +Index Cond: ([^\n]+))?")
FEW_ROWS = {
    "sessions_id": ["session_id"],
    "sessions_key": ["session_key"],
    "revisions_turn": ["session_key", "turn_id"],
    "nodes_id": ["session_key", "epoch", "node_id"],
    "processes_pkey": ["process_id"],
    "attachments_session_uncommitted": ["attachment_id"],
}
"""Indexes that find one row, or few, by these columns alone."""


@pytest.mark.parametrize("known", ["nothing", "300 batches", "2000 batches", "one row"])
@pytest.mark.parametrize("name", HOT)
def test_a_hot_path_asks_for_rows_by_their_keys_whatever_is_known_about_a_table(
    planner: Any, postgres_database: Any, open_store: Any, name: str, known: str
) -> None:
    postgres_database.empty()
    store = open_store()
    assert store.backend.schema_version == 1
    if known == "one row":
        # A plan that is made now is used until the next ANALYZE, however much the table has grown.
        planner.run(ONE_ROW)
    elif known != "nothing":
        # Not analysed, as right after a bulk insert.
        planner.run(WAITING_BATCHES.format(known.split(maxsplit=1)[0]))
    columns = dict(
        planner.rows(
            "SELECT index.relname::text, array_agg(attribute.attname::text) FROM pg_index "
            "JOIN pg_class AS index ON index.oid = indexrelid JOIN pg_attribute AS attribute ON attrelid = index.oid "
            "WHERE index.relnamespace = 'holdfast'::regnamespace GROUP BY index.relname"
        )
    )
    # Set as on every connection of a store.
    planner.run("SET enable_seqscan = off; SET enable_bitmapscan = off")
    try:
        plan = "\n".join(line for (line,) in planner.explain(STATEMENTS[name]))
    finally:
        planner.run("RESET ALL")
    assert "Seq Scan" not in plan, plan
    for index, table, condition in LOOK_UP.findall(plan):
        needed = FEW_ROWS.get(index) or RANGES.get(index) or columns[index]
        missing = [column for column in needed if not re.search(rf"\b{column} (=|>|IS)", condition)]
        assert missing == [], f"{index} on {table} does not go by {missing}: {condition}\n{plan}"


ORDERS = {
    "list_sessions_of_label": "session_labels_value",
    "list_sessions_by_id": "sessions_id",
    "list_sessions_changed": "sessions_changed",
    "list_sessions_newest": "sessions_changed",
    "sort_sessions_of_label": "session_labels_value",
}


@pytest.mark.parametrize("name", ORDERS)
def test_a_listing_of_sessions_reads_the_index_of_its_order(planner: Any, store: Any, name: str) -> None:
    assert store.backend.schema_version == 1
    planner.run("SET enable_seqscan = off; SET enable_bitmapscan = off; SET plan_cache_mode = force_generic_plan")
    try:
        plan = "\n".join(line for (line,) in planner.explain(STATEMENTS[name]))
    finally:
        planner.run("RESET ALL")
    assert re.search(rf"Scan (Backward )?using {ORDERS[name]} on", plan), plan
    assert name.startswith("sort_") or "Sort" not in plan, plan


WALKS = [name for name in STATEMENTS if name.startswith("walk_")]


@pytest.mark.parametrize("name", WALKS)
def test_a_page_of_a_walk_is_a_range_of_an_index_and_never_sorted(planner: Any, store: Any, name: str) -> None:
    assert store.backend.schema_version == 1
    planner.run("SET enable_seqscan = off; SET enable_bitmapscan = off")
    try:
        plan = "\n".join(line for (line,) in planner.explain(STATEMENTS[name]))
    finally:
        planner.run("RESET ALL")
    assert re.search(r"Sort|Hash|Seq Scan", plan) is None, plan
    assert re.search(r"Index Cond: \(?.*>= ", plan), plan


WAITING_BATCHES = """
INSERT INTO holdfast.batches
SELECT
    n, 'batch' || n, 1, 1, NULL, 'h', 'd', 's', 'm', 'turn', 0, 0, n, 'x', NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL,
    NULL, 0, 0, 0, 0, NULL
FROM generate_series(1, {}) AS n
"""

ONE_ROW = """
INSERT INTO holdfast.nodes VALUES (1, 1, 1, 1, 'n', NULL, 'message', NULL, NULL, 0, '', 0, 1);
INSERT INTO holdfast.processes (
    process_id, registration_hash, status, waiting, event_count, created_at_ms, updated_at_ms, body,
    recovery, claim_fence, attempt, suspended
) VALUES ('p', 'h', 'running', 0, 0, 0, 0, '', 'external', 0, 0, 0);
INSERT INTO holdfast.subscriptions VALUES (1, NULL, NULL, NULL, 'd', NULL, 't', 's', NULL, 1, 0, 0, '', NULL);
INSERT INTO holdfast.occurrences VALUES ('o', 't', 's', 'i', 'r', 0, '', NULL);
ANALYZE
"""

MANY_BATCHES = """
INSERT INTO holdfast.batches
SELECT
    n, 'batch' || n, 1, 1, NULL, 'h', 'd', 's', 'm', 'turn', 0, n, n, 'x', NULL, NULL, NULL,
    CASE WHEN n % 2 = 0 THEN 'claim' || n END, 'o', 't', 1, n, CASE WHEN n % 2 = 0 THEN n END, 0, 1, 1, 0, NULL
FROM generate_series(1, 5000) AS n;
ANALYZE holdfast.batches
"""


IN_FUNCTIONS = (
    """
    SELECT process_id, claimable_at_ms
    FROM holdfast.processes
    WHERE claimable_at_ms IS NOT NULL
        AND run_kind = $1::text
        AND run_version = $2::text
        AND process_id <> ALL($3::text[])
    ORDER BY claimable_at_ms, process_id
    LIMIT 1
    """,
    """
    DELETE FROM holdfast.slots
    WHERE kind = $1::text
        AND limit_key = $2::text
        AND session_key = $3::bigint
        AND claim_id = $4::text
    """,
    """
    DELETE FROM holdfast.slots
    WHERE kind || '' = $1::text
        AND expires_at_ms <= $2::bigint
    """,
)
"""Lookups that only server functions make."""


def test_every_index_is_used_by_some_statement(planner: Any, postgres_database: Any, open_store: Any) -> None:
    # In new tables, for which the planner has no statistics from other tests.
    postgres_database.empty()
    assert open_store().backend.schema_version == 1
    planner.run(MANY_BATCHES)
    planner.run("SET enable_seqscan = off; SET enable_bitmapscan = off")
    try:
        texts = [*(STATEMENTS[name] for name in PLANNED), *IN_FUNCTIONS]
        plans = "\n".join(line for text in texts for (line,) in planner.explain(text))
    finally:
        planner.run("RESET ALL")
    made = [name for (name,) in planner.rows("SELECT indexname FROM pg_indexes WHERE schemaname = 'holdfast'")]
    unused = [name for name in made if not re.search(rf"\b{name}\b", plans)]
    assert unused == []
