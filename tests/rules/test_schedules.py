"""Rules of schedules that no case of the contract reaches."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.records.limits import Limits
from holdfast.records.maintenance import Finding
from holdfast.rules import schedules as rules
from holdfast.rules import verification
from holdfast.schedule_rows import ScheduleRow

NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 3_600_000


def row(**changes: object) -> ScheduleRow:
    intent = rules.check_schedule("nightly", "0 3 * * *", "UTC", None, holdfast.processes.Run("report"), Limits())
    return msgspec.structs.replace(rules.declared(intent, None, now_ms=NOW_MS), **changes)


def test_a_zone_that_this_system_does_not_know_keeps_the_tick_for_another() -> None:
    before = row(tz="Mars/Olympus")
    due = rules.due(before, now_ms=NOW_MS + DAY_MS)
    assert due.tick_ms is None
    assert due.row.due_at_ms == 1_700_086_440_000
    assert (due.row.seen_ms, due.row.last_tick_ms) == (before.seen_ms, None)
    assert due.row.failure is not None
    assert due.row.failure.startswith("tz: 'Mars/Olympus' is not a time zone of this system")
    known = rules.due(msgspec.structs.replace(due.row, tz="UTC"), now_ms=1_700_086_440_000)
    assert known.tick_ms == 1_700_017_200_000
    assert known.row.failure is None


def test_a_row_that_is_due_without_a_tick_only_moves_on() -> None:
    """The time zone database may have changed since the tick was computed."""
    early = row(due_at_ms=NOW_MS + 1)
    due = rules.due(early, now_ms=NOW_MS + 1)
    assert due.tick_ms is None
    assert (due.row.seen_ms, due.row.due_at_ms, due.row.failure) == (NOW_MS + 1, 1_700_017_200_000, None)


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ({"work": holdfast.WorkDraft(session_id="s", payloads=["x" * 600_000] * 2), "run": None}, "work.payloads"),
        ({"work": None, "run": holdfast.processes.Run("r", args="x" * 1_100_000)}, "run.args"),
    ],
)
def test_a_target_that_is_too_large_for_every_tick_is_refused(target: dict[str, Any], field: str) -> None:
    with pytest.raises(holdfast.InvalidRequest) as info:
        rules.check_schedule("nightly", "0 3 * * *", "UTC", **target, limits=Limits())
    assert (info.value.field, info.value.limit) == (field, 1024 * 1024)


def test_verification_finds_a_schedule_that_is_due_as_none_can_be() -> None:
    assert list(verification.schedule(row())) == []
    assert list(verification.schedule(row(paused=1, due_at_ms=None))) == []
    for damaged in (row(paused=2), row(paused=1), row(due_at_ms=NOW_MS), row(due_at_ms=NOW_MS + 1)):
        [finding] = verification.schedule(damaged)
        assert isinstance(finding, Finding)
        assert (finding.table, finding.key) == ("schedules", "nightly")
