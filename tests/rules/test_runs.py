"""Rules of runs that the contract's cases pass by."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

import holdfast
from holdfast.events import EventType, Pointer, TerminalRule
from holdfast.leases import Lease, OnProcess, OnSession, Resource, Token
from holdfast.processes import Abandoned, External, Run
from holdfast.rules import processes, runs
from holdfast.triggers import Fixed, SubscriptionDraft, registration_for


@pytest.fixture
def store() -> Iterator[holdfast.BlockingStore]:
    with holdfast.open_blocking("memory:") as store:
        yield store


def lease_on(resource: Resource) -> Lease:
    return Lease(resource, "w1", Token("0" * 32), 1, 0, 1)


def test_a_declared_event_can_abandon_its_process(store: holdfast.BlockingStore) -> None:
    rule = TerminalRule("abandoned", Pointer("/why"))
    registration = holdfast.ProcessRegistration("build", External(), event_types=[EventType("gone", terminal=rule)])
    store.processes.register(registration)
    store.events.append("build", "gone", {"why": {"host": "h1"}}, replay_key="gone")
    process = store.processes.get("build")
    assert process is not None
    assert process.status == "abandoned"
    assert isinstance(process.outcome, Abandoned)
    assert process.outcome.evidence == {"host": "h1"}


def test_a_run_is_suspended_by_the_lease_of_a_process_that_exists(store: holdfast.BlockingStore) -> None:
    with pytest.raises(holdfast.InvalidRequest) as info:
        store.processes.suspend(lease_on(OnSession("chat")), seen=0, due_at_ms=1)
    assert info.value.field == "lease.resource"
    with pytest.raises(holdfast.UnknownProcess):
        store.processes.suspend(lease_on(OnProcess("absent")), seen=0, due_at_ms=1)


def test_a_trigger_adds_its_values_to_the_arguments_of_a_run(store: holdfast.BlockingStore) -> None:
    draft = SubscriptionDraft(
        source_type="cron",
        source_key="daily",
        target=Run("report", args={"for": "ada"}),
        input_template={"day": Fixed("monday")},
    )
    store.triggers.subscribe(draft)
    [delivery] = store.triggers.emit("cron", "daily", idempotency_key="1").deliveries
    assert registration_for(delivery).input == Run("report", args={"for": "ada", "day": "monday"})


@pytest.mark.parametrize(
    ("lost_owner_id", "recoveries", "is_abandoned"),
    [
        (None, ["owner_bound", "owner_bound"], False),
        ("w1", ["rerunnable", "rerunnable"], False),
        ("w1", ["owner_bound", "rerunnable"], True),
        ("w1", ["rerunnable", "owner_bound"], True),
        ("w1", ["rerunnable", "external"], True),
    ],
)
def test_a_run_that_lost_a_holder_is_abandoned_unless_run_and_handler_allow_another_call(
    lost_owner_id: str | None, recoveries: list[str], is_abandoned: bool
) -> None:
    assert runs.must_abandon(lost_owner_id, *recoveries) is is_abandoned


@pytest.mark.parametrize("changes", [{"suspended": 2}, {"suspended": 1, "attempt": 1}])
def test_a_sleeping_run_with_a_claim_or_attempts_is_damage(changes: dict[str, int]) -> None:
    registration = holdfast.ProcessRegistration("r", Run("report"))
    row = processes.new_process(processes.check_registration(registration, holdfast.Limits()), now_ms=1)
    assert runs.is_sound(row)
    assert not runs.is_sound(msgspec.structs.replace(row, **changes))


def test_only_a_held_run_keeps_its_attempts_while_it_sleeps() -> None:
    registration = holdfast.ProcessRegistration("r", Run("report"))
    row = processes.new_process(processes.check_registration(registration, holdfast.Limits()), now_ms=1)
    held = msgspec.structs.replace(row, suspended=1, attempt=1, last_error="its code has changed")
    assert runs.is_sound(held)
    assert not runs.is_sound(msgspec.structs.replace(held, claim_fence=1))


def test_a_held_run_says_when_it_is_tried_again(store: holdfast.BlockingStore) -> None:
    with pytest.raises(holdfast.InvalidRequest, match="due_at_ms"):
        store.processes.suspend(
            lease_on(OnProcess("r")), seen=0, wait=holdfast.processes.SignalWait("go", 1), error="no"
        )
