"""A policy never forgets a head, and blobs without any revision are evidence and not garbage."""

from __future__ import annotations

import pytest

from holdfast.errors import Corrupt, InvalidRequest
from holdfast.records.maintenance import RetentionPolicy
from holdfast.rules import maintenance


@pytest.mark.parametrize(
    "policy",
    [
        RetentionPolicy(),
        RetentionPolicy(keep_revisions=1),
        RetentionPolicy(
            keep_revisions=2**63 - 1,
            settled_work_older_than_ms=0,
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
        (RetentionPolicy(settled_work_older_than_ms=-1), "policy.settled_work_older_than_ms"),
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
    maintenance.require_roots(7, revisions, blobs)


@pytest.mark.parametrize("blobs", [1, 5])
def test_blobs_without_any_root_are_never_collected(blobs: int) -> None:
    with pytest.raises(Corrupt, match=f"over {blobs} blobs") as info:
        maintenance.require_roots(7, 0, blobs)
    assert (info.value.table, info.value.key) == ("revisions", "family 7")
