"""Completion: a process ends once, with one outcome, by its current holder."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import ReplayConflict
from holdfast.events import EventType, TerminalRule
from holdfast.leases import OnProcess, OnSession, Token
from holdfast.processes import Cancelled, Completed, External, Failed
from holdfast.records.processes import ProcessOutcome
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused

BUILD = OnProcess("build")
WRONG: dict[str, Any] = {"class": "bad luck", "message": None, "outcome": "done"}
OTHER_TOKEN = Token("0" * 32)

OUTCOMES: list[tuple[ProcessOutcome, str, dict[str, Any]]] = [
    (
        Completed({"answer": [1, 2.5, "é", None]}, control={"type": "finish", "value": 1}),
        "completed",
        {"type": "success", "value": {"answer": [1, 2.5, "é", None]}, "control": {"type": "finish", "value": 1}},
    ),
    (
        Failed("broken", code="e42", failure_class="timeout", raw={"at": 3}, control={"type": "fail"}),
        "failed",
        {
            "type": "failure",
            "message": "broken",
            "code": "e42",
            "class": "timeout",
            "raw": {"at": 3},
            "control": {"type": "fail"},
        },
    ),
    (
        Cancelled("enough", raw=[1]),
        "cancelled",
        {"type": "cancelled", "message": "enough", "raw": [1], "control": None},
    ),
    (
        Completed({"type": "failure", "message": "it only looks like one"}),
        "completed",
        {"type": "success", "value": {"type": "failure", "message": "it only looks like one"}, "control": None},
    ),
]


class CompletionContract(Contract):
    """`store.processes.complete`, with and without a lease."""

    @pytest.fixture(autouse=True)
    def _process(self, store: BlockingStore) -> None:
        registration = holdfast.ProcessRegistration(
            "build",
            External(),
            event_types=[
                EventType("progress"),
                EventType("over", terminal=TerminalRule("completed")),
            ],
        )
        store.processes.register(registration)

    @pytest.mark.parametrize(
        ("outcome", "status", "payload"), OUTCOMES, ids=["completed", "failed", "cancelled", "look-alike"]
    )
    def test_an_outcome_is_kept_logged_and_given_to_waiters(
        self,
        store: BlockingStore,
        bench: Bench,
        clock: ManualClock,
        outcome: ProcessOutcome,
        status: str,
        payload: dict[str, Any],
    ) -> None:
        clock.advance(3)
        process = store.processes.complete("build", outcome)
        assert (process.status, process.outcome, process.is_terminal) == (status, outcome, True)
        assert (process.event_count, process.updated_at_ms) == (1, clock.now_ms())
        assert store.processes.wait("build", timeout_ms=0) == outcome
        (event,) = bench.open().events.after("build")
        assert (event.type, event.sequence, event.terminal_state) == (f"process.{status}", 1, status)
        assert event.payload == {"await_output": payload}
        assert event.replay_key is not None

    def test_the_same_completion_again_changes_nothing(self, store: BlockingStore, bench: Bench) -> None:
        first = store.processes.complete("build", Failed("broken"))
        before = bench.dump()
        assert bench.open().processes.complete("build", Failed("broken")) == first
        assert bench.dump() == before
        assert [event.type for event in store.events.after("build")] == ["process.failed"]

    def test_another_outcome_of_the_same_kind_conflicts(self, store: BlockingStore, bench: Bench) -> None:
        store.processes.complete("build", Completed(1))
        with refused(bench, ReplayConflict) as info:
            store.processes.complete("build", Completed(2))
        assert str(info.value).endswith("it ended with another outcome: stop, and read that")
        assert store.processes.wait("build", timeout_ms=0) == Completed(1)

    @pytest.mark.parametrize("second", [Failed("late"), Cancelled("late")], ids=["failed", "cancelled"])
    def test_an_outcome_of_another_kind_comes_too_late(
        self, store: BlockingStore, bench: Bench, second: ProcessOutcome
    ) -> None:
        store.processes.complete("build", Completed(1))
        with refused(bench, holdfast.AlreadyTerminal) as info:
            store.processes.complete("build", second)
        assert isinstance(info.value, holdfast.AlreadyTerminal)
        assert (info.value.process_id, info.value.status) == ("build", "completed")

    def test_a_process_that_an_event_ended_cannot_be_completed(self, store: BlockingStore, bench: Bench) -> None:
        store.events.append("build", "over", 1, replay_key="end")
        with refused(bench, holdfast.AlreadyTerminal):
            store.processes.complete("build", Completed(1))

    def test_an_unknown_process_cannot_be_completed(self, store: BlockingStore, bench: Bench) -> None:
        with refused(bench, holdfast.UnknownProcess):
            store.processes.complete("nobody", Completed())

    @pytest.mark.parametrize(
        "outcome",
        [
            Completed(float("inf")),
            Completed({"a": (1, 2)}),
            Failed("m", code=""),
            Failed("m", failure_class=WRONG["class"]),
            Failed("m", raw=b"bytes"),
            Cancelled(WRONG["message"]),
            WRONG["outcome"],
        ],
        ids=["infinity", "a tuple", "blank code", "no such class", "bytes", "no message", "no outcome"],
    )
    def test_a_malformed_outcome_is_refused(self, store: BlockingStore, bench: Bench, outcome: ProcessOutcome) -> None:
        with refused(bench, holdfast.InvalidRequest):
            store.processes.complete("build", outcome)

    # Fenced.

    def test_a_fenced_completion_ends_the_process_and_lets_the_lease_go(self, store: BlockingStore) -> None:
        lease = store.leases.claim(BUILD, owner_id="w1")
        assert store.processes.complete("build", Completed(1), lease=lease).status == "completed"
        assert store.leases.holder(BUILD) is None
        assert store.leases.release(lease) is False

    @pytest.mark.parametrize("why", ["expired", "superseded", "taken over", "released", "other fence", "other token"])
    def test_the_former_holder_of_a_lease_cannot_complete(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, why: str
    ) -> None:
        lease = store.leases.claim(BUILD, owner_id="w1", ttl_ms=1_000)
        if why == "expired":
            clock.advance(1_000)
        elif why == "superseded":
            store.leases.claim(BUILD, owner_id="w1", ttl_ms=1_000)
        elif why == "taken over":
            clock.advance(1_000)
            store.leases.claim(BUILD, owner_id="w2", ttl_ms=1_000)
        elif why == "released":
            store.leases.release(lease)
        elif why == "other fence":
            lease = msgspec.structs.replace(lease, fence=lease.fence + 1)
        else:
            lease = msgspec.structs.replace(lease, token=OTHER_TOKEN)
        with refused(bench, holdfast.LeaseLost):
            bench.open().processes.complete("build", Completed(1), lease=lease)
        process = store.processes.get("build")
        assert process is not None
        assert (process.status, process.event_count) == ("running", 0)

    def test_a_lease_is_good_until_the_last_millisecond(self, store: BlockingStore, clock: ManualClock) -> None:
        lease = store.leases.claim(BUILD, owner_id="w1", ttl_ms=1_000)
        clock.advance(999)
        assert store.processes.complete("build", Completed(1), lease=lease).status == "completed"

    def test_a_fenced_completion_that_is_sent_again_is_answered_though_the_lease_is_gone(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        lease = store.leases.claim(BUILD, owner_id="w1", ttl_ms=1_000)
        first = store.processes.complete("build", Completed(1), lease=lease)
        clock.advance(5_000)
        before = bench.dump()
        assert store.processes.complete("build", Completed(1), lease=lease) == first
        assert bench.dump() == before
        with refused(bench, ReplayConflict):
            store.processes.complete("build", Completed(2), lease=lease)
        with refused(bench, holdfast.Conflict):
            store.processes.complete("build", Failed("late"), lease=lease)

    @pytest.mark.parametrize("resource", [OnProcess("other"), OnSession("build")], ids=["process", "session"])
    def test_a_lease_on_something_else_fences_nothing(
        self, store: BlockingStore, bench: Bench, resource: OnProcess | OnSession
    ) -> None:
        store.processes.register(holdfast.ProcessRegistration("other", External()))
        lease = store.leases.claim(resource, owner_id="w1")
        with refused(bench, holdfast.InvalidRequest) as info:
            store.processes.complete("build", Completed(1), lease=lease)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "lease.resource"

    def test_an_unfenced_completion_puts_the_leaseholder_out(self, store: BlockingStore, bench: Bench) -> None:
        lease = store.leases.claim(BUILD, owner_id="w1")
        store.processes.complete("build", Cancelled("from outside"))
        assert store.leases.holder(BUILD) is None
        with refused(bench, holdfast.LeaseLost):
            store.leases.renew(lease)
        with refused(bench, holdfast.Conflict):
            store.processes.complete("build", Completed(1), lease=lease)

    def test_an_event_that_ends_the_process_puts_the_leaseholder_out(self, store: BlockingStore, bench: Bench) -> None:
        lease = store.leases.claim(BUILD, owner_id="w1")
        store.events.append("build", "progress", 1)
        assert store.leases.renew(lease).fence == lease.fence
        store.events.append("build", "over", 2, replay_key="end")
        assert store.leases.holder(BUILD) is None
        with refused(bench, holdfast.LeaseLost):
            store.leases.renew(lease)

    @pytest.mark.parametrize("leased_before", [True, False], ids=["leased before", "never leased"])
    def test_a_process_that_ended_cannot_be_leased(
        self, store: BlockingStore, bench: Bench, leased_before: bool
    ) -> None:
        lease = store.leases.claim(BUILD, owner_id="w1") if leased_before else None
        store.processes.complete("build", Completed(1), lease=lease)
        with refused(bench, holdfast.AlreadyTerminal):
            bench.open().leases.claim(BUILD, owner_id="w1")
