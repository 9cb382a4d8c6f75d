"""Internal logging: no name of a field can make a log call fail."""

from __future__ import annotations

import logging

import pytest

import holdfast
from holdfast.log import WARNING, log_event

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


@pytest.mark.parametrize("name", ["logger", "level", "kind"])
def test_other_fields_keep_their_names(name: str, caplog: pytest.LogCaptureFixture) -> None:
    log_event("tests", WARNING, f"it is %({name})s", **{name: 7})
    [record] = caplog.records
    assert (record.getMessage(), getattr(record, name)) == ("it is 7", 7)
