"""A retention policy never removes a head, and blobs without any revision are evidence and not garbage."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import codec
from holdfast.errors import Corrupt, InvalidRequest
from holdfast.records.maintenance import RetentionPolicy
from holdfast.rows import RevisionRow, SessionRow
from holdfast.rules import maintenance
from holdfast.rules.commits import TurnBody

REF = "json-sha256:" + "0" * 64
SESSION = SessionRow(7, "chat", 1, 5, revision=4, node_count=0, epoch=0, lineage=b"[]", changed_at_ms=0)


def revision(**changes: Any) -> RevisionRow:
    body = codec.encode_record(TurnBody(config_ref=REF))
    plain = RevisionRow(7, 4, 5, None, None, 0, 0, None, None, None, f'["{REF}"]'.encode(), body, 50)
    return msgspec.structs.replace(plain, **changes)


@pytest.mark.parametrize(
    "policy",
    [
        RetentionPolicy(),
        RetentionPolicy(keep_revisions=1),
        RetentionPolicy(
            keep_revisions=2**63 - 1,
            settled_batches_older_than_ms=0,
            terminal_processes_older_than_ms=0,
            occurrences_older_than_ms=0,
        ),
    ],
    ids=["nothing", "one revision", "everything"],
)
def test_a_policy_may_leave_anything_out(policy: RetentionPolicy) -> None:
    assert maintenance.check_policy(policy) == policy


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"keep_revisions": 1}, "policy"),
        (RetentionPolicy(keep_revisions=0), "policy.keep_revisions"),
        (RetentionPolicy(settled_batches_older_than_ms=-1), "policy.settled_batches_older_than_ms"),
        (RetentionPolicy(terminal_processes_older_than_ms=-1), "policy.terminal_processes_older_than_ms"),
        (RetentionPolicy(occurrences_older_than_ms=2**63), "policy.occurrences_older_than_ms"),
        (RetentionPolicy(keep_revisions=True), "policy.keep_revisions"),
    ],
)
def test_a_policy_that_would_forget_a_head_or_the_future_is_refused(policy: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        maintenance.check_policy(policy)
    assert info.value.field == field


def test_older_than_an_age_means_up_to_that_time() -> None:
    assert maintenance.cutoff(1_000, 0) == 1_000
    assert maintenance.cutoff(1_000, 400) == 600


@pytest.mark.parametrize(("revisions", "blobs"), [(0, 0), (1, 0), (1, 5)])
def test_blobs_with_a_root_may_be_collected(revisions: int, blobs: int) -> None:
    maintenance.require_roots(7, [SESSION], revisions, blobs)


def test_leftovers_of_deleted_sessions_may_be_collected() -> None:
    maintenance.require_roots(7, [msgspec.structs.replace(SESSION, deleted_at_ms=1)], 0, 5)


@pytest.mark.parametrize("blobs", [1, 5])
def test_blobs_without_any_root_are_never_collected(blobs: int) -> None:
    with pytest.raises(Corrupt, match=f"over {blobs} blobs") as info:
        maintenance.require_roots(7, [SESSION], 0, blobs)
    assert (info.value.table, info.value.key) == ("revisions", "family 7")


def test_a_revision_that_lists_what_its_body_needs_proves_its_roots() -> None:
    maintenance.require_proven_roots(SESSION, revision())
    maintenance.require_proven_roots(SESSION, revision(refs=b"[]", body=codec.encode_record(TurnBody())))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"refs": b"[]"}, "not those of the body"),
        ({"refs": b"{}"}, "not those of the body"),
        ({"refs": b""}, "not those of the body"),
        ({"body": codec.encode_record(TurnBody())}, "not those of the body"),
        ({"family": 7}, "in family 7, its session in 5"),
        ({"body": b"?"}, "record format 63"),
    ],
    ids=["none", "an object", "nothing", "another body", "another family", "no body"],
)
def test_a_revision_that_lists_anything_else_stops_the_collection(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Corrupt, match=reason) as info:
        maintenance.require_proven_roots(SESSION, revision(**changes))
    assert (info.value.table, info.value.key) == ("revisions", "7/4")


@pytest.mark.parametrize(
    ("head", "keep", "below"), [(4, 1, 4), (4, 3, 2), (4, 4, None), (4, 9, None), (1, 1, None), (0, 1, None)]
)
def test_pruning_keeps_the_last_revisions_and_the_head_always(head: int, keep: int, below: int | None) -> None:
    session = msgspec.structs.replace(SESSION, revision=head)
    assert maintenance.prunable_below(session, keep) == below
    assert maintenance.prunable_below(msgspec.structs.replace(session, deleted_at_ms=1), keep) is None
