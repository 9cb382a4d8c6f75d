"""The cost of a hot statement depends on what is asked for, not on what is stored."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import holdfast.backends.sqlite
from holdfast import rows as r
from holdfast.backends.sqlite.connection import statements
from holdfast.backends.sqlite.schema_setup import table_names

PACKAGE = Path(holdfast.backends.sqlite.__file__).parent
# These read a whole table by intent, or read nothing.
WHOLE = {
    "stats",
    "mark_slots",
    "waiting",
    "find_indexes",
    "declared_columns",
    "bytes_on_disk",
    "count_objects",
    "find_shadows",
    "stored_schema",
    "foreign_tables",
    "check_structures_of_table",
    "unlisted_nodes",
    "unlisted_turns",
    "mislisted_nodes",
    "mislisted_turns",
    "doubled_nodes",
    "doubled_turns",
    # There are few workers, and what one of them holds is looked for once, when it is dead.
    "drop_expired_workers",
    "claims_of_owner",
    "leases_of_owner",
    # Read by a diagnosis, which counts them, too.
    "expired_leases",
    "failed_schedules",
    "holders",
    "oldest_ready",
    # Counts the work that is not settled, and dead letters: it reads their partial indexes from end to end.
    "queue_depths",
}
CONTROL = {
    "begin_write",
    "begin_read",
    "commit",
    "rollback",
    "save_member",
    "undo_member",
    "release_member",
    "data_version",
}
# Scans of one parameter, a subquery's few rows, or one that a limit ends in the order of an index.
HARMLESS = re.compile(
    r"SCAN (2-ROW VALUES|segment|named|pair|ended|ref|json_each|CONSTANT ROW|found|path|granted\b|subquery|\(subquery)"
    r"|VIRTUAL TABLE"
)


# These return no more than they were asked for by name, the batches of one claim, or a ledger of a few rows; or they
# sort the last block of a session's nodes, which has 63 at most.
SORTED = {
    "find_nodes", "find_sources", "find_batches", "find_claimed", "read_ledger", "read_nodes_by_id",
    "read_nodes_by_id+",
}  # fmt: skip


def plan(store: Any, name: str) -> list[str]:
    text = statements()[name]
    parameters = set(re.findall(r"[:]([a-z_]+)", text))
    numbered = max((int(number) for number in re.findall(r"\?(\d+)", text)), default=0)
    # The values hardly matter, but a list must be JSON.
    bindings: Any = dict.fromkeys(parameters, 1) if parameters else [1] * numbered
    found = store.connection.execute(f"EXPLAIN QUERY PLAN {text}", bindings).fetchall()
    return [row[3] for row in found]


ASCENDING = {"read_nodes+", "read_nodes_by_id+"}
QUERIES = sorted(
    name for name in {*statements(), *ASCENDING} if name not in CONTROL | WHOLE and not name.startswith("dump_")
)
ORDERED = sorted(
    name
    for name in QUERIES
    if re.match(r"(list_|scan_|ready_|read_nodes|read_ledger|recent_|find_|claimed|grants_of)", name)
)


@pytest.mark.parametrize("name", QUERIES)
def test_a_statement_never_reads_a_whole_table(store: Any, name: str) -> None:
    scans = [step for step in plan(store, name) if step.startswith("SCAN") and not HARMLESS.match(step)]
    # Vacuuming and deleting read a list of exactly the rows to be vacuumed or deleted.
    assert [step for step in scans if "nodes_tombstoned" not in step and step != "SCAN object_deletions"] == []


@pytest.mark.parametrize("name", [name for name in ORDERED if name not in SORTED])
def test_a_page_is_read_in_its_order_and_never_sorted(store: Any, name: str) -> None:
    assert [step for step in plan(store, name) if "TEMP B-TREE" in step] == []


def test_every_statement_is_used_and_every_name_exists() -> None:
    used: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(found, ast.Constant) and isinstance(found.value, str):
                used.add(found.value)
    # Some names are made of a word and a table's name.
    for table in table_names():
        used |= {f"{word}{table}" for word in used if word.endswith("_")}
        used |= {f"{table}{word}" for word in used if word.startswith("_")}
    # A name with parts stands for the statement that the parts are put into.
    assert {name.partition("+")[0] for name in statements()} <= used
    calls = re.compile(
        r"(?:_one|_all|_store_all)\(\s*r\.\w+,\s*\"(\w+)\"|(?:_run|_values|_store|_number|run_many|control)\(\s*\"(\w+)\""
    )
    for path in PACKAGE.rglob("*.py"):
        for first, second in calls.findall(path.read_text(encoding="utf-8")):
            assert (first or second) in statements()


def steps_of(store: Any, method: str, *arguments: Any, **keywords: Any) -> int:
    """Return the number of virtual-machine instructions that a read takes, in hundreds."""
    steps = [0]

    async def operation(transaction: Any) -> Any:
        connection = transaction._runner.connection
        connection.set_progress_handler(lambda: bool(steps.append(1)), 100)
        try:
            return await getattr(transaction, method)(*arguments, **keywords)
        finally:
            connection.set_progress_handler(None)

    store.read(operation)
    return len(steps)


def test_reading_the_end_of_a_path_costs_the_same_in_a_graph_of_100_000_nodes(store: Any) -> None:
    store.connection.execute(
        """
        WITH RECURSIVE series (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM series WHERE value < 100000)
        INSERT INTO nodes
        SELECT (1 << 32) + value, 1, 0, 'n' || value, iif(value = 1, NULL, (1 << 32) + value - 1),
            'message', NULL, NULL, 1, X'7B7D', 0, 1
        FROM series
        """
    )
    store.connection.execute("INSERT INTO node_ids SELECT session_key, epoch, node_id, node_key FROM nodes")
    leaf = (1 << 32) + 100_000
    short = (1 << 32) + 50
    assert steps_of(store, "read_path", leaf, 50) <= steps_of(store, "read_path", short, 50) + 1
    segments = [r.Segment(1, 0, 100_000)]
    page = {"kind": None, "after": None, "descending": True, "limit": 10}
    assert steps_of(store, "read_nodes", segments, **page) < 20
    assert steps_of(store, "find_nodes", segments, [f"n{i}" for i in range(1, 11)]) < 20
    assert steps_of(store, "node_epochs", 1) < 5
    assert len(store.ask("read_path", leaf, None)) == 100_000


def test_finding_ready_work_costs_the_same_with_20_000_waiting(store: Any) -> None:
    def add(first: int, last: int) -> None:
        store.connection.execute(
            """
            WITH RECURSIVE series (value) AS (SELECT ?1 UNION ALL SELECT value + 1 FROM series WHERE value < ?2)
            INSERT INTO batches
            SELECT value, 'b' || value, 1, 1, NULL, 'h', 'd', 'join', 'never', 'turn', 0, 0, 1, X'5B5D',
                NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, 0, 0, 0, 0, NULL, NULL, 0
            FROM series
            """,
            (first, last),
        )

    calls: list[tuple[Any, ...]] = [
        ("queue_front", 1, 2, 10),
        ("next_due_ms", 1, 10),
        ("obstacles", 1, "me", 10),
        ("find_batches", 1, ["b3", "b7"]),
        ("find_claimed", 1, "claim"),
    ]
    add(1, 100)

    def steps() -> list[int]:
        ready = steps_of(store, "ready_batches", 1, 10, 20, with_back_off=True)
        return [ready, *(steps_of(store, *call) for call in calls)]

    few = steps()
    add(101, 20_000)
    # A deeper index takes a few instructions more.
    assert all(after <= before + 1 for before, after in zip(few, steps(), strict=True))
