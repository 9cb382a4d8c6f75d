"""One damaged row of the queue or of the runs is reported, and keeps no other back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.testing.clock import ManualClock

TTL_MS = 60_000

PAYLOADS = "UPDATE {schema}batches SET payloads = {bytes} WHERE batch_id = '{id}'"
ATTEMPTS = "UPDATE {schema}batches SET attempts = -5 WHERE batch_id = '{id}'"
BODY = "UPDATE {schema}processes SET body = {bytes} WHERE process_id = '{id}'"
COUNTER = "UPDATE {schema}processes SET attempt = -5 WHERE process_id = '{id}'"
LEASE = "UPDATE {schema}leases SET fence = -5, expires_at_ms = 0 WHERE resource = '{id}'"
# Numbers that cannot be counted up.
VAST_ATTEMPTS = ATTEMPTS.replace("-5", str(2**63 - 1))
VAST_FENCE = "UPDATE {schema}batches SET claim_fence = 9223372036854775807 WHERE batch_id = '{id}'"
VAST_COUNTER = COUNTER.replace("-5", str(2**63 - 1))
VAST_LEASE = LEASE.replace("-5", str(2**63 - 1))

# The ready row of a session, by the id of its batch. PostgreSQL does not read all of it.
READY = "UPDATE {{schema}}ready SET {} WHERE session_key = (SELECT session_key FROM {{schema}}batches {})"
OF_BATCH = "WHERE batch_id = '{id}'"
DAMAGED_READY = [
    READY.format(f"{column} = {number}", OF_BATCH)
    for column in ("family", "served", "claimed_upto", "due_at_ms", "paused")
    for number in (-5, 2**62)
    if (column, number) != ("due_at_ms", 2**62)  # a possible time
]
DELETED = "UPDATE {schema}sessions SET deleted_at_ms = 5 WHERE session_id = 'bad'"
NOT_TEXT = "UPDATE sessions SET session_id = CAST(x'ff' AS TEXT) WHERE session_id = 'bad'"
OWNER_NOT_TEXT = "UPDATE processes SET lost_owner = CAST(x'ff' AS TEXT) WHERE process_id = '{id}'"
NO_VERSION = "UPDATE {schema}processes SET run_version = NULL WHERE process_id = '{id}'"

Damage = Callable[[str, str], None]


class World:
    """A store with a clock of its own, and a way to damage its rows."""

    def __init__(self, url: str, damage: Damage) -> None:
        self.clock = ManualClock()
        self.store = holdfast.open_blocking(url, clock=self.clock)
        self.damage = damage

    def enqueue(self, session_id: str, *, priority: int = 0, payload: Any = 1) -> str:
        draft = holdfast.WorkDraft(session_id=session_id, payloads=[payload], priority=priority, kind="job")
        return self.store.queue.enqueue(draft).batch_id

    def claim(self) -> str:
        """Claim the next work. Return its session, and `-` for damage."""
        try:
            claim = self.store.queue.claim_next(owner_id="worker", ttl_ms=TTL_MS)
        except holdfast.Corrupt as error:
            return "-" if error.table in ("batches", "ready") else error.table
        return "" if claim is None else claim.session_id

    def claim_run(self) -> str:
        """Claim the next run. Return its id, and `-` for damage."""
        try:
            claim = self.store.processes.claim_next(owner_id="worker", ttl_ms=TTL_MS)
        except holdfast.Corrupt as error:
            return "-" if "bad" in error.key else error.key
        return "" if claim is None else claim.process.id


@contextmanager
def in_file(folder: Path) -> Iterator[World]:
    url = str(folder / "agents.db")

    def damage(statement: str, id: str) -> None:
        connection = apsw.Connection(url)
        connection.execute(statement.format(schema="", bytes="x'00'", id=id))
        connection.close()

    made = World(url, damage)
    try:
        yield made
    finally:
        made.store.close()


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "sqlite":
        with in_file(tmp_path) as made:
            yield made
        return
    database = request.getfixturevalue("postgres_database")

    def damage(statement: str, id: str) -> None:
        database.administrator.run(statement.format(schema="holdfast.", bytes=r"'\x00'", id=id))

    served = World(request.getfixturevalue("clean_postgres_url"), damage)
    yield served
    served.store.close()


@pytest.mark.parametrize("statement", [PAYLOADS, ATTEMPTS, VAST_ATTEMPTS, VAST_FENCE])
def test_damaged_work_keeps_no_other_session_back(world: World, statement: str) -> None:
    bad = world.enqueue("bad", priority=5)
    world.enqueue("one")
    world.enqueue("two")
    world.damage(statement, bad)
    assert [world.claim() for _ in range(4)] == ["-", "one", "two", ""]
    # It is reported again when a claim of it would have expired.
    world.enqueue("three")
    world.clock.advance(TTL_MS)
    assert sorted(world.claim() for _ in range(4)) == ["-", "one", "three", "two"]


@pytest.mark.parametrize("statement", [*DAMAGED_READY, DELETED])
def test_a_damaged_session_keeps_no_other_session_back(world: World, statement: str) -> None:
    bad = world.enqueue("bad", priority=5)
    world.enqueue("one")
    world.enqueue("two")
    world.damage(statement, bad)
    findings = world.store.maintenance.verify().findings
    assert {finding.table for finding in findings} & {"ready", "sessions"}
    assert {"one", "two"} <= {world.claim() for _ in range(4)} <= {"one", "two", "bad", "-", ""}
    world.clock.advance(TTL_MS)
    assert {"one", "two"} <= {world.claim() for _ in range(4)} <= {"one", "two", "bad", "-", ""}
    with pytest.raises(holdfast.WaitTimeout):
        world.store.queue.wait_next(timeout_ms=1)


def test_a_name_that_is_not_text_keeps_no_other_back(tmp_path: Path) -> None:
    with in_file(tmp_path) as world:
        world.enqueue("bad", priority=5)
        world.enqueue("one")
        for number, name in enumerate(["bad", "one"]):
            world.store.processes.start("research", id=name, due_at_ms=number)
        world.damage(NOT_TEXT, "")
        world.damage(OWNER_NOT_TEXT, "bad")
        assert [world.claim() for _ in range(3)] == ["-", "one", ""]
        assert [world.claim_run() for _ in range(3)] == ["-", "one", ""]


def test_a_run_without_a_version_keeps_no_other_back(world: World) -> None:
    for number, name in enumerate(["bad", "one"]):
        world.store.processes.start("research", id=name, due_at_ms=number)
    world.damage(NO_VERSION, "bad")
    assert [world.claim_run() for _ in range(2)] == ["one", ""]
    assert "processes" in {finding.table for finding in world.store.maintenance.verify().findings}


def test_the_claim_of_a_waiter_for_work_raises_the_damage(world: World) -> None:
    bad = world.enqueue("bad")
    world.damage(PAYLOADS, bad)
    world.store.queue.wait_next(timeout_ms=10_000)
    assert world.claim() == "-"
    with pytest.raises(holdfast.WaitTimeout):
        world.store.queue.wait_next(timeout_ms=1)


def test_work_that_becomes_due_damaged_keeps_no_other_back(world: World) -> None:
    draft = holdfast.WorkDraft(session_id="bad", payloads=[1], available_at_ms=world.clock.now_ms() + 10)
    bad = world.store.queue.enqueue(draft).batch_id
    world.damage(ATTEMPTS, bad)
    world.clock.advance(20)
    world.enqueue("one")
    assert sorted(world.claim() for _ in range(3)) == ["", "-", "one"]


def test_a_completion_counts_although_the_next_work_is_damaged(world: World) -> None:
    world.enqueue("one")
    claim = world.store.queue.claim_next(owner_id="worker", ttl_ms=TTL_MS)
    assert claim is not None
    bad = world.enqueue("bad")
    world.damage(PAYLOADS, bad)
    world.enqueue("two")
    receipt, following = world.store.queue.complete_and_claim_next(claim, owner_id="worker", ttl_ms=TTL_MS)
    assert world.store.queue.complete(claim) == receipt
    assert following is not None
    assert following.session_id == "two"


@pytest.mark.parametrize("statement", [BODY, COUNTER, VAST_COUNTER])
def test_a_damaged_run_keeps_no_other_back(world: World, statement: str) -> None:
    for number, name in enumerate(["bad", "one", "two"]):
        world.store.processes.start("research", id=name, due_at_ms=number)
    world.damage(statement, "bad")
    world.store.processes.wait_next(timeout_ms=10_000)
    assert [world.claim_run() for _ in range(4)] == ["-", "one", "two", ""]
    world.clock.advance(TTL_MS)
    assert sorted(world.claim_run() for _ in range(3)) == ["-", "one", "two"]


@pytest.mark.parametrize("statement", [BODY, COUNTER, VAST_COUNTER])
def test_the_end_of_a_run_counts_although_the_next_run_is_damaged(world: World, statement: str) -> None:
    for number, name in enumerate(["one", "bad", "two"]):
        world.store.processes.start("research", id=name, due_at_ms=number)
    claim = world.store.processes.claim_next(owner_id="worker", ttl_ms=TTL_MS)
    assert claim is not None
    world.damage(statement, "bad")
    ended, following = world.store.processes.complete_and_claim_next(
        claim.lease, holdfast.processes.Completed(), owner_id="worker", ttl_ms=TTL_MS
    )
    assert world.store.processes.get("one") == ended
    assert ended.status == "completed"
    assert following is not None
    assert following.process.id == "two"


@pytest.mark.parametrize("statement", [LEASE, VAST_LEASE])
def test_a_run_with_a_damaged_lease_keeps_no_other_back(world: World, statement: str) -> None:
    world.store.processes.start("research", id="bad")
    assert world.claim_run() == "bad"
    world.clock.advance(TTL_MS)
    world.store.processes.start("research", id="one")
    world.damage(statement, "bad")
    assert sorted(world.claim_run() for _ in range(3)) == ["", "-", "one"]


def test_a_damaged_run_is_not_reported_before_it_is_due(world: World) -> None:
    world.store.processes.start("research", id="bad", due_at_ms=world.clock.now_ms() + 10)
    world.damage(COUNTER, "bad")
    assert world.claim_run() == ""
    world.clock.advance(10)
    assert world.claim_run() == "-"


def test_a_worker_passes_over_damaged_work_and_runs(tmp_path: Path) -> None:
    with in_file(tmp_path) as world:
        bad = world.enqueue("bad", priority=5)
        world.enqueue("worse", priority=5)
        world.enqueue("one", payload="work")
        world.store.processes.start("research", ["bad"], id="bad", due_at_ms=0)
        world.store.processes.start("research", ["run"], id="one", due_at_ms=1)
        world.damage(PAYLOADS, bad)
        world.damage(NOT_TEXT.replace("'bad'", "'worse'"), "")
        world.damage(BODY, "bad")
    done: list[str] = []
    worker = holdfast.Worker(str(tmp_path / "agents.db"))
    worker.job("job")(lambda job: done.append(job.payload))
    worker.process("research")(lambda run, args: done.append(args))
    worker.run(until_idle=True)
    assert sorted(map(str, done)) == ["['run']", "work"]
