"""An attachment is named by its bytes, which are verified on every read."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Corrupt, InvalidRequest, UnknownRef
from holdfast.records.attachments import Attachment, AttachmentEntry, AttachmentRef
from holdfast.records.limits import Limits
from holdfast.rows import AttachmentRow, ObjectRow
from holdfast.rules import attachments

STEADY = settings(derandomize=True, deadline=None)
LIMITS = Limits(attachment_bytes=4)
ID = hashlib.sha256(b"data").hexdigest()


def put(data: object = b"data", media_type: object = "text/plain", **changes: Any) -> Any:
    rest = {"width": 1, "height": 2, "label": "l", **changes}
    return attachments.check_put(data, media_type, limits=LIMITS, **rest)


def row(**changes: Any) -> AttachmentRow:
    plain = AttachmentRow(7, ID, 3, f"sha256:{ID}", "text/plain", 4, 1, 2, "l", 50, None, None, "i1")
    return msgspec.structs.replace(plain, **changes)


def test_bytes_are_named_by_their_hash() -> None:
    intent, body = put(bytearray(b"data"), " Text/PLAIN ")
    assert body == b"data"
    assert intent == attachments.AttachmentIntent(ID, f"sha256:{ID}", "text/plain", 4, 1, 2, "l")
    assert attachments.intended(intent, None, session_key=7, family=3, now_ms=50, intent_id="i1") == row()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"data": "text"}, "data"),
        ({"data": b"12345"}, "data"),
        ({"media_type": ""}, "media_type"),
        ({"media_type": None}, "media_type"),
        ({"width": -1}, "width"),
        ({"height": 1.5}, "height"),
        ({"label": 5}, "label"),
    ],
)
def test_bytes_that_cannot_be_kept_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        put(**changes)
    assert info.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"attachment_id": ""}, "attachment_id"), ({"uri": ""}, "uri"), ({"byte_count": -1}, "byte_count")],
)
def test_an_intent_names_an_attachment_that_may_live_anywhere(changes: dict[str, Any], field: str) -> None:
    intent: dict[str, Any] = {
        "attachment_id": "a",
        "uri": "s3://a",
        "media_type": "image/png",
        "byte_count": 2**40,
        "width": None,
        "height": None,
        "label": None,
        "limits": LIMITS,
    }
    assert attachments.check_intent(**intent).uri == "s3://a"
    with pytest.raises(InvalidRequest) as info:
        attachments.check_intent(**{**intent, **changes})
    assert info.value.field == field


def test_a_repeated_intent_refreshes_the_time_and_a_committed_one_stays_committed() -> None:
    intent, _ = put(label="new")
    again = attachments.intended(intent, row(), session_key=7, family=3, now_ms=90, intent_id="i2")
    assert again == row(label="new", intent_at_ms=90)
    kept = attachments.intended(intent, row(committed_at_ms=60), session_key=7, family=3, now_ms=90, intent_id="i2")
    assert kept == row(label="new", intent_at_ms=90, committed_at_ms=60)


def test_a_repeated_intent_knows_that_bytes_are_stored_only_if_they_are_the_same_ones() -> None:
    intent, _ = put()
    again = attachments.intended(intent, row(stored_in="outside"), session_key=7, family=3, now_ms=50, intent_id="i2")
    assert again == row(stored_in="outside")
    elsewhere = row(uri="s3://data", stored_in="caller")
    assert attachments.intended(intent, elsewhere, session_key=7, family=3, now_ms=50, intent_id="i1") == row()
    foreign = msgspec.structs.replace(intent, uri="s3://data")
    assert attachments.intended(foreign, row(), session_key=7, family=3, now_ms=50, intent_id="i1") == elsewhere


def test_a_put_takes_over_a_committed_reference_to_bytes_elsewhere_only_with_its_bytes() -> None:
    intent, _ = put()
    assert attachments.must_stay_readable(row(uri="s3://data", committed_at_ms=60), intent)
    for before in (None, row(uri="s3://data"), row(committed_at_ms=60)):
        assert not attachments.must_stay_readable(before, intent)


def test_bytes_written_outside_count_if_their_intent_still_stands() -> None:
    assert attachments.confirmed(row(), row()) == row(stored_in="outside")
    repeated = row(intent_at_ms=51, label="later")
    assert attachments.confirmed(row(), repeated) == row(intent_at_ms=51, label="later", stored_in="outside")
    by_another = row(intent_at_ms=51, intent_id="i2", stored_in="outside")
    assert attachments.confirmed(row(), by_another) == by_another
    for found in (None, row(intent_id="i2"), row(uri="s3://data", stored_in="caller")):
        assert attachments.confirmed(row(), found) is None


def test_an_intent_without_bytes_never_moves_a_reference_between_this_store_and_the_caller() -> None:
    ours, _ = put()
    foreign = msgspec.structs.replace(ours, uri="s3://data")
    for intent, existing in ((ours, row(uri="s3://data", stored_in="caller")), (foreign, row())):
        assert attachments.bare_intent(intent, None) == intent
        with pytest.raises(InvalidRequest) as info:
            attachments.bare_intent(intent, existing)
        assert info.value.field == "uri"
    assert attachments.bare_intent(foreign, row(uri="s3://old", stored_in="caller")) == foreign


def test_an_intent_without_bytes_does_not_say_how_many_are_stored() -> None:
    wrong = msgspec.structs.replace(put()[0], byte_count=9)
    assert attachments.bare_intent(wrong, row()) == wrong
    for place in ("database", "outside"):
        assert attachments.bare_intent(wrong, row(stored_in=place)) == put()[0]
    assert attachments.confirmed(row(), row(byte_count=9)) == row(stored_in="outside")


def test_a_row_is_shown_as_a_ref_and_as_an_entry() -> None:
    assert attachments.ref_of(row()) == AttachmentRef(ID, "text/plain", 4, 1, 2, "l")
    assert attachments.entry_of("chat", row(committed_at_ms=60)) == AttachmentEntry("chat", ID, f"sha256:{ID}", 50, 60)


@STEADY
@given(st.binary(max_size=400))
def test_bytes_come_back_as_they_were_put(data: bytes) -> None:
    name = hashlib.sha256(data).hexdigest()
    packed = attachments.packed(name, data)
    assert (packed.hash, packed.size) == (name, len(data))
    assert attachments.opened(packed) == data


def test_bytes_that_do_not_match_are_damage() -> None:
    with pytest.raises(Corrupt, match="does not match its hash") as info:
        attachments.opened(ObjectRow(ID, "raw", 4, b"dada"))
    assert (info.value.table, info.value.key) == ("attachment_objects", ID)


def test_an_attachment_comes_with_its_own_bytes() -> None:
    ref = AttachmentRef(ID, "text/plain", 4, 1, 2, "l")
    assert attachments.attachment_of(row(), b"data") == Attachment(ref, b"data")


@pytest.mark.parametrize(
    ("changes", "data", "reason"),
    [
        ({"committed_at_ms": 60}, None, "never stored"),
        ({"committed_at_ms": 60, "stored_in": "database"}, None, "missing$|missing:"),
        ({"committed_at_ms": 60, "stored_in": "outside"}, None, "open the store with the attachments that"),
        ({}, b"dada", "do not match"),
        ({}, b"", "do not match"),
        ({"committed_at_ms": 60}, b"dada", "do not match"),
    ],
    ids=["never stored", "missing", "missing outside", "other", "empty", "committed"],
)
def test_bytes_that_should_be_here_and_are_not_are_damage(
    changes: dict[str, Any], data: bytes | None, reason: str
) -> None:
    with pytest.raises(Corrupt, match=reason) as info:
        attachments.attachment_of(row(**changes), data)
    assert (info.value.table, info.value.key) == ("attachment_objects", ID)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"uri": "s3://bucket/data", "committed_at_ms": 60},
        {"attachment_id": "logo", "uri": "sha256:logo", "committed_at_ms": 60},
    ],
    ids=["not committed yet", "kept elsewhere", "not named by content"],
)
def test_bytes_that_need_not_be_here_are_unknown_and_no_damage(changes: dict[str, Any]) -> None:
    with pytest.raises(UnknownRef) as info:
        attachments.attachment_of(row(**changes), None)
    assert info.value.field == "attachment_id"


@pytest.mark.parametrize(
    ("notes", "needed", "verdict"),
    [
        ([], False, "leave"),
        ([0], False, "delete"),
        ([0], True, "forget"),
        ([100], False, "delete"),
        ([0, 101], False, "leave"),
        ([101], True, "leave"),
        ([0, 99], True, "forget"),
    ],
)
def test_noted_bytes_are_deleted_once_and_only_if_no_session_needs_them(
    notes: list[int], needed: bool, verdict: str
) -> None:
    assert attachments.judge_deletion(notes, needed=needed, now_ms=100) == verdict
