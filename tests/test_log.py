"""Internal logging: no name of a field can make a log call fail."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.log import WARNING, log_event
from holdfast.open_transaction import OpenTransaction

OF_EVERY_RECORD = [*vars(logging.makeLogRecord({})), "message", "asctime"]


@pytest.mark.parametrize("name", OF_EVERY_RECORD)
def test_a_field_may_be_named_like_an_attribute_of_every_record(name: str, caplog: pytest.LogCaptureFixture) -> None:
    log_event("tests", WARNING, f"it is %({name})s", **{name: 7})
    [record] = caplog.records
    assert record.getMessage() == "it is 7"
    assert getattr(record, f"holdfast_{name}") == 7
    assert record.name == "holdfast.tests"


def test_each_remedy_of_the_queue_leaves_a_line_with_its_ids(caplog: pytest.LogCaptureFixture) -> None:
    with holdfast.open_blocking("memory:") as store:
        batch_id = store.sessions.create("chat").enqueue("hi").batch_id
        store.queue.claim("chat", owner_id="w1")
        store.queue.release("chat", batch_id)
        for remedy in (store.queue.retry, store.queue.drop):
            claim = store.queue.claim("chat", owner_id="w1")
            assert claim is not None
            store.queue.fail(claim, "no answer", retry_in_ms=None)
            remedy("chat", batch_id)
        for remedy in (store.queue.release, store.queue.retry, store.queue.drop):
            remedy("chat", "another")
    said = [one.getMessage() for one in caplog.records if one.name == "holdfast.remedy"]
    where = f"batch '{batch_id}' of session 'chat'"
    assert said == [
        f"the claim on {where} was released",
        f"{where} was put back to be retried",
        f"{where} was dropped",
    ]


def remedies(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "holdfast.remedy"]


def dead_batch(store: holdfast.BlockingStore) -> str:
    batch_id = store.sessions.create("chat").enqueue("hi").batch_id
    claim = store.queue.claim("chat", owner_id="w1")
    assert claim is not None
    store.queue.fail(claim, "no answer", retry_in_ms=None)
    return batch_id


def test_a_remedy_in_a_transaction_leaves_its_line_at_the_commit(caplog: pytest.LogCaptureFixture) -> None:
    with holdfast.open_blocking("memory:") as store:
        batch_id = dead_batch(store)
        resource = holdfast.leases.OnSession("other")
        store.leases.claim(resource, owner_id="w1")
        with suppress(OSError), store.transaction() as tx:
            assert tx.queue.retry("chat", batch_id) is not None
            assert tx.leases.revoke(resource) is not None
            raise OSError("roll back")
        assert remedies(caplog) == []
        with store.transaction() as tx:
            assert tx.queue.drop("chat", batch_id) is not None
            assert remedies(caplog) == []
        assert remedies(caplog) == [f"batch '{batch_id}' of session 'chat' was dropped"]


def failing(error: Exception) -> Any:
    async def commit(transaction: OpenTransaction) -> None:
        await transaction.roll_back()
        raise error

    return commit


def test_a_remedy_of_an_uncertain_transaction_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open_blocking("memory:") as store:
        batch_id = dead_batch(store)
        for error in (holdfast.Unavailable("away"), holdfast.Unavailable("away", outcome="unknown")):
            with suppress(holdfast.Unavailable), store.transaction() as tx:
                assert tx.queue.retry("chat", batch_id) is not None
                monkeypatch.setattr(OpenTransaction, "commit", failing(error))
            monkeypatch.undo()
    doubt = "in a transaction of which it is not known whether it was committed"
    assert remedies(caplog) == [f"batch '{batch_id}' of session 'chat' was put back to be retried, {doubt}"]


def test_a_remedy_in_a_transaction_of_the_caller_says_so(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with holdfast.open_blocking(f"sqlite:{path}") as store:
        batch_id = dead_batch(store)
        connection = apsw.Connection(str(path))
        connection.execute("BEGIN IMMEDIATE")
        assert store.within(connection).queue.drop("chat", batch_id) is not None
        connection.execute("ROLLBACK")
        connection.close()
    doubt = "in a transaction of the caller that may be rolled back"
    assert remedies(caplog) == [f"batch '{batch_id}' of session 'chat' was dropped, {doubt}"]


@pytest.mark.parametrize("name", ["logger", "level", "kind"])
def test_other_fields_keep_their_names(name: str, caplog: pytest.LogCaptureFixture) -> None:
    log_event("tests", WARNING, f"it is %({name})s", **{name: 7})
    [record] = caplog.records
    assert (record.getMessage(), getattr(record, name)) == ("it is 7", 7)
