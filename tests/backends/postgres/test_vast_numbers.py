"""A number too large for what is computed from it is damage on PostgreSQL, too: new work continues."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import holdfast
from holdfast.leases import OnSession
from holdfast.processes import External
from holdfast.sessions import FullGraph

COLUMNS = (
    "sessions.session_key", "sessions.node_count", "sessions.epoch", "sessions.revision", "revisions.epoch",
    "revisions.node_count", "batches.enqueue_seq", "leases.fence", "processes.event_count",
)  # fmt: skip
"""Columns that keys are made of, or that are counted up."""


def turn(name: str) -> holdfast.Commit:
    return holdfast.Commit(graph=holdfast.Append([holdfast.Node(name)], leaf=name))


@pytest.mark.parametrize(("column", "value"), [("sessions.session_key", 2**62), *((one, 2**63 - 1) for one in COLUMNS)])
def test_only_our_errors_come_of_a_vast_number(
    clean_postgres_url: str, postgres_database: Any, column: str, value: int
) -> None:
    table, _, name = column.partition(".")
    with holdfast.open_blocking(clean_postgres_url) as store:
        store.sessions.create("old").commit(turn("a"))
        store.queue.enqueue(holdfast.WorkDraft(session_id="old", payloads=[1]))
        store.leases.claim(OnSession("old"), owner_id="w")
        store.processes.register(holdfast.ProcessRegistration("p", External()))
        store.events.append("p", "process.waiting", 1)
    postgres_database.administrator.run(f"UPDATE holdfast.{table} SET {name} = {value}")
    with holdfast.open_blocking(clean_postgres_url) as store:
        assert table in {finding.table for finding in store.maintenance.verify().findings}
        new = store.sessions.create("new")
        new.commit(turn("a"))
        assert new.load() is not None
        old = store.sessions.handle("old")
        for call in (
            old.load,
            lambda: old.load(FullGraph()),
            lambda: old.commit(turn("b")),
            old.history,
            old.nodes,
            lambda: store.sessions.fork("old", into="fork"),
            lambda: store.queue.list("old"),
            lambda: store.queue.claim("old", owner_id="w"),
            lambda: store.queue.enqueue(holdfast.WorkDraft(session_id="old", payloads=[2])),
            lambda: store.leases.claim(OnSession("old"), owner_id="w"),
            lambda: store.events.append("p", "process.waiting", 2),
            store.maintenance.collect_garbage,
            lambda: store.sessions.delete("old"),
        ):
            with contextlib.suppress(holdfast.HoldfastError):
                call()
