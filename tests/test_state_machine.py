"""Memory, SQLite and PostgreSQL behave alike: the same random calls give equal answers and equal rows.

`HOLDFAST_SEED` replays a failed run; `HOLDFAST_STEPS` makes it longer, and `HOLDFAST_STEPS_OF_THREE` the slower run
with PostgreSQL. `HOLDFAST_WHOLE=1` makes both about ten times as long.
"""

from __future__ import annotations

import inspect
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.state_machine.lives import Difference, live_often
from tests.state_machine.planted import PLANTED, plant, plant_a_trace
from tests.state_machine.sides import MakeSide, Side, postgres_side

import holdfast
from holdfast.testing.clock import ManualClock

WHOLE = bool(os.environ.get("HOLDFAST_WHOLE"))
STEPS = int(os.environ.get("HOLDFAST_STEPS", "20000" if WHOLE else "2400"))
SEED = os.environ.get("HOLDFAST_SEED") or f"{random.SystemRandom().getrandbits(48):x}"
STEPS_OF_THREE = int(os.environ.get("HOLDFAST_STEPS_OF_THREE", "5000" if WHOLE else "480"))
PARTS = 4
PLANTED_STEPS = 25_000
REACHING_LIVES = 8
"""Lives in which everything must be reached that can be; most runs need two or three."""
"""More than enough: the machine finds most planted bugs within 1,000."""

FACETS = ("sessions", "queue", "attachments", "processes", "events", "grants", "leases", "triggers", "artifacts")
MOVING = {
    "artifacts.list",
    "processes.restore",
    "queue.restore",
    "triggers.deliveries",
    "triggers.occurrences",
    "triggers.restore",
    "triggers.restore_occurrence",
}
"""Moves need a second store to move from: the contract's cases on moves compare the backends."""

OF_OTHER_CALLS = {"append", "enqueue", "messages"}
"""Made of a load and a commit, or another name of `queue.enqueue`: the machine reaches those."""

RUNS = {
    f"processes.{name}"
    for name in ("claim_next", "complete_and_claim_next", "retry_later", "start", "suspend", "wait_next")
}
"""Runs: the contract's cases, races and the twins of statement and rule compare the backends."""

SCHEDULES = {"triggers.wait_undelivered"}
"""Schedules and deliveries of runs: the contract's cases and races compare the backends."""

REACHED = {"follow", "interrupt"}
"""Turns of workers that are watched or stopped: the contract's cases compare the backends."""

REMEDIES = {
    *(f"maintenance.explain_{name}" for name in ("process", "schedule", "session")),
    *("leases.revoke", "queue.release", "triggers.redeliver", "triggers.failed", "processes.retry"),
}
"""Explanations and remedies: the contract's cases compare the backends."""

KEYED = {"artifacts.get_many", "artifacts.delete_many"}
"""Artifacts by prefix: the contract's cases compare the backends."""

BESIDE = MOVING | OF_OTHER_CALLS | RUNS | SCHEDULES | REACHED | REMEDIES | KEYED

REFUSALS = {
    "AlreadyTerminal",
    "ClaimLost",
    "HeadConflict",
    "InvalidRequest",
    "LeaseHeld",
    "LeaseLost",
    "NodeConflict",
    "NotGranted",
    "OccurrenceConflict",
    "RegistrationConflict",
    "ReplayConflict",
    "SessionBindingConflict",
    "SessionDeleted",
    "SessionExists",
    "SourceKeyConflict",
    "SubscriptionConflict",
    "TurnConflict",
    "UnknownBatch",
    "UnknownDelivery",
    "UnknownOccurrence",
    "UnknownProcess",
    "UnknownRef",
    "UnknownSession",
    "UnknownWake",
    "WaitTimeout",
}


def methods_of(facet: object, prefix: str) -> set[str]:
    """Return the methods that wait for a database; the others cannot differ."""
    waiting = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return {
        f"{prefix}{name}"
        for name, method in inspect.getmembers(type(facet), lambda found: any(test(found) for test in waiting))
        if not name.startswith("_")
    }


