"""Internal logging: no name of a field can make a log call fail."""

from __future__ import annotations

import logging

import pytest

from holdfast.log import WARNING, log_event

OF_EVERY_RECORD = [*vars(logging.makeLogRecord({})), "message", "asctime"]


@pytest.mark.parametrize("name", OF_EVERY_RECORD)
def test_a_field_may_be_named_like_an_attribute_of_every_record(name: str, caplog: pytest.LogCaptureFixture) -> None:
    log_event("tests", WARNING, f"it is %({name})s", **{name: 7})
    [record] = caplog.records
    assert record.getMessage() == "it is 7"
    assert getattr(record, f"holdfast_{name}") == 7
    assert record.name == "holdfast.tests"


@pytest.mark.parametrize("name", ["logger", "level", "kind"])
def test_other_fields_keep_their_names(name: str, caplog: pytest.LogCaptureFixture) -> None:
    log_event("tests", WARNING, f"it is %({name})s", **{name: 7})
    [record] = caplog.records
    assert (record.getMessage(), getattr(record, name)) == ("it is 7", 7)
