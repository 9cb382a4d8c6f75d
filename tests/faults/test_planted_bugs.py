"""Each planted bug is noticed by the fault that covers it: a fault that cannot fail proves nothing."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest

from holdfast.torture import children
from holdfast.torture.catalogue import FAULTS
from holdfast.torture.places import Scratch
from holdfast.torture.running import run_fault

BUGS = Path(__file__).parent / "planted" / "bugs.py"
SEED = 20_260_102

PLANTED = [
    ("synchronous_normal", "power-loss", "sqlite", "I1", 400),
    ("acknowledged_before_commit", "kill-writer", "sqlite", "I1", 100),
    ("acknowledged_before_commit", "power-loss", "sqlite", "I1", 400),
    ("group_acknowledged_before_commit", "kill-writer", "sqlite", "I1", 400),
    ("group_acknowledged_before_commit", "power-loss", "sqlite", "I1", 400),
    ("unknown_told_as_not_applied", "cut-commit-and-claim", "postgres", "I9", 1),
    ("head_without_guard", "concurrent-clients", "sqlite", "I3", 5),
    ("head_without_guard", "concurrent-clients", "postgres", "I3", 5),
    ("fence_at_least", "concurrent-clients", "sqlite", "I5", 5),
    ("fence_not_compared", "stop-holder", "sqlite", "I5", 60),
    ("lease_without_end", "concurrent-clients", "sqlite", "I5", 5),
    ("completion_after_end", "concurrent-clients", "sqlite", "I6", 10),
    ("completion_without_token", "concurrent-clients", "sqlite", "I6", 5),
    ("wake_lost", "wakes", "postgres", "I8", 100),
    ("newest_event_late", "concurrent-clients", "sqlite", "I8", 5),
    ("cursor_before_processing", "kill-reader", "sqlite", "I8", 60),
    ("block_committed_call_by_call", "kill-in-transaction", "sqlite", "I2", 60),
    ("block_always_committed", "kill-in-transaction", "sqlite", "I2", 60),
    ("block_always_committed", "kill-in-transaction", "postgres", "I2", 60),
    ("block_acknowledged_before_commit", "kill-in-transaction", "sqlite", "I1", 400),
    ("block_left_open_by_an_interrupt", "interrupts", "sqlite", "I9", 2_000),
    ("inherited_file_opened", "fork-then-open", "sqlite", None, 50),
    ("main_thread_lends_readers", "interrupts", "sqlite", "I9", 2_000),
    ("loop_completes_a_callers_future", "interrupts", "postgres", "I9", 2_000),
    ("failed_connection_returned", "cancel-statements", "postgres", None, 3_000),
    # The lost turn determines the invariant that fails first.
    ("commit_not_awaited", "server-crash", "postgres", None, 30),
    ("callers_commit_not_awaited", "within-crash", "postgres", "I1", 10),
    # The caller's savepoint is gone with its transaction, or the rolled-back writes are stored.
    ("callers_transaction_committed", "within-crash", "sqlite", None, 10),
    ("commit_not_awaited", "worker-server-crash", "postgres", None, 12),
    ("turns_claimed_like_jobs", "kill-worker", "sqlite", "I6", 20),
    ("steps_returned_before_their_record", "kill-worker", "sqlite", "I6", 40),
    ("calls_cut_off_by_a_shutdown", "restart-workers", "sqlite", "I6", 80),
    ("a_failed_attempt_for_each_shutdown", "restart-workers", "sqlite", "I6", 80),
    ("clock_of_the_client", "worker-clocks", "postgres", "I6", 20),
]
IN_WORKERS_ALONE = {
    "settled_by_whichever_claim",
    "turns_claimed_like_jobs",
    "steps_returned_before_their_record",
    "calls_cut_off_by_a_shutdown",
    "a_failed_attempt_for_each_shutdown",
    "clock_of_the_client",
}
"""Bugs that only the child processes have: the store of the parent judges them."""

PLANTED_ON_RELEASE = [
    ("settled_by_whichever_claim", "kill-worker", "sqlite", "I6", 1_000),
    ("replay_without_standby", "failover", "postgres", "I1", 6),
    ("family_of_a_key_remembered", "failover-behind", "postgres", "I10", 3),
]
"""Noticed by faults that need two servers for each run, or hundreds of kills: too slow for every push
(`HOLDFAST_WHOLE=1`). `completion_after_end` and `completion_without_token` notice lost claims on every push."""
if os.environ.get("HOLDFAST_WHOLE"):
    PLANTED += PLANTED_ON_RELEASE


@pytest.mark.parametrize(
    ("bug", "name", "scratch", "invariant", "most"),
    [pytest.param(*case, id=f"{case[0]}-{case[1]}-{case[2]}") for case in PLANTED],
    indirect=["scratch"],
)
def test_a_planted_bug_is_noticed(
    bug: str, name: str, scratch: Scratch, invariant: str | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch.fresh()  # the schema is created by correct code
    monkeypatch.setattr(children, "PLANTED", (str(BUGS), bug))
    if bug not in IN_WORKERS_ALONE:
        runpy.run_path(str(BUGS))[bug](monkeypatch.setattr)
    [fault] = [fault for fault in FAULTS if fault.name == name]
    monkeypatch.setattr("holdfast.torture.running.VIOLATIONS_A_FAULT", 1)
    monkeypatch.setattr("holdfast.torture.interrupts.SILENT_S", 5.0)
    monkeypatch.setattr("holdfast.torture.cancels.HANG_TIMEOUT_S", 5.0)
    result = run_fault(scratch, fault, seed=SEED, wanted=most)
    assert result.violations, f"{bug} went unnoticed in {result.cases} {fault.unit}"
    problems = result.violations[0].problems
    assert invariant is None or any(one.startswith(f"{invariant}:") for one in problems), problems
