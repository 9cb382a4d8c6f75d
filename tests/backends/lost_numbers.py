"""A row that is lost from the middle of a log or a history, and the readings that must notice it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

import holdfast
from holdfast.events import Const, EventType, WakeRule
from holdfast.processes import External

COUNT = 4


def check(store: holdfast.BlockingStore, lose: Callable[[str, str], None]) -> None:
    """Lose one row after the other; every reading that sees the hole names the lost row. Pruned rows are not lost."""
    kinds = [EventType("ping", wake=WakeRule(input=Const(None)))]
    store.processes.register(
        holdfast.ProcessRegistration("p", External(), event_types=kinds, wake_target=holdfast.Scope("chat"))
    )
    session = store.sessions.create("chat")
    for number in range(COUNT + 1):
        store.events.append("p", "ping", number)
        # A load in the past reads the later turns for what they used.
        used = [holdfast.Usage("turn", "model", 1, 1)]
        session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(f"n{number}")]), usage=used))
    store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=COUNT))
    events: list[Callable[[], object]] = [
        lambda: list(holdfast.every(store.events.after, "p")),
        lambda: list(holdfast.every(store.events.after, "p", limit=2)),
        lambda: store.events.after("p", 2),
        lambda: store.events.recent("p"),
        lambda: store.events.recent("p", limit=4),
        lambda: store.events.ack_wake("p", 3),
    ]
    revisions: list[Callable[[], object]] = [
        *(
            partial(lambda limit, newest: list(holdfast.every(session.history, newest_first=newest, limit=limit)), *one)
            for one in ((50, False), (2, False), (50, True), (1, True))
        ),
        lambda: session.load(at=3),
        lambda: session.load(at=2),
    ]
    for read in (*events, *revisions, lambda: session.load_node("no such")):
        read()
    for table, where, key, readings in (
        ("events", "sequence = 3", "p/3", events),
        ("revisions", "node_count = 3", "1/3", revisions),
        ("nodes", "node_id = 'n2'", None, [lambda: session.load_node("n2"), lambda: session.load_node("no such")]),
    ):
        lose(table, where)
        for read in readings:
            with pytest.raises(holdfast.Corrupt) as info:
                read()
            assert info.value.table == table
            assert key is None or info.value.key == key
    assert [event.sequence for event in store.events.recent("p", limit=2)] == [4, 5], "the hole is out of sight"
    assert store.events.after("p", 3).items[0].sequence == 4
