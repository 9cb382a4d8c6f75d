"""A server function decides about an event, or the end of a process, as the rule does.

`HOLDFAST_SEED` replays a run, `HOLDFAST_SITUATIONS` makes it longer.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from tests.backends.postgres.twins import OTHER_TOKEN, SITUATIONS, Twins

import holdfast
from holdfast.events import Const, EventType, Payload, TerminalRule, WakeRule
from holdfast.leases import Lease, OnProcess, Token
from holdfast.processes import Completed, External, Failed, SignalWait
from holdfast.store import Store

TTL_MS = 10_000
PASTS = ("running",) * 7 + ("ended", "ended", "never")
TYPES = (
    EventType("progress"),
    EventType("afterword", after_terminal=True),
    EventType("news", wake=WakeRule(Payload())),
    EventType("once", wake=WakeRule(Payload(), dedupe=Const("once"))),
    EventType("never mind", wake=WakeRule(Payload(), when=Const(False))),
    EventType("done", terminal=TerminalRule("completed")),
    EventType("broken", terminal=TerminalRule("failed", Const("why"))),
)
UNCHANGED = ("none", "lives", "never made", "deleted")
"""Targets of which the process says now what it said when it was last seen."""
CHANGED = ("deleted later", "made anew", "forgotten later")
TARGETS = (*UNCHANGED, "none", "lives", "lives", *CHANGED)


class DrawnProcess:
    """A process with a past."""

    def __init__(self, twins: Twins, rng: random.Random, number: int) -> None:
        self.twins, self.rng, self.name = twins, rng, f"p{number}"
        self.target, self.past = twins.deal(rng, TARGETS), twins.deal(rng, PASTS)
        self.session_id = f"s{number}"
        self.history = [self.past, f"target {self.target}"]
        twins.align()
        if self.past != "never":
            self._begin()

    @property
    def is_plain(self) -> bool:
        """Report whether it is running and unchanged since it was last seen."""
        return self.past == "running" and self.target in UNCHANGED

    def __repr__(self) -> str:
        return f"{self.name}: {'; '.join(map(str, self.history))}"

    def _begin(self) -> None:
        do, rng = self.twins.do, self.rng
        if self.target not in ("none", "never made"):
            self.twins.loop.drive(_create(self.twins.stores, self.session_id))
        if self.target == "deleted":
            do(lambda store: store.sessions.delete(self.session_id))
        scope = None if self.target == "none" else holdfast.Scope(self.session_id, rng.choice((None, "frame")))
        wanted = holdfast.ProcessRegistration(self.name, External(), event_types=TYPES, wake_target=scope)
        do(lambda store: store.processes.register(wanted))
        for index in range(rng.randint(0, 2)):
            kind = rng.choice(("progress", "once"))
            do(lambda store, kind=kind, index=index: store.events.append(self.name, kind, 1, replay_key=f"k{index}"))
        if rng.random() < 0.3:
            self.history.append("waiting")
            do(lambda store: store.processes.set_wait(self.name, SignalWait("go", 1)))
        if self.past == "ended":
            do(lambda store: store.processes.complete(self.name, Completed(1)))
        if self.target in ("deleted later", "made anew"):
            do(lambda store: store.sessions.delete(self.session_id))
        if self.target == "made anew":
            self.twins.loop.drive(_create(self.twins.stores, self.session_id))
        if self.target == "forgotten later":
            do(lambda store: store.processes.forget_session(self.session_id))
        if rng.random() < 0.1:
            self.history.append("memory lost")
            self.twins.fast.forget()


async def _create(stores: list[Store], session_id: str) -> None:
    for store in stores:
        await store.sessions.create(session_id)


@pytest.mark.timeout(120 + SITUATIONS // 2)
def test_append_event_says_and_stores_what_the_rule_does(timed_twins: Twins) -> None:
    twins = timed_twins
    rng = twins.generator("events")
    answers: Counter[str] = Counter()
    for number in range(twins.situations):
        process = DrawnProcess(twins, rng, number)
        kind = rng.choice(TYPES).name if rng.random() < 0.95 else "undeclared"
        key = rng.choice((None, None, "new", "new", "k0", "k1"))
        given: dict[str, Any] = {"payload": rng.choice((1, 1, 2)), "replay_key": key}
        if rng.random() < 0.2:
            given["wake_target"] = holdfast.Scope(rng.choice((f"s{number}", "elsewhere")))
        process.history += [kind, given]
        outcome, acted = twins.both(
            lambda store, process=process, kind=kind, given=given: store.events.append(process.name, kind, **given),
            process,
        )
        answers[type_of(outcome.error)] += 1
        answers["acted"] += acted
        if process.is_plain and kind in ("progress", "never mind", "done", "broken") and key == "new":
            assert acted, f"the function left a plain event to the transaction: {process}"
        if process.is_plain and kind == "news" and key == "new" and "wake_target" not in given:
            left = f"the function left a plain wake to the transaction: {process}"
            assert acted or process.target == "never made", left
        if number % 25 == 24:
            twins.compare_rows(lambda process=process: f"up to {process}")
    twins.check_drawn(answers, {"AlreadyTerminal", "ReplayConflict", "UnknownProcess", "InvalidRequest"})
    twins.check_acted(answers)
    for store in twins.stores:
        assert twins.loop.drive(store.maintenance.verify()).findings == ()


@pytest.mark.timeout(120 + SITUATIONS // 2)
def test_a_completion_in_one_call_says_and_stores_what_the_rule_does(timed_twins: Twins) -> None:
    twins = timed_twins
    rng = twins.generator("completions")
    answers: Counter[str] = Counter()
    for number in range(twins.situations):
        process = DrawnProcess(twins, rng, number)
        held = twins.deal(rng, ("none", "none", "none", "held", "held", "renewed", *ODD_LEASES))
        held = held if process.past == "running" else "none"
        lease = None if held == "none" else lease_of(twins, process.name, held)
        outcome_given = rng.choice((Completed(1), Completed(2), Failed("no")))
        process.history += [held, outcome_given]
        forgot = "memory lost" in process.history and held != "none"
        outcome, acted = twins.both(
            lambda store, process=process, given=outcome_given, lease=lease: store.processes.complete(
                process.name, given, lease=lease
            ),
            process,
        )
        answers[type_of(outcome.error)] += 1
        answers["acted"] += acted
        if process.past == "running" and held in ("none", "held", "renewed"):
            assert outcome.error is None, process
            left = f"the function left a plain end to the transaction: {process}"
            assert acted or not process.is_plain or forgot, left
        if number % 25 == 24:
            twins.compare_rows(lambda process=process: f"up to {process}")
    twins.check_drawn(answers, {"LeaseLost", "UnknownProcess", "ReplayConflict", "AlreadyTerminal"})
    twins.check_acted(answers)


ODD_LEASES = ("token", "fence", "released", "expired", "taken over")


def lease_of(twins: Twins, process_id: str, held: str) -> Lease:
    on = OnProcess(process_id)
    lease = twins.do(lambda store: store.leases.claim(on, owner_id="w1", ttl_ms=TTL_MS))
    match held:
        case "token":
            return msgspec.structs.replace(lease, token=Token(OTHER_TOKEN))
        case "fence":
            return msgspec.structs.replace(lease, fence=lease.fence + 1)
        case "released":
            twins.do(lambda store: store.leases.release(lease))
        case "renewed":
            return twins.do(lambda store: store.leases.renew(lease, ttl_ms=2 * TTL_MS))
        case "expired":
            twins.clock.advance(TTL_MS)
        case "taken over":
            twins.clock.advance(TTL_MS)
            twins.do(lambda store: store.leases.claim(on, owner_id="w2"))
        case _:
            pass
    return lease


def type_of(error: BaseException | None) -> str:
    return "accepted" if error is None else type(error).__name__
