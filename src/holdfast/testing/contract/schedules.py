"""Schedules: each tick fires once over all handles, and a missed, paused or replaced tick never comes back."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import UnknownSchedule
from holdfast.processes import External, Run
from holdfast.schedules import Schedule
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused
from holdfast.triggers import SubscriptionDraft, registration_for

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NIGHTLY = "0 3 * * *"
WAIT_MS = 60_000


def at(text: str) -> int:
    """Return a time such as `2026-03-29T03:00+02:00` in milliseconds."""
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def move(clock: ManualClock, text: str) -> None:
    """Set the clock."""
    clock.advance(at(text) - clock.now_ms())


def work(**fields: Any) -> holdfast.WorkDraft:
    """Return the work of a tick."""
    all_fields: dict[str, Any] = {"session_id": "reports", "payloads": [{"depth": 3}], "kind": "report", **fields}
    return holdfast.WorkDraft(**all_fields)


def fired(store: BlockingStore) -> list[tuple[str, int]]:
    """Fire everything that is due. Return names and ticks."""
    found: list[tuple[str, int]] = []
    while (firing := store.schedules.fire_next()) is not None:
        found.append((firing.name, firing.tick_ms))
    return found


def ticks(store: BlockingStore) -> list[int]:
    """Fire everything that is due. Return the ticks."""
    return [tick_ms for _, tick_ms in fired(store)]


class ScheduleContract(Contract):
    """`store.schedules`."""

    # Declaring.

    def test_a_declared_schedule_is_found_and_listed_by_name(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        move(clock, "2026-11-17T12:00+01:00")
        run = Run("report", "2", {"depth": 3})
        second = store.schedules.put("weekly", "30 8 * * MON", run=run)
        first = store.schedules.put("nightly", NIGHTLY, tz="Europe/Vienna", work=work())
        assert first == Schedule(
            name="nightly",
            cron=NIGHTLY,
            tz="Europe/Vienna",
            work=work(),
            run=None,
            paused=False,
            next_tick_ms=at("2026-11-18T03:00+01:00"),
            last_tick_ms=None,
            seen_ms=clock.now_ms(),
            failure=None,
            created_at_ms=clock.now_ms(),
            updated_at_ms=clock.now_ms(),
        )
        assert (second.run, second.work, second.next_tick_ms) == (run, None, at("2026-11-23T08:30+00:00"))
        other = bench.open()
        assert (other.schedules.get("nightly"), other.schedules.get("Nightly")) == (first, None)
        page = other.schedules.list(limit=1)
        assert page.items == (first,)
        assert other.schedules.list(after=page.next).items == (second,)
        assert store.maintenance.stats().schedules == 2

    def test_the_same_declaration_again_changes_nothing(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        store.schedules.put("nightly", NIGHTLY, work=work())
        before = bench.dump()
        clock.advance(DAY_MS)
        bench.open().schedules.put("nightly", NIGHTLY, work=work())
        assert bench.dump() == before
        assert len(ticks(store)) == 1

    def test_a_new_expression_fires_no_tick_of_before(self, store: BlockingStore, clock: ManualClock) -> None:
        move(clock, "2026-11-17T12:00+00:00")
        store.schedules.put("nightly", NIGHTLY)
        move(clock, "2026-11-20T12:00+00:00")
        changed = store.schedules.put("nightly", "0 4 * * *")
        assert (changed.cron, changed.next_tick_ms) == ("0 4 * * *", at("2026-11-21T04:00+00:00"))
        assert ticks(store) == []
        move(clock, "2026-11-21T04:00+00:00")
        assert ticks(store) == [clock.now_ms()]

    def test_a_new_zone_counts_from_now_on(self, store: BlockingStore, clock: ManualClock) -> None:
        move(clock, "2026-11-17T12:00+00:00")
        store.schedules.put("nightly", NIGHTLY)
        move(clock, "2026-11-18T12:00+00:00")
        assert store.schedules.put("nightly", NIGHTLY, tz="Asia/Tokyo").next_tick_ms == at("2026-11-19T03:00+09:00")
        assert ticks(store) == []

    def test_new_work_keeps_a_tick_that_was_missed(self, store: BlockingStore, clock: ManualClock) -> None:
        store.schedules.put("nightly", NIGHTLY, work=work())
        clock.advance(DAY_MS)
        store.schedules.put("nightly", NIGHTLY, work=work(payloads=["new"]))
        assert len(ticks(store)) == 1
        assert [batch.items[0].payload for batch in store.queue.list("reports")] == ["new"]

    @pytest.mark.parametrize(
        ("arguments", "field"),
        [
            ({"cron": "0 0 31 2 *"}, "cron"),
            ({"cron": "* * */20 * 1L"}, "cron"),
            ({"cron": "61 * * * *"}, "cron"),
            ({"cron": "* * * *"}, "cron"),
            ({"cron": "* * * * * *"}, "cron"),
            ({"cron": "@daily"}, "cron"),
            ({"tz": "Mars/Olympus"}, "tz"),
            ({"tz": "../etc/passwd"}, "tz"),
            ({"tz": "/etc/passwd"}, "tz"),
            ({"tz": "localtime"}, "tz"),
            ({"name": "n" * 500}, "name"),
            ({"work": holdfast.WorkDraft(payloads=[1])}, "work.session_id"),
            ({"work": work(source_key="k")}, "work.source_key"),
            ({"work": work(available_at_ms=1)}, "work.available_at_ms"),
            ({"work": work(payloads=["x" * 2_000])}, "work.payloads[0]"),
            ({"run": Run("r", args="x" * 2_000)}, "run.args"),
            ({"work": work(), "run": Run("r")}, "run"),
        ],
    )
    def test_a_wrong_declaration_is_refused_by_field(self, bench: Bench, arguments: dict[str, Any], field: str) -> None:
        store = bench.open(limits=holdfast.Limits(document_bytes=1_000))
        right: dict[str, Any] = {"name": "nightly", "cron": NIGHTLY}
        with refused(bench, holdfast.InvalidRequest) as info:
            store.schedules.put(**right | arguments)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == field

    # Pausing.

    def test_a_paused_schedule_fires_nothing_and_resumes_with_its_next_tick(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        move(clock, "2026-11-17T12:00+00:00")
        store.schedules.put("nightly", NIGHTLY)
        paused = store.schedules.pause("nightly")
        assert (paused.paused, paused.next_tick_ms) == (True, None)
        before = bench.dump()
        assert bench.open().schedules.pause("nightly") == paused
        assert bench.dump() == before
        move(clock, "2026-11-20T12:00+00:00")
        assert ticks(store) == []
        resumed = bench.open().schedules.resume("nightly")
        assert (resumed.paused, resumed.next_tick_ms) == (False, at("2026-11-21T03:00+00:00"))
        assert store.schedules.resume("nightly") == resumed
        assert ticks(store) == []
        move(clock, "2026-11-21T03:00+00:00")
        assert ticks(store) == [clock.now_ms()]

    def test_a_new_declaration_leaves_a_paused_schedule_paused(self, store: BlockingStore, clock: ManualClock) -> None:
        store.schedules.put("nightly", NIGHTLY)
        store.schedules.pause("nightly")
        assert store.schedules.put("nightly", "* * * * *").paused is True
        clock.advance(DAY_MS)
        assert ticks(store) == []

    @pytest.mark.parametrize("call", ["pause", "resume", "run_now"])
    def test_an_unknown_schedule_is_refused(self, store: BlockingStore, bench: Bench, call: str) -> None:
        with refused(bench, UnknownSchedule) as info:
            getattr(store.schedules, call)("nightly")
        assert isinstance(info.value, UnknownSchedule)
        assert info.value.name == "nightly"

    def test_a_removed_schedule_fires_no_more(self, store: BlockingStore, clock: ManualClock) -> None:
        store.schedules.put("nightly", NIGHTLY)
        assert (store.schedules.remove("nightly"), store.schedules.remove("nightly")) == (True, False)
        clock.advance(DAY_MS)
        assert (ticks(store), store.schedules.get("nightly")) == ([], None)

    # Running at once.

    def test_a_schedule_can_be_run_at_once_and_keeps_its_ticks(self, store: BlockingStore, clock: ManualClock) -> None:
        before = store.schedules.put("nightly", NIGHTLY, work=work())
        firing = store.schedules.run_now("nightly")
        other = store.schedules.run_now("nightly")
        assert (firing.tick_ms, firing.occurrence.source_key) == (clock.now_ms(), "nightly")
        assert [batch.batch_id for batch in store.queue.list("reports")] == [firing.batch_id, other.batch_id]
        assert store.schedules.get("nightly") == before
        store.schedules.pause("nightly")
        assert store.schedules.run_now("nightly").batch_id is not None

    def test_a_request_with_a_key_fires_once(self, store: BlockingStore, bench: Bench, clock: ManualClock) -> None:
        store.schedules.put("nightly", NIGHTLY, work=work())
        store.schedules.put("run", NIGHTLY, run=Run("report"))
        firings = [store.schedules.run_now(name, idempotency_key="request-7") for name in ("nightly", "run")]
        clock.advance(5)
        before = bench.dump()
        again = bench.open()
        assert [again.schedules.run_now(name, idempotency_key="request-7") for name in ("nightly", "run")] == firings
        assert bench.dump() == before
        claim = store.queue.claim_next(owner_id="w")
        assert claim is not None
        store.queue.complete(claim)
        store.maintenance.prune(holdfast.RetentionPolicy(settled_batches_older_than_ms=0))
        assert store.schedules.run_now("nightly", idempotency_key="request-7") == msgspec.structs.replace(
            firings[0], batch_id=None
        )
        assert len(store.queue.list("reports")) == 0

    def test_a_request_for_a_deleted_session_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        store.schedules.put("nightly", NIGHTLY, work=work())
        store.schedules.run_now("nightly", idempotency_key="before")
        store.sessions.delete("reports")
        with refused(bench, holdfast.SessionDeleted):
            store.schedules.run_now("nightly")
        assert store.schedules.run_now("nightly", idempotency_key="before").batch_id is None

    def test_a_key_that_is_too_long_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        store.schedules.put("nightly", NIGHTLY)
        with refused(bench, holdfast.InvalidRequest) as info:
            store.schedules.run_now("nightly", idempotency_key="k" * 500)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "idempotency_key"

    # Moving.

    def test_a_schedule_moves_with_the_ticks_that_it_has_seen(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        move(clock, "2026-11-17T12:00+00:00")
        with holdfast.open_blocking("memory:", clock=clock) as there:
            there.schedules.put("paused", NIGHTLY)
            paused = there.schedules.pause("paused")
            there.schedules.put("nightly", NIGHTLY, tz="Asia/Tokyo", work=work())
            move(clock, "2026-11-18T12:00+00:00")
            assert len(ticks(there)) == 1
            moved = there.schedules.get("nightly")
            assert moved is not None
        for one in (moved, paused):
            assert store.schedules.restore(one).replayed is False
            assert store.schedules.get(one.name) == one
        before = bench.dump()
        assert store.schedules.restore(moved).replayed is True
        assert bench.dump() == before
        assert ticks(store) == []
        changed = msgspec.structs.replace(moved, cron="0 4 * * *")
        with refused(bench, holdfast.Conflict):
            store.schedules.restore(changed)
        for wrong in (
            msgspec.structs.replace(moved, name="other", paused=True),
            msgspec.structs.replace(moved, name="other", next_tick_ms=moved.seen_ms),
        ):
            with refused(bench, holdfast.InvalidRequest):
                store.schedules.restore(wrong)

    # Deliveries of runs.

    def test_deliveries_that_start_runs_are_listed_and_waited_for_apart(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        for target in (External(), Run("report")):
            draft = SubscriptionDraft(source_type="cron", source_key="daily", target=target)
            store.triggers.subscribe(draft)
        store.triggers.cancel("trigger:2")
        store.triggers.emit("cron", "daily", idempotency_key="1")
        assert (len(store.triggers.undelivered()), len(store.triggers.undelivered(runs_only=True))) == (1, 0)
        with pytest.raises(holdfast.WaitTimeout):
            store.triggers.wait_undelivered(timeout_ms=1)
        draft = SubscriptionDraft(source_type="cron", source_key="daily", target=Run("report"), key="again")
        store.triggers.subscribe(draft)
        waiting = in_background(lambda: store.triggers.wait_undelivered(timeout_ms=WAIT_MS))
        bench.parked()
        bench.open().triggers.emit("cron", "daily", idempotency_key="2")
        assert waiting.result(TIMEOUT_S) is None
        [delivery] = store.triggers.undelivered(runs_only=True)
        assert isinstance(delivery.subscription.draft.target, Run)
        assert len(store.triggers.undelivered()) == 3
        store.processes.register(registration_for(delivery))
        assert len(store.triggers.undelivered(runs_only=True)) == 0
