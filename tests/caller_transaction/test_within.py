"""The application's rows and the agent's state become durable together or not at all, on both databases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import SourceKeyConflict
from holdfast.events import EventType
from holdfast.processes import External
from holdfast.triggers import SubscriptionDraft

WAITER = Path(__file__).with_name("waiter.py")
TIMEOUT_S = 30


def prepare(app: Any) -> None:
    kinds = [EventType("progress")]
    app.call(app.store.processes.register(holdfast.ProcessRegistration("p", External(), event_types=kinds)))
    draft = SubscriptionDraft(source_type="mail", source_key="inbox", target=External())
    app.call(app.store.triggers.subscribe(draft))


def work(name: str, payload: str = "ship it") -> holdfast.WorkDraft:
    return holdfast.WorkDraft(session_id="chat", payloads=[payload], source_key=name)


def turn(name: str, **fields: Any) -> holdfast.Commit:
    return holdfast.Commit(turn_id=name, checkpoint=holdfast.Checkpoint(turn_state={"order": name}), **fields)


def do_everything(app: Any, within: Any, name: str = "order-1") -> None:
    app.insert(name)
    app.call(within.queue.enqueue(work(name)))
    app.call(within.events.append("p", "progress", {"at": name}))
    app.call(within.triggers.emit("mail", "inbox", idempotency_key=name))
    app.call(within.sessions.handle("chat").commit(turn(name)))


def what_shows(app: Any, store: Any) -> tuple[int, int, int, int | None]:
    view = app.call(store.sessions.handle("chat").load())
    return (
        len(app.call(store.queue.list("chat"))),
        len(app.call(store.events.after("p"))),
        len(app.call(store.triggers.undelivered())),
        None if view is None else view.revision,
    )


def test_rows_and_operations_show_to_others_with_the_commit_and_not_before(app: Any) -> None:
    prepare(app)
    app.begin()
    within = app.within()
    do_everything(app, within)
    assert what_shows(app, app.store) == (0, 0, 0, None)
    assert what_shows(app, within) == (1, 1, 1, 1)
    app.run("COMMIT")
    assert what_shows(app, app.store) == (1, 1, 1, 1)
    assert app.orders() == ["order-1"]


def test_no_setting_of_the_callers_connection_changes(app: Any) -> None:
    prepare(app)
    app.begin()
    within = app.within()
    before = app.settings()
    app.call(within.queue.enqueue(work("order-0")))
    app.call(within.events.append("p", "progress", {"at": 0}))
    app.call(within.triggers.emit("mail", "inbox", idempotency_key="order-0"))
    app.call(within.sessions.handle("chat").commit(turn("order-0", enqueues=[work("order-1")])))
    assert what_shows(app, within) == (2, 1, 1, 1)
    with pytest.raises(holdfast.HeadConflict):
        app.call(within.sessions.handle("chat").commit(turn("late", expected_revision=7)))
    assert app.settings() == before
    app.run("COMMIT")
    assert app.settings() == before


def test_a_rollback_takes_everything_back(app: Any) -> None:
    prepare(app)
    app.begin()
    do_everything(app, app.within())
    app.run("ROLLBACK")
    assert what_shows(app, app.store) == (0, 0, 0, None)
    assert app.orders() == []
    assert app.call(app.store.sessions.list()).items == ()


def test_rolled_back_operations_can_be_repeated_under_the_same_names(app: Any) -> None:
    prepare(app)
    for end in ("ROLLBACK", "COMMIT"):
        app.begin()
        do_everything(app, app.within())
        app.run(end)
    assert what_shows(app, app.store) == (1, 1, 1, 1)
    app.begin()
    again = app.call(app.within().sessions.handle("chat").commit(turn("order-1")))
    app.run("COMMIT")
    assert (again.revision, again.replayed) == (1, True)


def test_the_tombstones_of_a_turn_are_part_of_the_transaction(app: Any) -> None:
    prepare(app)
    chat = app.store.sessions.handle("chat")
    app.call(chat.commit(turn("first", graph=holdfast.Append([holdfast.Node("n1"), holdfast.Node("n2")]))))
    erasure = turn("erase", tombstones=["n2"], graph=holdfast.sessions.Unchanged(leaf="n1"))
    for end, left in (("ROLLBACK", ["n1", "n2"]), ("COMMIT", ["n1"])):
        app.begin()
        assert app.call(app.within().sessions.handle("chat").commit(erasure)).tombstoned == 1
        app.run(end)
        assert [node.id for node in app.call(chat.nodes())] == left
    assert app.call(chat.commit(erasure)).replayed is True


def test_a_refused_operation_leaves_no_trace_and_the_transaction_continues(app: Any) -> None:
    prepare(app)
    app.call(app.store.queue.enqueue(work("taken")))
    app.begin()
    within = app.within()
    app.insert("before")
    session = within.sessions.handle("chat")
    # The head is judged after the follow-up's session was created: that must be rolled back, too.
    follow_up = holdfast.WorkDraft(session_id="another", payloads=["x"])
    with pytest.raises(holdfast.HeadConflict) as conflict:
        app.call(session.commit(turn("late", expected_revision=7, enqueues=[follow_up])))
    assert (conflict.value.expected, conflict.value.actual) == (7, 0)
    with pytest.raises(SourceKeyConflict):
        app.call(within.queue.enqueue(work("taken", "other")))
    with pytest.raises(holdfast.UnknownProcess):
        app.call(within.events.append("nobody", "progress"))
    app.insert("after")
    app.call(session.commit(turn("fine", expected_revision=0)))
    app.run("COMMIT")
    assert app.orders() == ["after", "before"]
    assert [one.session_id for one in app.call(app.store.sessions.list()).items] == ["chat"]
    assert app.call(app.store.sessions.handle("another").load()) is None
    assert what_shows(app, app.store) == (1, 0, 0, 1)


def test_an_application_may_take_back_a_part_with_a_savepoint_of_its_own(app: Any) -> None:
    prepare(app)
    app.begin()
    within = app.within()
    handle = within.sessions.handle("chat")
    app.call(handle.commit(turn("one")))
    app.run("SAVEPOINT mine")
    app.call(handle.commit(turn("two", expected_revision=1)))
    app.run("ROLLBACK TO SAVEPOINT mine")
    assert app.call(handle.commit(turn("three", expected_revision=1))).revision == 2
    app.run("COMMIT")
    history = app.call(app.store.sessions.handle("chat").history())
    assert [entry.turn_id for entry in history.items] == ["one", "three"]


def test_a_handle_remembers_nothing_that_may_be_rolled_back(app: Any) -> None:
    app.begin()
    within = app.within()
    handle = within.sessions.unbound()
    app.call(handle.commit(holdfast.Commit(session_id="a")))
    assert handle.session_id is None
    app.run("ROLLBACK")
    app.begin()
    assert app.call(handle.commit(holdfast.Commit(session_id="b"))).session_id == "b"
    app.run("COMMIT")
    # Deleted and created anew inside, then rolled back: the first incarnation continues.
    app.call(app.store.sessions.create("c"))
    app.begin()
    app.call(within.sessions.delete("c"))
    second = app.call(within.sessions.create("c", name="second"))
    app.run("ROLLBACK")
    app.begin()
    assert app.call(second.meta()).name == "c"
    app.run("COMMIT")


def test_a_waiter_in_another_process_wakes_after_the_commit_and_not_after_a_rollback(app: Any) -> None:
    with subprocess.Popen([sys.executable, str(WAITER), app.url, "chat"], stdout=subprocess.PIPE, text=True) as waiter:
        assert waiter.stdout is not None
        try:
            assert waiter.stdout.readline() == "open\n"
            app.begin()
            app.call(app.within().queue.enqueue(work("rolled back")))
            app.run("ROLLBACK")
            app.begin()
            app.call(app.within().queue.enqueue(work("one")))
            app.call(app.within().queue.enqueue(work("two")))
            assert waiter.poll() is None
            app.run("COMMIT")
            # Both or none: at no moment could one of them alone be seen.
            assert waiter.stdout.readline() == "found 2\n"
            assert waiter.wait(TIMEOUT_S) == 0
        finally:
            waiter.kill()


def test_no_call_waits_inside_a_transaction(app: Any) -> None:
    prepare(app)
    app.begin()
    within = app.within()
    with pytest.raises(holdfast.InvalidRequest, match="connection: a caller cannot wait"):
        app.call(within.queue.wait("chat", timeout_ms=1_000))
    with pytest.raises(holdfast.InvalidRequest, match="connection: a caller cannot wait"):
        app.call(within.processes.wait("p", timeout_ms=1_000))
    app.call(within.queue.enqueue(work("still usable")))
    app.run("COMMIT")


def test_housekeeping_is_refused_inside_a_transaction(app: Any) -> None:
    app.begin()
    within = app.within()
    for call in (
        within.maintenance.vacuum,
        within.maintenance.collect_garbage,
        lambda: within.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1)),
        within.maintenance.verify,
        lambda: within.attachments.sweep(older_than_ms=0),
    ):
        with pytest.raises(holdfast.InvalidRequest, match="cannot be a part of your transaction"):
            app.call(call())
    app.run("ROLLBACK")


def test_attachments_in_the_database_take_part(app: Any) -> None:
    for end in ("ROLLBACK", "COMMIT"):
        app.begin()
        session = app.within().sessions.handle("chat")
        ref = app.call(session.attachments.put(b"bytes"))
        app.call(session.commit(holdfast.Commit(attachments=[ref.id])))
        app.run(end)
    assert app.call(app.store.sessions.handle("chat").attachments.get(ref.id)).data == b"bytes"


def test_a_closed_store_inside_a_transaction_leaves_the_transaction_alone(app: Any) -> None:
    app.begin()
    within = app.within()
    app.call(within.queue.enqueue(work("one")))
    app.call(within.close())
    with pytest.raises(holdfast.InvalidRequest, match="store: was closed"):
        app.call(within.queue.enqueue(work("two")))
    app.run("COMMIT")
    assert len(app.call(app.store.queue.list("chat"))) == 1


def test_a_connection_without_a_transaction_is_refused_from_the_start_and_later(app: Any) -> None:
    with pytest.raises(holdfast.InvalidRequest, match="connection: is in no"):
        app.within()
    app.begin()
    within = app.within()
    app.run("ROLLBACK")
    with pytest.raises(holdfast.InvalidRequest, match="connection: is in no"):
        app.call(within.queue.enqueue(work("one")))
    assert what_shows_of_the_queue(app) == 0


def what_shows_of_the_queue(app: Any) -> int:
    return len(app.call(app.store.queue.list("chat")))


def test_within_is_called_once_and_only_on_the_store_itself(app: Any) -> None:
    app.begin()
    within = app.within()

    async def again() -> None:
        within.within(app.connection)

    with pytest.raises(holdfast.InvalidRequest, match="store: works inside a transaction already"):
        within.within(app.connection) if app.loop is None else app.loop.drive(again())
    app.run("ROLLBACK")


def test_anything_but_a_connection_is_refused(app: Any) -> None:
    app.connection, mine = object(), app.connection
    try:
        with pytest.raises(holdfast.InvalidRequest, match="connection: must be"):
            app.within()
    finally:
        app.connection = mine


def test_a_store_in_memory_has_no_transactions_of_a_caller() -> None:
    with holdfast.open_blocking("memory:") as store, pytest.raises(holdfast.InvalidRequest, match="connection: "):
        store.within(object())