def every_method() -> set[str]:
    store = holdfast.open_blocking("memory:")._store
    session = store.sessions.unbound()
    found = methods_of(session, "") | methods_of(session.attachments, "attachments.")
    for name in (*FACETS, "maintenance"):
        found |= methods_of(getattr(store, name), f"{name}.")
    return found


@pytest.mark.timeout(120 + STEPS // 50)
@pytest.mark.parametrize("part", range(PARTS))
def test_both_backends_live_the_same_life(part: int, tmp_path: Path) -> None:
    replay = f"HOLDFAST_SEED={SEED} HOLDFAST_STEPS={STEPS}"
    sys.stdout.write(f"{replay}\n")
    try:
        done, answered = live_often(f"{SEED}-{part}", STEPS // PARTS, tmp_path)
    except Difference as difference:
        pytest.fail(f"{replay} replays this:\n{difference}", pytrace=False)
    assert done == STEPS // PARTS
    # A machine whose every call is refused would find nothing.
    accepted = sum(count for answer, count in answered.items() if answer.endswith(": value"))
    assert accepted > done // 3, answered


@pytest.fixture
def postgres(postgres_database: Any) -> MakeSide:
    """Return a third side, on a database that is emptied for each life."""

    def make(clock: ManualClock) -> Side:
        postgres_database.clean()
        return postgres_side(clock, postgres_database.url)

    return make


@pytest.mark.timeout(300 + STEPS_OF_THREE // 10)
@pytest.mark.parametrize("part", range(PARTS))
def test_all_three_backends_live_the_same_life(part: int, tmp_path: Path, postgres: MakeSide) -> None:
    replay = f"HOLDFAST_SEED={SEED} HOLDFAST_STEPS_OF_THREE={STEPS_OF_THREE}"
    sys.stdout.write(f"{replay}\n")
    try:
        done, _ = live_often(f"{SEED}-{part} of three", STEPS_OF_THREE // PARTS, tmp_path, postgres)
    except Difference as difference:
        pytest.fail(f"{replay} replays this:\n{difference}", pytrace=False)
    assert done == STEPS_OF_THREE // PARTS


def test_the_machine_reaches_every_method_and_most_refusals(tmp_path: Path) -> None:
    methods: set[str] = set()
    refusals: set[str] = set()
    for seed in range(REACHING_LIVES):
        (tmp_path / str(seed)).mkdir()
        _, answered = live_often(f"reach {seed}", 2_500, tmp_path / str(seed))
        methods |= {answer.partition(": ")[0] for answer in answered if answer.endswith(": value")}
        refusals |= {answer.partition(": ")[2] for answer in answered}
        if every_method() - methods == BESIDE and refusals >= REFUSALS:
            return
    assert every_method() - methods == BESIDE
    assert REFUSALS - refusals == set()


def live_thrice(folder: Path) -> None:
    """Run lives with three seeds: one alone may never reach the calls that a bug changes."""
    for seed in ("planted-4", "planted", "planted-2"):
        (folder / seed).mkdir()
        live_often(seed, PLANTED_STEPS, folder / seed, shorten=False)


@pytest.mark.parametrize("name", PLANTED, ids=[wrong.__name__ for wrong in PLANTED.values()])
def test_the_machine_notices_a_planted_bug(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant(monkeypatch, name)
    with pytest.raises(Difference):
        live_thrice(tmp_path)


def test_the_machine_notices_that_a_refused_call_left_a_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant_a_trace(monkeypatch)
    with pytest.raises(Difference):
        live_often("planted", PLANTED_STEPS, tmp_path, shorten=False)


def test_a_difference_is_reported_with_the_few_steps_that_show_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch, "_add_usage")
    with pytest.raises(Difference) as info:
        live_often("planted", PLANTED_STEPS, tmp_path)
    story = str(info.value).partition("what happened:\n")[2].splitlines()
    # Two turns that count tokens, and the steps that they depend on, out of a life of 400 steps.
    assert 2 <= len(story) <= 20, info.value
    assert sum(".commit(Commit(" in line for line in story) >= 2
