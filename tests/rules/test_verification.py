"""Every rule of verification accepts sound data and names damage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import codec
from holdfast import rows as r
from holdfast.errors import Corrupt
from holdfast.events import EventType, Payload, TerminalRule, WakeRule
from holdfast.grants import HandleDescriptor
from holdfast.processes import BySession, Completed, External, Process, ProcessIdentity, Provenance, SignalWait
from holdfast.records.maintenance import Finding
from holdfast.rules import artifacts, attachments, events, grants, processes, queue, triggers
from holdfast.rules import verification as rules
from holdfast.triggers import SubscriptionDraft

LIMITS = holdfast.Limits()
HASH = "ab" * 32
LIVING = r.SessionRow(3, "chat", 1, 1, 4, 5, 0, b"[]", 9)
DELETED = r.SessionRow(3, "chat", 1, 1, 0, 0, 0, b"[]", 9, 9)
but = msgspec.structs.replace


def problems(found: Iterator[Finding]) -> list[str]:
    return [f"{one.table} {one.key}: {one.problem}" for one in found]


# ---------------------------------------------------------------------------- columns


def test_a_name_is_never_blank_but_free_text_may_be() -> None:
    row = r.SubscriptionRow(1, None, None, " ", "h", "", "cron", "d", None, 1, 1, 1, b"")
    assert problems(rules.columns(row, "subscriptions", "1")) == ["subscriptions 1: key is blank"]
    grant = r.GrantRow("s", "", "", b"")
    assert problems(rules.columns(grant, "grants", "g")) == ["grants g: process_id is blank"]


# ---------------------------------------------------------------------------- contents


def test_a_blob_is_what_its_ref_says() -> None:
    row = r.BlobRow("bytes-sha256:" + codec.digest(b"abc"), "raw", 3, b"abc")
    assert problems(rules.blob(row)) == []
    with pytest.raises(Corrupt):
        list(rules.blob(but(row, body=b"abd")))
    with pytest.raises(Corrupt, match="its key frame base is missing"):
        list(rules.blob(but(row, base_hash="base", encoding="delta")))


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        (LIVING, []),
        (None, []),
        (DELETED, ["its session is deleted"]),
        (but(LIVING, family=2), ["it is in family 1, its session in 2"]),
    ],
)
def test_a_manifest_row_and_a_batch_are_in_the_family_of_a_living_session(
    owner: r.SessionRow | None, expected: list[str]
) -> None:
    row = r.AttachmentRow(3, "photo", 1, "s3://photo", "image/png", 7, None, None, None, 1, None, "caller", "i1")
    assert problems(rules.attachment(row, owner)) == [f"attachments 3/photo: {one}" for one in expected]
    assert problems(rules.batch(batch(), owner)) == [f"batches 7: {one}" for one in expected]


def test_a_deleted_session_has_no_ledger() -> None:
    assert problems(rules.counter("3/turn/m", LIVING)) == []
    assert problems(rules.counter("3/turn/m", None)) == []
    assert problems(rules.counter("3/turn/m", DELETED)) == ["usage 3/turn/m: its session is deleted"]


def test_attachment_bytes_are_named_by_their_hash() -> None:
    name = codec.digest(b"abc")
    row = attachments.packed(name, b"abc")
    assert problems(rules.attachment_object(name, row)) == []
    assert len(problems(rules.attachment_object(HASH, row))) == 1
    other = attachments.packed("photo", b"abc")
    with pytest.raises(Corrupt):
        list(rules.attachment_object("photo", other))
    assert next(rules.attachment_object("photo", other)).table == "attachment_objects"


def test_bytes_outside_are_those_of_the_reference() -> None:
    name = codec.digest(b"abc")
    row = r.AttachmentRow(3, name, 1, f"sha256:{name}", "image/png", 3, None, None, None, 1, 2, "outside", "i1")
    assert problems(rules.bytes_outside(row, b"abc")) == []
    for data in (b"abd", None):
        with pytest.raises(Corrupt):
            list(rules.bytes_outside(row, data))


def test_a_committed_reference_says_where_its_bytes_are() -> None:
    name = codec.digest(b"abc")
    row = r.AttachmentRow(3, name, 1, f"sha256:{name}", "image/png", 3, None, None, None, 1, 2, "database", "i1")
    key = f"attachments 3/{name}"
    assert problems(rules.attachment(row, LIVING)) == []
    assert problems(rules.is_missing(row)) == [f"attachment_objects {name}: the bytes are missing"]
    outside = msgspec.structs.replace(row, stored_in="outside")
    assert problems(rules.is_missing(outside)) == []
    never = msgspec.structs.replace(row, stored_in=None)
    assert problems(rules.attachment(never, LIVING)) == [f"{key}: is committed, but its bytes were never stored"]
    assert problems(rules.attachment(msgspec.structs.replace(never, committed_at_ms=None), LIVING)) == []
    for uri, stored_in in ((row.uri, "caller"), ("s3://photo", "database"), ("s3://photo", None)):
        wrong = msgspec.structs.replace(row, uri=uri, stored_in=stored_in)
        assert problems(rules.attachment(wrong, LIVING)) == [
            f"{key}: its bytes are stored in {stored_in!r}, which contradicts its uri"
        ]


def test_only_bytes_in_the_stores_own_places_are_noted_for_deletion() -> None:
    assert problems(rules.object_deletion(1, HASH)) == []
    assert problems(rules.object_deletion(1, "photo")) == ["object_deletions 1/photo: is not the hash of any bytes"]


def test_an_artifact_whose_ref_names_its_content_has_that_content() -> None:
    minted = "mod:sha256:" + codec.digest(b"abc")
    assert problems(rules.artifact(artifacts.packed("mod", minted, b"abc", now_ms=1))) == []
    assert problems(rules.artifact(artifacts.packed("mod", "main", b"abc", now_ms=1))) == []
    wrong = artifacts.packed("mod", f"mod:sha256:{HASH}", b"abc", now_ms=1)
    assert problems(rules.artifact(wrong)) == [f"artifacts mod/mod:sha256:{HASH}: its content is that of {minted!r}"]


# ---------------------------------------------------------------------------- work and leases


def batch(**changes: Any) -> r.BatchRow:
    intent = queue.check_draft("draft", holdfast.WorkDraft(session_id="chat", payloads=[{"a": 1}]), LIMITS)
    row = queue.new_batch(intent, batch_id="batch:1", session_key=3, family=1, now_ms=1)
    return but(row, enqueue_seq=7, **changes)


CLAIM: dict[str, Any] = {
    "claim_id": "claim:5:2", "claim_owner": "w", "claim_token_hash": HASH, "claim_fence": 2, "claimed_at_ms": 1,
    "claim_expires_at_ms": 2, "claim_size": 1, "attempts": 1,
}  # fmt: skip
SETTLED: dict[str, Any] = {"settled_state": "completed", "settled_at_ms": 2, "source_key": "k"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        (CLAIM, []),
        ({**CLAIM, "claim_exclusive": 1}, []),
        (SETTLED, []),
        ({**SETTLED, "settled_state": "cancelled"}, []),
        ({"merge_key": "group:g"}, ["hash is not what the content says"]),
        ({"draft_hash": HASH}, ["hash is not what the content says"]),
        ({**SETTLED, "settled_at_ms": None}, ["is settled without a time, or the other way round"]),
        ({"settled_at_ms": 1}, ["is settled without a time, or the other way round"]),
        ({**SETTLED, "settled_state": "claimed"}, ["is settled as 'claimed'"]),
        ({**SETTLED, "source_key": None}, []),
        ({**SETTLED, **CLAIM, "settled_revision": 2}, []),
        ({**CLAIM, "settled_revision": 2}, ["revision 2 settled it, but it is not completed"]),
        ({**SETTLED, **CLAIM, "settled_state": "dead", "last_error": "e"}, []),
        ({**SETTLED, **CLAIM, "settled_state": "dead"}, ["is dead without a claim and an error"]),
        ({**SETTLED, "settled_state": "dead", "last_error": "e"}, ["is dead without a claim and an error"]),
        ({**CLAIM, "claim_size": 0}, ["has a claim of 0 batches after 1 attempts"]),
        ({**CLAIM, "attempts": 0}, ["has a claim of 1 batches after 0 attempts"]),
        ({"claim_size": 1}, ["has a claim of 1 batches after 0 attempts"]),
        ({"kind": "mail"}, ["hash is not what the content says"]),
        ({**CLAIM, "claim_owner": None}, ["has half a claim"]),
        ({**CLAIM, "claim_id": None}, ["has half a claim"]),
        ({**CLAIM, "claim_exclusive": 2}, ["its claim is exclusive 2 times"]),
        ({"claim_exclusive": 1}, ["its claim is exclusive 1 times"]),
        ({"claim_exclusive": 1, "attempts": 1}, []),
        ({**CLAIM, "claim_fence": 3}, []),
        ({**CLAIM, "claim_fence": 1}, ["its claim 'claim:5:2' is not one of fence 1"]),
        ({**CLAIM, "claim_id": "claim:5:0", "claim_fence": 0}, ["its claim 'claim:5:0' is not one of fence 0"]),
        ({**CLAIM, "claim_id": "claim:8:2"}, ["its claim 'claim:8:2' is not one of fence 2"]),
        ({**CLAIM, "claim_id": "5:2"}, ["its claim '5:2' is not one of fence 2"]),
        ({**CLAIM, "claim_id": "claim::2"}, ["its claim 'claim::2' is not one of fence 2"]),
        ({**CLAIM, "claim_token_hash": "secret"}, ["its claim's token is not hashed"]),
    ],
)
def test_a_batch_alone(changes: dict[str, Any], expected: list[str]) -> None:
    assert problems(rules.batch(batch(**changes), LIVING)) == [f"batches 7: {one}" for one in expected]


def test_a_batch_that_does_not_decode_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        list(rules.batch(batch(payloads=b"{}"), LIVING))


READY = r.ReadyRow(3, 1, 2, "turn", 0, 5, None, 7)


@pytest.mark.parametrize(
    ("row", "owner", "expected"),
    [
        (READY, LIVING, []),
        (READY, None, []),
        (but(READY, level=0, due_at_ms=9), LIVING, []),
        (but(READY, level=3), LIVING, ["offers work at level 3"]),
        (but(READY, level=0), LIVING, ["offers nothing, and never will"]),
        (but(READY, family=2), LIVING, ["it is in family 2, its session in 1"]),
        (READY, but(LIVING, deleted_at_ms=1), ["its session is deleted"]),
    ],
)
def test_a_ready_row_alone(row: r.ReadyRow, owner: r.SessionRow | None, expected: list[str]) -> None:
    assert problems(rules.ready(row, owner)) == [f"ready 3: {one}" for one in expected]


HELD = r.LeaseRow("session", "3", "w", HASH, 1, 1, 2)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (HELD, []),
        (but(HELD, owner_id=None, token_hash=None), []),
        (but(HELD, kind="queue"), ["leases queue/3: is a lease on a 'queue'"]),
        (but(HELD, owner_id=None), ["leases session/3: has half a holder"]),
        (but(HELD, token_hash=None), ["leases session/3: has half a holder"]),
        (but(HELD, token_hash="secret"), ["leases session/3: its token is not hashed"]),
        (but(HELD, fence=0), ["leases session/3: its fence is 0"]),
    ],
)
def test_a_lease_alone(row: r.LeaseRow, expected: list[str]) -> None:
    assert problems(rules.lease(row)) == expected


def test_a_lease_on_a_session_names_its_key() -> None:
    assert rules.leased_session(HELD) == 3
    names = ["", "x", "3.0", "\u0663", "1" * 40]
    assert [rules.leased_session(but(HELD, resource=name)) for name in names] == [None] * 5
    assert rules.leased_session(but(HELD, kind="process")) is None


def test_an_ended_process_has_no_holder() -> None:
    held = r.LeaseRow("process", "p", "w", HASH, 1, 1, 2)
    assert problems(rules.lease_on_process(held, "running")) == []
    assert problems(rules.lease_on_process(but(held, owner_id=None, token_hash=None), "failed")) == []
    assert problems(rules.lease_on_process(held, "failed")) == ["leases process/p: is held, but the process is failed"]


# ---------------------------------------------------------------------------- processes

TYPES = [
    EventType("ev", schema={"type": "object"}, wake=WakeRule(input=Payload())),
    EventType("quiet"),
    EventType("over", terminal=TerminalRule("completed")),
]


def process(**changes: Any) -> r.ProcessRow:
    given = holdfast.ProcessRegistration(
        "p",
        External(),
        identity=ProcessIdentity("external", None, {"d": 1}),
        event_types=TYPES,
        provenance=Provenance(BySession(holdfast.Scope("chat", "f"))),
        wake_target=holdfast.Scope("chat", "f"),
    )
    row = processes.new_process(processes.check_registration(given, LIMITS), now_ms=1)
    return but(row, event_count=2, **changes)


WAITS = {"wait": codec.encode_record(SignalWait("go", 1)), "waiting": 1}
ENDED = {"status": "completed", "outcome": codec.encode_record(Completed({"v": 1}))}


@pytest.mark.parametrize(
    ("changes", "log", "endings", "expected"),
    [
        ({}, (1, 2, 2), 0, []),
        ({"event_count": 0}, (0, 0, 0), 0, []),
        (WAITS, (1, 2, 2), 0, []),
        (ENDED, (1, 2, 2), 1, []),
        ({"wake_session_id": None, "wake_frame_id": None}, (1, 2, 2), 0, []),
        ({"registration_hash": HASH}, (1, 2, 2), 0, ["registration_hash is not what the content says"]),
        ({"definition_hash": None}, (1, 2, 2), 0, ["definition_hash is not what the content says"]),
        ({"originator_session_id": None}, (1, 2, 2), 0, ["originator_session_id is not what the content says"]),
        ({"wake_frame_id": None}, (1, 2, 2), 0, ["wakes a target that its registration does not name"]),
        ({"waiting": 1}, (1, 2, 2), 0, ["waits 1 times, for None"]),
        ({**WAITS, "waiting": 0}, (1, 2, 2), 0, [f"waits 0 times, for {SignalWait('go', 1)}"]),
        ({**WAITS, **ENDED}, (1, 2, 2), 1, [f"waits 1 times, for {SignalWait('go', 1)}"]),
        ({}, (1, 3, 2), 0, ["counts 2 events, the log has 2 up to 3"]),
        ({}, (0, 0, 0), 0, ["counts 2 events, the log has 0 up to 0"]),
        ({"event_count": 0}, (1, 1, 1), 0, ["counts 0 events, the log has 1 up to 1"]),
        ({}, (1, 2, 2), 1, ["is running, and ended 1 times in its log"]),
        (ENDED, (1, 2, 2), 0, ["is completed, and ended 0 times in its log"]),
    ],
)
def test_a_process_and_its_log(
    changes: dict[str, Any], log: tuple[int, int, int], endings: int, expected: list[str]
) -> None:
    row = but(process(), **changes)
    assert problems(rules.process(row, log, endings)) == [f"processes p: {one}" for one in expected]


def test_a_process_under_another_id_is_not_the_one_that_was_registered() -> None:
    assert problems(rules.process(process(process_id="x"), (1, 2, 2), 0)) == [
        "processes x: process_id is not what the content says"
    ]


def event(name: str, payload: Any, *, replay_key: str | None = None, **changes: Any) -> r.EventRow:
    owner = processes.process_of(process(status="running"))
    intent = events.check_event("p", name, payload, replay_key=replay_key, wake_target=None, limits=LIMITS)
    return but(events.plan(intent, but(owner, event_count=0), now_ms=1).row, **changes)


RUNNING = processes.process_of(process())
OVER = processes.process_of(but(process(), **ENDED))


@pytest.mark.parametrize(
    ("row", "owner", "expected"),
    [
        (event("ev", {"k": 1}), RUNNING, []),
        (event("ev", {"k": 1}, acked=1), RUNNING, []),
        (event("quiet", 1), RUNNING, []),
        (event("over", {"v": 1}, replay_key="k"), OVER, []),
        (event("ev", {"k": 1}, payload_hash=HASH), None, ["events p/1: hash is not what the content says"]),
        (event("ev", {"k": 1}, acked=2), None, ["events p/1: was acknowledged 2 times"]),
        (event("quiet", 1, acked=1), None, ["events p/1: was acknowledged 1 times"]),
        (event("ev", {"k": 1}), but(RUNNING, event_count=0), ["events p/1: comes after the 0 events of its process"]),
        (event("ev", {"k": 1}, wake=None), RUNNING, ["events p/1: its wake is not what its type makes of its payload"]),
        (
            event("quiet", 1, terminal_state="failed"),
            RUNNING,
            ["events p/1: terminal state is failed, its type's None"],
        ),
        (
            event("over", {"v": 2}, replay_key="k"),
            OVER,
            ["processes p: its outcome is not that of event 1"],
        ),
    ],
)
def test_an_event_is_what_its_process_would_append_again(
    row: r.EventRow, owner: Process | None, expected: list[str]
) -> None:
    assert problems(rules.event(row, owner)) == expected


def test_an_event_of_an_undeclared_type_would_be_refused() -> None:
    (hash_problem, refusal) = problems(rules.event(event("quiet", 1, type="loud"), RUNNING))
    assert hash_problem == "events p/1: hash is not what the content says"
    assert refusal.startswith("events p/1: would be refused now: ")


def test_a_schema_checks_an_accepted_value_only_once() -> None:
    odd = event("quiet", 1, type="ev", payload_hash=codec.stable_hash(["ev", 1]))
    assert problems(rules.event(odd, RUNNING)) == ["events p/1: its wake is not what its type makes of its payload"]


def test_a_grant_decodes() -> None:
    row = grants.row_of(holdfast.Scope("chat"), "p", HandleDescriptor("k"))
    assert problems(rules.grant(row)) == []
    with pytest.raises(Corrupt):
        list(rules.grant(but(row, descriptor=b"")))


# ---------------------------------------------------------------------------- triggers


def subscription(**changes: Any) -> r.SubscriptionRow:
    draft = SubscriptionDraft(
        source_type="cron",
        source={"every": "day"},
        target=External(),
        key="key",
        name="name",
        registrant=BySession(holdfast.Scope("chat", "f")),
        target_identity=ProcessIdentity("external", "l", {"d": 1}),
    )
    return but(triggers.new_subscription(triggers.check_subscription(draft, LIMITS), now_ms=1), sequence=4, **changes)


@pytest.mark.parametrize(
    "column",
    ["session_id", "frame_id", "key", "definition_hash", "name", "source_type", "source_key", "target_hash"],
)
def test_a_subscription_says_in_its_columns_what_its_draft_says(column: str) -> None:
    assert problems(rules.subscription(subscription())) == []
    assert problems(rules.subscription(subscription(**{column: "x"}))) == [
        f"subscriptions 4: {column} is not what the content says"
    ]


def test_a_subscription_is_enabled_or_not() -> None:
    assert problems(rules.subscription(subscription(enabled=0))) == []
    assert problems(rules.subscription(subscription(enabled=2))) == ["subscriptions 4: is enabled 2 times"]


def occurrence(**changes: Any) -> r.OccurrenceRow:
    intent = triggers.check_occurrence("cron", "d", "monday", {"p": 1}, None, LIMITS)
    return but(triggers.new_occurrence(intent, now_ms=1), **changes)


def test_an_occurrence_has_the_id_and_the_hash_that_its_content_gives_it() -> None:
    key = occurrence().occurrence_id
    assert problems(rules.occurrence(occurrence())) == []
    assert problems(rules.occurrence(occurrence(idempotency_key="x"))) == [
        f"occurrences {key}: occurrence_id is not what the content says"
    ]
    for change in ({"request_hash": HASH}, {"payload": b"2"}, {"source": b"2"}):
        assert problems(rules.occurrence(occurrence(**change))) == [
            f"occurrences {key}: request_hash is not what the content says"
        ]
    assert problems(rules.occurrence(occurrence(source_type=" "))) == [
        f"occurrences {key}: would be refused now: source_type: must not be blank"
    ]


PROCESS_OF_DELIVERY = "process:trigger:" + codec.digest(b'["o","subscription:4"]')


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"state": "started"}, []),
        ({"state": "failed", "failure": ""}, []),
        ({"process_id": "p"}, ["process_id is not what the content says"]),
        ({"state": "lost"}, ["state is 'lost'"]),
        ({"failure": "why"}, ["is reserved, and its failure is 'why'"]),
        ({"state": "failed"}, ["is failed, and its failure is None"]),
    ],
)
def test_a_delivery_alone(changes: dict[str, Any], expected: list[str]) -> None:
    row = but(r.DeliveryRow("o", 4, PROCESS_OF_DELIVERY, "reserved", 1, 1), **changes)
    assert problems(rules.delivery(row)) == [f"deliveries o/4: {one}" for one in expected]


# ---------------------------------------------------------------------------- missing rows


def test_an_orphan_names_its_parent_and_how_many_are_like_it() -> None:
    alone = rules.orphan("nodes", "7", "session", 3, 0)
    assert alone == Finding("nodes", "7", "its session 3 is missing")
    assert rules.orphan("grants", "s/f/p", "process", "p", 2).problem == (
        "its process 'p' is missing, as for 2 more rows here"
    )
    assert rules.missing_blob("ref", "3/4") == Finding("blobs", "ref", "is missing, but revision 3/4 needs it")
