"""Logs: read from any cursor, in order; a waiter is woken when an event comes."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.events import EventDraft, EventType, Payload, ProcessEvent, TerminalRule, WakeRule
from holdfast.leases import OnProcess
from holdfast.processes import Completed, External, SignalWait
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused

TIMEOUT_MS = TIMEOUT_S * 1_000


def sequences(events: holdfast.Page[ProcessEvent] | tuple[ProcessEvent, ...]) -> list[int]:
    """Return the sequence numbers, in order."""
    return [event.sequence for event in events]


class LogContract(Contract):
    """Reading, waiting and following in `store.events`."""

    @pytest.fixture(autouse=True)
    def _process(self, store: BlockingStore) -> None:
        kinds = [
            EventType("ping"),
            EventType("pong"),
            EventType("over", terminal=TerminalRule("completed")),
            EventType("late", after_terminal=True),
            EventType("ring", wake=WakeRule(input=Payload())),
        ]
        store.processes.register(holdfast.ProcessRegistration("build", External(), event_types=kinds))

    def fill(self, store: BlockingStore, *types: str) -> None:
        """Append events of these types, numbered."""
        for number, type in enumerate(types, start=1):
            store.events.append("build", type, number, replay_key=f"k{number}")

    # Appending several events.

    def test_events_that_are_appended_together_have_one_order_and_one_time(self, store: BlockingStore) -> None:
        self.fill(store, "ping")
        drafts = [EventDraft("pong", number, f"d{number}") for number in range(3)] + [EventDraft("ping", {"a": None})]
        receipts = store.events.append_many("build", drafts)
        assert [receipt.event for receipt in receipts] == list(store.events.after("build", 1))
        shown = [(event.sequence, event.type, event.payload) for event in store.events.after("build", 1)]
        assert shown == [(2, "pong", 0), (3, "pong", 1), (4, "pong", 2), (5, "ping", {"a": None})]
        assert len({event.occurred_at_ms for event in store.events.after("build", 1)}) == 1
        process = store.processes.get("build")
        assert process is not None
        assert process.event_count == 5
        assert store.events.append_many("build", []) == ()
        assert store.maintenance.verify().findings == ()

    def test_events_that_are_in_the_log_are_not_appended_again_with_others(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        self.fill(store, "ping")
        drafts = [EventDraft("pong", 2, "k2"), EventDraft("ping", 1, "k1"), EventDraft("pong", 2, "k2")]
        receipts = store.events.append_many("build", drafts)
        assert [(one.event.sequence, one.replayed) for one in receipts] == [(2, False), (1, True), (2, True)]
        assert [one.replayed for one in store.events.append_many("build", drafts)] == [True] * 3
        assert sequences(store.events.after("build")) == [1, 2]
        with refused(bench, holdfast.errors.ReplayConflict):
            store.events.append_many("build", [EventDraft("pong", 3, "k3"), EventDraft("pong", 3, "k2")])

    @pytest.mark.parametrize(
        ("field", "drafts"),
        [
            ("type", [EventDraft("ping"), EventDraft("undeclared")]),
            ("events", [EventDraft("ping"), EventDraft("over", replay_key="end")]),
            ("events", [EventDraft("ring")]),
            ("events[1].type", [EventDraft("ping"), EventDraft("")]),
            ("events[0].replay_key", [EventDraft("ping", replay_key="")]),
            ("events[1]", [EventDraft("ping"), "ping"]),
            ("events", "ping"),
        ],
    )
    def test_of_events_that_are_appended_together_all_are_refused_or_none(
        self, store: BlockingStore, bench: Bench, field: str, drafts: Any
    ) -> None:
        with refused(bench, holdfast.InvalidRequest) as info:
            store.events.append_many("build", drafts)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == field

    def test_events_are_appended_together_under_a_lease_and_to_a_running_process(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        lease = store.leases.claim(OnProcess("build"), owner_id="w1")
        drafts = [EventDraft("ping", 1, "p1")]
        first = store.events.append_many("build", drafts, lease=lease)
        assert store.leases.release(lease)
        with refused(bench, holdfast.LeaseLost):
            store.events.append_many("build", [*drafts, EventDraft("ping", 2, "p2")], lease=lease)
        assert store.events.append_many("build", drafts, lease=lease)[0].event == first[0].event
        store.processes.complete("build", Completed())
        with refused(bench, holdfast.AlreadyTerminal):
            store.events.append_many("build", [EventDraft("late"), EventDraft("ping")])
        assert store.events.append_many("build", [EventDraft("late")])[0].event.sequence == 3
        with refused(bench, holdfast.UnknownProcess):
            store.events.append_many("nobody", drafts)

    def test_signals_that_come_together_wake_a_sleeping_run(self, store: BlockingStore) -> None:
        store.processes.start("research", id="run-1")
        claim = store.processes.claim_next(owner_id="w1")
        assert claim is not None
        store.processes.suspend(claim.lease, seen=0, wait=SignalWait("go", ordinal=1))
        assert store.processes.claim_next(owner_id="w1") is None
        store.events.append_many("run-1", [EventDraft("progress", 1), EventDraft("signal.go", 2)])
        woken = store.processes.claim_next(owner_id="w1")
        assert woken is not None
        assert woken.process.event_count == 2

    # Reading.

    def test_a_log_is_read_after_a_cursor_in_order(self, store: BlockingStore, bench: Bench) -> None:
        assert (store.events.after("build").items, store.events.recent("build")) == ((), ())
        self.fill(store, "ping", "pong", "ping", "over")
        other = bench.open().events
        assert sequences(other.after("build")) == [1, 2, 3, 4]
        assert sequences(other.after("build", 2)) == [3, 4]
        assert sequences(other.after("build", 4)) == []
        assert sequences(other.after("build", 2**63 - 1)) == []
        assert sequences(other.after("build", 1, type="ping")) == [3]
        assert sequences(other.after("build", type="never declared")) == []

    def test_a_long_log_is_paged_by_the_last_sequence(self, store: BlockingStore) -> None:
        self.fill(store, *(["ping", "pong"] * 26))
        first = store.events.after("build")
        assert (len(first), first.next is None) == (50, False)
        rest = store.events.after("build", first.items[-1].sequence)
        assert (sequences(rest), rest.next) == ([51, 52], None)
        pongs = store.events.after("build", 40, type="pong", limit=3)
        assert (sequences(pongs), pongs.next is None) == ([42, 44, 46], False)

    def test_the_end_of_a_log_is_read_oldest_first(self, store: BlockingStore) -> None:
        self.fill(store, "ping", "pong", "ping", "over")
        assert sequences(store.events.recent("build", limit=2)) == [3, 4]
        assert sequences(store.events.recent("build", limit=1_000)) == [1, 2, 3, 4]

    def test_events_are_counted_up_to_and_including_a_sequence(self, store: BlockingStore) -> None:
        self.fill(store, "ping", "pong", "ping", "ping")
        counts = [store.events.count("build", "ping", through=bound) for bound in (0, 1, 2, 3, 2**63 - 1)]
        assert counts == [0, 1, 1, 2, 3]
        assert store.events.count("build", "never", through=2**63 - 1) == 0

    def test_reading_the_log_of_an_unknown_process_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        for call in (
            lambda: store.events.after("nobody"),
            lambda: store.events.recent("nobody"),
            lambda: store.events.count("nobody", "ping", through=1),
            lambda: store.events.wait_for("nobody", "ping", timeout_ms=0),
            lambda: store.events.wakes("nobody"),
            lambda: next(store.events.follow("nobody")),
        ):
            with refused(bench, holdfast.UnknownProcess) as info:
                call()
            assert isinstance(info.value, holdfast.UnknownProcess)
            assert info.value.process_id == "nobody"

    @pytest.mark.parametrize(
        ("cursor", "limit"), [(-1, 1), (2**63, 1), (True, 1), (0, 0), (0, 1_001)],
        ids=["negative", "64 bits", "a flag", "limit 0", "limit 1001"],
    )  # fmt: skip
    def test_a_number_out_of_range_is_refused(
        self, store: BlockingStore, bench: Bench, cursor: int, limit: int
    ) -> None:
        with refused(bench, holdfast.InvalidRequest):
            store.events.after("build", cursor, limit=limit)

    def test_a_bound_out_of_range_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        for bound in (-1, 2**63):
            with refused(bench, holdfast.InvalidRequest):
                store.events.count("build", "ping", through=bound)

    # Waiting.

    def test_an_event_that_is_there_is_not_waited_for(self, store: BlockingStore) -> None:
        self.fill(store, "ping", "pong", "ping")
        assert store.events.wait_for("build", "ping", timeout_ms=0).sequence == 1
        assert store.events.wait_for("build", "ping", after=1, timeout_ms=0).sequence == 3

    def test_a_wait_for_an_event_has_a_deadline(self, store: BlockingStore, bench: Bench) -> None:
        self.fill(store, "ping")
        for timeout_ms in (0, 20):
            with refused(bench, holdfast.WaitTimeout) as info:
                store.events.wait_for("build", "ping", after=1, timeout_ms=timeout_ms)
            assert isinstance(info.value, holdfast.WaitTimeout)
            assert info.value.timeout_ms == timeout_ms

    def test_two_handles_hold_a_conversation_by_waiting_for_each_other(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        rounds, elsewhere = 10, bench.open()

        def answer() -> list[Any]:
            received: list[Any] = []
            cursor = 0
            for _ in range(rounds):
                event = elsewhere.events.wait_for("build", "ping", after=cursor, timeout_ms=TIMEOUT_MS)
                cursor = elsewhere.events.append("build", "pong", event.payload + 100).event.sequence
                received.append(event.payload)
            return received

        answering = in_background(answer)
        bench.parked()
        answers: list[Any] = []
        for number in range(rounds):
            cursor = store.events.append("build", "ping", number).event.sequence
            answers.append(store.events.wait_for("build", "pong", after=cursor, timeout_ms=TIMEOUT_MS).payload)
        assert answering.result(TIMEOUT_S) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert answers == [100, 101, 102, 103, 104, 105, 106, 107, 108, 109]

    # Following.

    def test_a_follower_sees_each_event_once_and_ends_after_the_terminal_one(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        self.fill(store, "ping", "pong")
        elsewhere = bench.open()
        following = in_background(lambda: list(elsewhere.events.follow("build", timeout_ms=TIMEOUT_MS)))
        for number in range(3, 6):
            bench.parked()
            store.events.append("build", "ping", number)
        bench.parked()
        store.processes.complete("build", Completed("done"))
        store.events.append("build", "late", "after the end")
        seen = following.result(TIMEOUT_S)
        assert [(event.sequence, event.type) for event in seen] == [
            (1, "ping"), (2, "pong"), (3, "ping"), (4, "ping"), (5, "ping"), (6, "process.completed"),
        ]  # fmt: skip

    def test_a_follower_stops_where_it_likes_and_another_continues_from_there(self, store: BlockingStore) -> None:
        self.fill(store, "ping", "pong", "ping", "over")
        start = list(islice(store.events.follow("build", timeout_ms=TIMEOUT_MS), 2))
        rest = list(store.events.follow("build", after=start[-1].sequence, timeout_ms=TIMEOUT_MS))
        assert [event.sequence for event in start] == [1, 2]
        assert [(event.sequence, event.terminal_state) for event in rest] == [(3, None), (4, "completed")]

    def test_a_follower_gives_up_when_nothing_comes_for_its_time(self, store: BlockingStore) -> None:
        self.fill(store, "ping")
        assert [event.sequence for event in store.events.follow("build", timeout_ms=10)] == [1]

    def test_a_follower_that_resumes_after_the_end_has_nothing_to_wait_for(self, store: BlockingStore) -> None:
        self.fill(store, "ping", "over")
        following = in_background(lambda: list(store.events.follow("build", after=2, timeout_ms=TIMEOUT_MS)))
        assert following.result(TIMEOUT_S / 3) == []

    def test_a_follower_reads_a_log_longer_than_a_page(self, bench: Bench) -> None:
        store = bench.open(limits=holdfast.Limits(page=3))
        self.fill(store, *(["ping"] * 7), "over")
        assert [event.sequence for event in store.events.follow("build", timeout_ms=TIMEOUT_MS)] == [
            1, 2, 3, 4, 5, 6, 7, 8,
        ]  # fmt: skip
