"""A lost answer of a call on a run: it is applied once, and its caller gets the answer or `unknown`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.backends.postgres.test_lost_answers import CUTS, Call, Cuttable, cuttable, is_unknown  # noqa: F401 - a fixture
from tests.backends.postgres.wire import Cut

import holdfast

LATER_MS = 99_999_999_999_999

GIVING_BACK: dict[str, Any] = {
    "suspend": lambda store, lease: store.processes.suspend(lease, seen=0, due_at_ms=LATER_MS),
    "retry_later": lambda store, lease: store.processes.retry_later(lease, "no answer", retry_in_ms=1_000_000),
}


def claim(owner_id: str = "w1") -> Call:
    return lambda store: store.processes.claim_next(owner_id=owner_id)


def start(id: str | None = "run-1", **given: Any) -> Call:
    return lambda store: store.processes.start("research", [1], id=id, **given)


def listed(store: Any) -> Any:
    return store.processes.list()


@CUTS
def test_a_run_without_an_id_is_started_once_and_by_its_caller(cuttable: Cuttable, when: Cut) -> None:  # noqa: F811
    receipt = cuttable.cut("commit", when, start(None))
    assert receipt.created
    assert [run.id for run in cuttable.seen(listed)] == [receipt.process.id]


@CUTS
def test_a_run_with_an_id_is_started_once_and_given(cuttable: Cuttable, when: Cut) -> None:  # noqa: F811
    receipt = cuttable.cut("commit", when, start())
    assert [run.id for run in cuttable.seen(listed)] == [receipt.process.id] == ["run-1"]


@CUTS
def test_a_run_is_claimed_once_and_given_with_its_lease(cuttable: Cuttable, when: Cut) -> None:  # noqa: F811
    for id in ("run-1", "run-2"):
        cuttable.do(start(id, due_at_ms=0))
    claimed = cuttable.cut("claim_run", when, claim())
    assert (claimed.process.id, claimed.process.attempt) == ("run-1", 1)
    assert cuttable.do(lambda store: store.leases.renew(claimed.lease, ttl_ms=1_000)).fence == claimed.lease.fence
    assert [run.attempt for run in cuttable.seen(listed)] == [1, 0]


@CUTS
def test_a_run_is_ended_once_and_the_next_is_claimed_once(cuttable: Cuttable, when: Cut) -> None:  # noqa: F811
    for number, id in enumerate(("run-1", "run-2", "run-3")):
        cuttable.do(start(id, due_at_ms=number))
    lease = cuttable.do(claim()).lease

    def hand_over(store: Any) -> Any:
        return store.processes.complete_and_claim_next(lease, holdfast.processes.Completed(1), owner_id="w1")

    ended, following = cuttable.cut("append_and_claim", when, hand_over)
    assert (ended.id, ended.status, ended.event_count) == ("run-1", "completed", 1)
    assert (following.process.id, following.process.attempt) == ("run-2", 1)
    assert cuttable.do(lambda store: store.leases.renew(following.lease, ttl_ms=1_000)).fence == following.lease.fence
    assert [(run.id, run.attempt) for run in cuttable.seen(listed)] == [("run-2", 1), ("run-3", 0)]


@CUTS
@pytest.mark.parametrize("call", GIVING_BACK)
def test_a_run_is_given_back_once_or_in_doubt(cuttable: Cuttable, when: Cut, call: str) -> None:  # noqa: F811
    cuttable.do(start())
    lease = cuttable.do(claim()).lease
    answer = cuttable.cut("commit", when, lambda store: GIVING_BACK[call](store, lease))
    assert is_unknown(answer)
    [run] = cuttable.seen(listed)
    assert (run.suspended or run.last_error is not None) == (when == "after")
    # The lease decides whether a second try is made: it is held until the first was applied.
    if when == "after":
        with pytest.raises(holdfast.LeaseLost):
            cuttable.do(lambda store: GIVING_BACK[call](store, lease))
    else:
        cuttable.do(lambda store: GIVING_BACK[call](store, lease))
