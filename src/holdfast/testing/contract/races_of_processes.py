"""Races over processes and triggers: one registration, one end, one holder, one delivery, in any order of calls."""

# ruff: noqa: B023 - the calls of a round are over before the next round begins

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import NotGranted, RegistrationConflict, ReplayConflict
from holdfast.events import EventType, Payload, Pointer, WakeRule
from holdfast.leases import Lease, OnProcess, OnSession
from holdfast.processes import Cancelled, Completed, External, Failed
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, at_once
from holdfast.triggers import SubscriptionDraft

T = TypeVar("T")
H = TypeVar("H")
E = TypeVar("E", bound=holdfast.HoldfastError)

ROUNDS = 25 if os.environ.get("HOLDFAST_WHOLE") else 10
"""Number of runs of a race: the threads interleave differently each time."""

CALLERS = 4


def race(*calls: Callable[[], T]) -> tuple[list[T], list[holdfast.HoldfastError]]:
    """Run calls at once, and return results and refusals. Any other exception is a failure."""
    results: list[T] = []
    refusals: list[holdfast.HoldfastError] = []
    for outcome in at_once(*calls):
        if isinstance(outcome, holdfast.HoldfastError):
            refusals.append(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            results.append(outcome)
    return results, refusals


def each(callers: Sequence[H], call: Callable[[H, int], T]) -> tuple[list[T], list[holdfast.HoldfastError]]:
    """Make the same call for every caller at once, with the caller and its number."""
    return race(*(partial(call, caller, index) for index, caller in enumerate(callers)))


def only(refusals: list[holdfast.HoldfastError], kind: type[E]) -> list[E]:
    """Return the refusals, all of which must be of one kind."""
    strays = [error for error in refusals if type(error) is not kind]
    assert strays == []
    return [error for error in refusals if isinstance(error, kind)]


class ProcessRaces(Contract):
    """Several handles and several threads on one registry."""

    @pytest.fixture
    def stores(self, bench: Bench) -> list[BlockingStore]:
        """Two handles, each used by two of four callers."""
        first, second = bench.open(), bench.open()
        return [first, second, first, second]

    # Processes.

    def test_one_process_registered_several_times_at_once_is_one_process(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            registration = holdfast.ProcessRegistration(f"job-{number}", External({"n": number}))
            results, refusals = each(stores, lambda store, _: store.processes.register(registration))
            assert refusals == []
            assert len({str(process) for process in results}) == 1
            results, refusals = each(
                stores,
                lambda store, index: store.processes.register(
                    holdfast.ProcessRegistration(f"other-{number}", External(index))
                ),
            )
            assert len(results) == 1
            assert len(only(refusals, RegistrationConflict)) == CALLERS - 1

    def test_one_run_retried_several_times_at_once_is_one_new_run(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            run_id, child_id = f"run-{number}", f"run-{number}/child:1"
            for id in (run_id, child_id):
                stores[0].processes.start("research", id=id)
                stores[0].events.append(id, "step", {"name": "search", "value": 1}, replay_key="step:search")
            started = {"name": f"~started:{child_id}", "value": child_id}
            stores[0].events.append(run_id, "step", started, replay_key="step:started")
            for id in (run_id, child_id):
                stores[0].processes.complete(id, Failed("no answer"))
            ids = (run_id, child_id)
            found, refusals = each(stores, lambda store, index: store.processes.retry(ids[index % 2]))
            assert refusals == []
            assert sorted({one.id for one in found}) == sorted(f"{id}~2" for id in ids)
            assert sum(one.created for one in found if one.id == f"{run_id}~2") == 1
            for id in ids:
                assert len(stores[0].events.after(f"{id}~2").items) == (3 if id == run_id else 2)

    def test_events_appended_at_once_have_no_gaps_and_a_replay_key_is_used_once(
        self, stores: list[BlockingStore]
    ) -> None:
        wake = WakeRule(input=Payload(), dedupe=Pointer("/round"))
        stores[0].processes.register(
            holdfast.ProcessRegistration(
                "job",
                External(),
                event_types=[EventType("news", wake=wake), EventType("once")],
                wake_target=holdfast.Scope("chat"),
            )
        )
        for number in range(ROUNDS):
            found, refusals = each(
                stores, lambda store, index: store.events.append("job", "news", {"round": number, "by": index})
            )
            first = number * (CALLERS + 1) + 1
            assert refusals == []
            assert sorted(one.event.sequence for one in found) == [*range(first, first + CALLERS)]
            assert len({one.batch_id for one in found}) == 1
            once, refusals = each(
                stores, lambda store, _: store.events.append("job", "once", number, replay_key=f"{number}")
            )
            assert refusals == []
            assert {one.event.sequence for one in once} == {first + CALLERS}
            assert sorted(one.replayed for one in once) == [False, True, True, True]
        assert stores[0].maintenance.stats().pending_batches == ROUNDS

    def test_a_process_ends_once_by_any_caller(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            name = f"job-{number}"
            stores[0].processes.register(holdfast.ProcessRegistration(name, External()))
            outcomes: list[Completed | Failed | Cancelled] = [
                Completed(1), Completed(2), Failed("no"), Cancelled("stop"),
            ]  # fmt: skip
            results, refusals = each(stores, lambda store, index: store.processes.complete(name, outcomes[index]))
            assert len(results) == 1
            assert len(refusals) == CALLERS - 1
            assert all(isinstance(one, ReplayConflict | holdfast.AlreadyTerminal) for one in refusals)
            stored = stores[1].processes.get(name)
            assert stored is not None
            assert stored.outcome == results[0].outcome
            assert stored.event_count == 1

    @pytest.mark.parametrize("kind", ["session", "process"])
    def test_a_lease_has_one_winner_and_the_others_learn_its_name(self, stores: list[BlockingStore], kind: str) -> None:
        for number in range(ROUNDS):
            name = f"{kind}-{number}"
            stores[0].processes.register(holdfast.ProcessRegistration(name, External()))
            resource = OnSession(name) if kind == "session" else OnProcess(name)
            results, refusals = each(stores, lambda store, index: store.leases.claim(resource, owner_id=f"w{index}"))
            (lease,) = results
            assert lease.fence == 1
            held = only(refusals, holdfast.LeaseHeld)
            assert {(one.owner, one.expires_at_ms) for one in held} == {(lease.owner_id, lease.expires_at_ms)}
            assert len(held) == CALLERS - 1

    def test_a_process_taken_over_after_expiry_is_ended_by_one_holder_only(
        self, stores: list[BlockingStore], clock: ManualClock
    ) -> None:
        first, second, *_ = stores
        for number in range(ROUNDS):
            name = f"job-{number}"
            first.processes.register(holdfast.ProcessRegistration(name, External()))
            held = first.leases.claim(OnProcess(name), owner_id="w1", ttl_ms=1_000)

            def take_over(name: str = name) -> Lease:
                clock.advance(1_000)
                return second.leases.claim(OnProcess(name), owner_id="w2", ttl_ms=1_000)

            calls: list[Callable[[], Any]] = [
                take_over,
                lambda: first.processes.complete(name, Completed("w1"), lease=held),
            ]
            results, refusals = race(*calls)
            (winner,) = results
            (refusal,) = refusals
            if isinstance(winner, Lease):
                assert type(refusal) is holdfast.LeaseLost
                assert winner.fence > held.fence
                second.processes.complete(name, Completed("w2"), lease=winner)
            else:
                assert type(refusal) is holdfast.AlreadyTerminal
            stored = first.processes.get(name)
            assert stored is not None
            assert stored.outcome == Completed("w2" if isinstance(winner, Lease) else "w1")

    def test_a_handle_moved_to_two_places_at_once_arrives_at_one(self, stores: list[BlockingStore]) -> None:
        stores[0].processes.register(holdfast.ProcessRegistration("job", External()))
        for _ in range(ROUNDS):
            stores[0].grants.grant(holdfast.Scope("chat"), "job")
            results, refusals = each(
                stores,
                lambda store, index: store.grants.transfer(
                    holdfast.Scope("chat"), holdfast.Scope(f"other-{index}"), ["job"]
                ),
            )
            assert len(results) == 1
            assert len(only(refusals, NotGranted)) == CALLERS - 1
            (grant,) = stores[0].grants.of_process("job")
            assert grant.scope == results[0][0].scope
            assert stores[0].grants.revoke(grant.scope, "job")

    # Triggers.

    def test_one_occurrence_sent_several_times_at_once_is_delivered_once(self, stores: list[BlockingStore]) -> None:
        drafts = [
            SubscriptionDraft(source_type="cron", source_key="daily", key=key, target=External())
            for key in ("one", "two")
        ]
        for draft in drafts:
            found, refusals = each(stores, lambda store, _: store.triggers.subscribe(draft))
            assert refusals == []
            assert len({one.subscription_id for one in found}) == 1
        for number in range(ROUNDS):
            day = f"day-{number}"
            emitted, refusals = each(stores, lambda store, _: store.triggers.emit("cron", "daily", idempotency_key=day))
            assert refusals == []
            assert len({one.occurrence.occurrence_id for one in emitted}) == 1
            assert sorted(one.replayed for one in emitted) == [False, True, True, True]
            assert sorted(len(one.deliveries) for one in emitted) == [0, 0, 0, 2]
            occurrence = stores[0].triggers.record("cron", "daily", idempotency_key=f"late-{number}")
            reserved, refusals = each(stores, lambda store, _: store.triggers.reserve(occurrence.occurrence_id))
            assert refusals == []
            assert sorted(len(one) for one in reserved) == [0, 0, 0, 2]
            recorded, refusals = each(
                stores, lambda store, _: store.triggers.record("cron", "hourly", idempotency_key=day)
            )
            assert refusals == []
            assert len({str(one) for one in recorded}) == 1
        assert stores[0].maintenance.stats().occurrences == 3 * ROUNDS
