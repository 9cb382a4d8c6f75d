"""Ticks of schedules: each fires once over all handles, and what it starts is stored with it."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.processes import External, Run
from holdfast.queue import Group
from holdfast.schedules import Schedule
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, at_once, in_background
from holdfast.testing.contract.schedules import DAY_MS, NIGHTLY, WAIT_MS, at, fired, move, ticks, work
from holdfast.triggers import SubscriptionDraft


class TickContract(Contract):
    """`store.schedules`, from a tick to what it starts."""

    # Firing.

    def test_a_tick_emits_an_occurrence_and_enqueues_its_work(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        move(clock, "2026-11-17T12:00+00:00")
        store.schedules.put("nightly", NIGHTLY, work=work(merge_key=Group("g"), priority=2))
        draft = SubscriptionDraft(source_type="schedule", source_key="nightly", target=External())
        store.triggers.subscribe(draft)
        move(clock, "2026-11-18T02:59:59+00:00")
        assert store.schedules.fire_next() is None
        move(clock, "2026-11-18T03:00:01+00:00")
        firing = store.schedules.fire_next()
        assert firing is not None
        tick_ms = at("2026-11-18T03:00+00:00")
        assert (firing.name, firing.tick_ms, firing.process_id) == ("nightly", tick_ms, None)
        occurrence = firing.occurrence
        assert (occurrence.source_type, occurrence.source_key) == ("schedule", "nightly")
        assert (occurrence.idempotency_key, occurrence.occurred_at_ms) == ("2026-11-18T03:00:00Z", clock.now_ms())
        assert occurrence.payload == {"schedule": "nightly", "tick_ms": tick_ms}
        assert list(store.triggers.occurrences()) == [occurrence]
        assert [one.occurrence for one in store.triggers.undelivered()] == [occurrence]
        [batch] = store.queue.list("reports")
        assert (batch.batch_id, batch.kind, batch.priority) == (firing.batch_id, "report", 2)
        assert (batch.items[0].payload, batch.merge_key) == ({"depth": 3}, Group("g"))
        assert batch.source_key == "schedule:nightly:2026-11-18T03:00:00Z"
        schedule = bench.open().schedules.get("nightly")
        assert schedule is not None
        assert (schedule.last_tick_ms, schedule.next_tick_ms) == (tick_ms, tick_ms + DAY_MS)
        assert store.schedules.fire_next() is None
        assert store.maintenance.verify().findings == ()

    def test_a_tick_starts_its_run(self, store: BlockingStore, clock: ManualClock) -> None:
        store.schedules.put("nightly", NIGHTLY, run=Run("report", "2", {"depth": 3}))
        clock.advance(DAY_MS)
        firing = store.schedules.fire_next()
        assert firing is not None
        claim = store.processes.claim_next(owner_id="w", kinds=[("report", "2")])
        assert claim is not None
        assert (claim.process.id, claim.process.input) == (firing.process_id, Run("report", "2", {"depth": 3}))
        caused_by = {"type": "trigger_occurrence", "occurrence_id": firing.occurrence.occurrence_id}
        assert (claim.process.provenance.caused_by, firing.batch_id) == (caused_by, None)

    def test_the_schedule_that_is_due_longest_fires_first(self, store: BlockingStore, clock: ManualClock) -> None:
        move(clock, "2026-11-17T12:00+00:00")
        store.schedules.put("late", "0 5 * * *")
        store.schedules.put("early", NIGHTLY)
        store.schedules.put("also early", NIGHTLY)
        store.schedules.put("later", "0 13 * * *")
        move(clock, "2026-11-18T12:00+00:00")
        assert [name for name, _ in fired(store)] == ["later", "also early", "early", "late"]

    def test_of_missed_ticks_only_the_latest_fires(self, store: BlockingStore, clock: ManualClock) -> None:
        move(clock, "2026-11-17T12:00+00:00")
        store.schedules.put("nightly", NIGHTLY, work=work())
        store.schedules.put("hourly", "30 * * * *", work=work())
        move(clock, "2026-11-20T02:30:30+00:00")
        assert fired(store) == [
            ("hourly", at("2026-11-20T02:30+00:00")),
            ("nightly", at("2026-11-19T03:00+00:00")),
        ]
        assert len(store.queue.list("reports")) == 2
        assert fired(store) == []

    def test_a_tick_fires_once_over_all_handles(self, store: BlockingStore, bench: Bench, clock: ManualClock) -> None:
        stores = [store, *(bench.open() for _ in range(5))]
        store.schedules.put("nightly", NIGHTLY, work=work())
        for day in range(1, 6):
            clock.advance(DAY_MS)
            answers = at_once(*[one.schedules.fire_next for one in stores])
            assert [type(one).__name__ for one in answers].count("Firing") == 1
            assert [type(one).__name__ for one in answers].count("NoneType") == 5
            assert len(store.queue.list("reports")) == len(store.triggers.occurrences()) == day

    def test_pruned_occurrences_and_work_do_not_bring_a_tick_back(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        store.schedules.put("nightly", NIGHTLY, work=work())
        clock.advance(DAY_MS)
        assert len(ticks(store)) == 1
        claim = store.queue.claim_next(owner_id="w")
        assert claim is not None
        store.queue.complete(claim)
        store.maintenance.prune(holdfast.RetentionPolicy(settled_batches_older_than_ms=0, occurrences_older_than_ms=0))
        assert len(store.triggers.occurrences()) == 0
        assert ticks(store) == []

    def test_a_clock_that_goes_back_brings_no_tick_back(self, store: BlockingStore, clock: ManualClock) -> None:
        move(clock, "2026-11-17T12:00+00:00")
        store.schedules.put("nightly", NIGHTLY, work=work())
        move(clock, "2026-11-18T04:00+00:00")
        assert len(ticks(store)) == 1
        move(clock, "2026-11-17T13:00+00:00")
        store.schedules.put("nightly", "1 3 * * *", work=work())
        move(clock, "2026-11-18T03:30+00:00")
        assert ticks(store) == []

    def test_a_tick_that_was_emitted_before_the_schedule_was_removed_is_not_emitted_again(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        move(clock, "2026-11-17T12:00+00:00")
        store.schedules.put("nightly", NIGHTLY, work=work())
        move(clock, "2026-11-18T03:00+00:00")
        assert len(ticks(store)) == 1
        assert store.schedules.remove("nightly") is True
        move(clock, "2026-11-18T02:00+00:00")
        store.schedules.put("nightly", NIGHTLY, work=work(payloads=["other"]))
        move(clock, "2026-11-18T03:00+00:00")
        assert ticks(store) == []
        assert len(store.queue.list("reports")) == 1
        schedule = store.schedules.get("nightly")
        assert schedule is not None
        assert schedule.failure == "this tick was emitted before"

    @pytest.mark.parametrize("cause", ["session", "work", "process"])
    def test_a_tick_that_can_start_nothing_says_so_and_the_others_continue(
        self, store: BlockingStore, clock: ManualClock, cause: str
    ) -> None:
        move(clock, "2026-11-17T12:00+00:00")
        name = "schedule:nightly:2026-11-18T03:00:00Z"
        if cause == "process":
            store.schedules.put("nightly", NIGHTLY, run=Run("report"))
            store.processes.start("other", id=name)
        else:
            store.schedules.put("nightly", NIGHTLY, work=work())
            store.queue.enqueue(work(source_key=name, payloads=["other"]))
        if cause == "session":
            store.sessions.delete("reports")
        store.schedules.put("later", "0 4 * * *")
        move(clock, "2026-11-18T04:00+00:00")
        assert [name for name, _ in fired(store)] == ["later"]
        schedule = store.schedules.get("nightly")
        assert schedule is not None
        assert schedule.failure is not None
        assert "reports" in schedule.failure or "schedule:nightly" in schedule.failure
        assert schedule.next_tick_ms == at("2026-11-19T03:00+00:00")
        if cause == "session":
            store.sessions.create("reports")
        move(clock, "2026-11-19T03:00+00:00")
        assert ticks(store) == [clock.now_ms()]
        schedule = store.schedules.get("nightly")
        assert schedule is not None
        assert schedule.failure is None

    def test_smaller_limits_do_not_stop_a_tick(self, store: BlockingStore, bench: Bench, clock: ManualClock) -> None:
        store.schedules.put("a rather long name", NIGHTLY, work=work(payloads=["x" * 1_000]))
        store.schedules.put("another long name", NIGHTLY, run=Run("r", args="x" * 1_000))
        clock.advance(DAY_MS)
        assert len(ticks(bench.open(limits=holdfast.Limits(id_bytes=20, document_bytes=100)))) == 2

    # Changes of the clock on the wall.

    def test_a_skipped_hour_fires_once_at_the_next_valid_time(self, store: BlockingStore, clock: ManualClock) -> None:
        move(clock, "2026-03-28T12:00+01:00")
        store.schedules.put("nightly", "30 2 * * *", tz="Europe/Vienna")
        move(clock, "2026-03-29T01:59+01:00")
        assert ticks(store) == []
        move(clock, "2026-03-29T03:00+02:00")
        assert ticks(store) == [clock.now_ms()]
        move(clock, "2026-03-30T02:00+02:00")
        assert ticks(store) == []
        move(clock, "2026-03-30T02:30+02:00")
        assert ticks(store) == [clock.now_ms()]

    def test_a_repeated_hour_fires_once(self, store: BlockingStore, clock: ManualClock) -> None:
        move(clock, "2026-10-24T12:00+02:00")
        store.schedules.put("nightly", "30 2 * * *", tz="Europe/Vienna")
        move(clock, "2026-10-25T02:30+02:00")
        assert ticks(store) == [clock.now_ms()]
        move(clock, "2026-10-25T02:30+01:00")
        assert ticks(store) == []
        move(clock, "2026-10-26T02:30+01:00")
        assert ticks(store) == [clock.now_ms()]

    def test_a_schedule_that_is_declared_in_the_repeated_hour_waits_for_the_next_day(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        move(clock, "2026-10-25T02:10+01:00")
        schedule = store.schedules.put("nightly", "30 2 * * *", tz="Europe/Vienna")
        assert schedule.next_tick_ms == at("2026-10-26T02:30+01:00")

    def test_half_an_hour_is_skipped_and_repeated_alike(self, store: BlockingStore, clock: ManualClock) -> None:
        move(clock, "2026-10-03T12:00+10:30")
        store.schedules.put("spring", "15 2 * * *", tz="Australia/Lord_Howe")
        move(clock, "2026-10-04T02:30+11:00")
        assert ticks(store) == [clock.now_ms()]
        store.schedules.remove("spring")
        move(clock, "2027-04-03T12:00+11:00")
        store.schedules.put("autumn", "45 1 * * *", tz="Australia/Lord_Howe")
        move(clock, "2027-04-04T01:45+11:00")
        assert ticks(store) == [clock.now_ms()]
        move(clock, "2027-04-04T01:45+10:30")
        assert ticks(store) == []

    def test_an_hourly_schedule_fires_in_every_hour_that_passes(self, store: BlockingStore, clock: ManualClock) -> None:
        move(clock, "2026-10-25T01:30+02:00")
        store.schedules.put("hourly", "0 * * * *", tz="Europe/Vienna")
        for text in ("02:00+02:00", "02:00+01:00", "03:00+01:00"):
            move(clock, f"2026-10-25T{text}")
            assert ticks(store) == [clock.now_ms()]

    # Waiting.

    def test_a_wait_ends_at_the_next_tick_by_time_alone(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        move(clock, "2026-11-17T12:00+00:00")
        store.schedules.put("nightly", NIGHTLY)
        with pytest.raises(holdfast.WaitTimeout):
            store.schedules.wait_next(timeout_ms=1)
        waiting = in_background(lambda: store.schedules.wait_next(timeout_ms=WAIT_MS))
        bench.parked()
        move(clock, "2026-11-18T03:00+00:00")
        assert waiting.result(TIMEOUT_S) is None
        store.schedules.wait_next(timeout_ms=0)
        assert ticks(store) == [clock.now_ms()]

    @pytest.mark.parametrize("cause", ["put", "changed", "resumed", "restored"])
    def test_a_wait_notices_a_changed_schedule(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, cause: str
    ) -> None:
        move(clock, "2026-11-17T12:00+00:00")
        other = bench.open()
        if cause in ("changed", "resumed"):
            store.schedules.put("nightly", "* * * * *" if cause == "resumed" else "0 0 1 1 *")
        if cause == "resumed":
            store.schedules.pause("nightly")
        schedule = Schedule("moved", NIGHTLY, "UTC", None, None, False, clock.now_ms() + 60_000, None, 0, None, 0, 0)
        # The schedule will be due before the wait ends: otherwise the wait may sleep through the change.
        waiting = in_background(lambda: store.schedules.wait_next(timeout_ms=2 * 60_000))
        bench.parked()
        if cause == "resumed":
            other.schedules.resume("nightly")
        elif cause == "restored":
            other.schedules.restore(schedule)
        else:
            other.schedules.put("nightly", "* * * * *")
        bench.parked()
        clock.advance(60_000)
        assert waiting.result(TIMEOUT_S) is None
