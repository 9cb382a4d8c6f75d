"""A number too large for what is computed from it is damage: a typed error names it, and new work continues."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from tests.backends.damages import answers
from tests.backends.sqlite.furnished import seed
from tests.backends.sqlite.test_verify_damage import VICTIMS, damaged, opened

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.leases import OnProcess, OnSession
from holdfast.processes import External
from holdfast.sessions import FullGraph
from holdfast.triggers import SubscriptionDraft

WHOLE = os.environ.get("HOLDFAST_WHOLE") == "1"
VALUES = (2**31, 2**32, 2**62, 2**63 - 1) if WHOLE else (2**62, 2**63 - 1)
COUNTED_ON = (
    "sessions.session_key", "sessions.family", "sessions.node_count", "sessions.epoch", "sessions.revision",
    "sessions.incarnation", "revisions.epoch", "revisions.node_count", "settings.value", "batches.enqueue_seq",
    "leases.fence", "processes.event_count", "subscriptions.sequence",
)  # fmt: skip
"""Columns that keys are made of, or that are counted up."""


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vast")
    seed(folder / "seed.db", folder / "byte_store")
    return folder / "seed.db"


def turn(name: str) -> holdfast.Commit:
    return holdfast.Commit(graph=holdfast.Append([holdfast.Node(name)], leaf=name))


def everything(store: BlockingStore) -> list[Callable[[], object]]:
    draft = SubscriptionDraft(source_type="cron", source_key="k", target=External())
    return [
        lambda: answers(store),
        *(lambda name=name: store.sessions.handle(name).commit(turn(f"new {name}")) for name in ("x", "fork")),
        lambda: store.sessions.fork("x", into="forked"),
        lambda: store.queue.enqueue(holdfast.WorkDraft(session_id="other", payloads=[1])),
        lambda: store.queue.claim("x", owner_id="w"),
        lambda: store.leases.claim(OnSession("other"), owner_id="w"),
        lambda: store.leases.claim(OnProcess("p"), owner_id="w"),
        lambda: store.events.append("p", "process.waiting", 1),
        lambda: store.triggers.subscribe(draft),
        lambda: store.triggers.emit("cron", "d", idempotency_key="new"),
        lambda: store.attachments.sweep(older_than_ms=0),
        store.maintenance.collect_garbage,
        store.maintenance.vacuum,
        lambda: store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1)),
        lambda: store.sessions.delete("x"),
    ]


def columns(seeded: Path) -> list[str]:
    if not WHOLE:
        return list(COUNTED_ON)
    connection = apsw.Connection(str(seeded))
    with contextlib.closing(connection):
        listed = [(table, row) for table in VICTIMS for row in connection.execute(f"PRAGMA table_info({table})")]
    return [f"{table}.{row[1]}" for table, row in listed if row[2] == "INTEGER"]


@pytest.mark.parametrize("value", VALUES)
def test_only_our_errors_come_of_a_vast_number_and_a_new_session_is_as_good_as_any(seeded: Path, value: int) -> None:
    for column in columns(seeded):
        table, _, name = column.partition(".")
        path = damaged(seeded, f"UPDATE {table} SET {name} = {value} WHERE {VICTIMS[table]}")
        assert path is not None
        with opened(path) as store:
            named = {finding.table for finding in store.maintenance.verify().findings}
            if column in COUNTED_ON and value >= 2**62:
                assert table in named, column
            new = store.sessions.create("new")
            new.commit(turn("a"))
            new.commit(turn("b"))
            view = new.load(FullGraph())
            assert view is not None
            assert [node.id for node in view.graph.nodes] == ["a", "b"], column
            for call in everything(store):
                with contextlib.suppress(holdfast.HoldfastError):
                    call()


def test_a_counter_of_the_database_that_ran_away_costs_nothing(seeded: Path) -> None:
    path = damaged(seeded, "UPDATE sqlite_sequence SET seq = 9223372036854775807")
    assert path is not None
    with opened(path) as store:
        for number in range(2):
            store.sessions.create(f"new {number}").commit(turn("a"))
            store.queue.enqueue(holdfast.WorkDraft(session_id="other", payloads=[number]))
        assert store.maintenance.verify().ok
