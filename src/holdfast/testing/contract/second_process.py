"""A second process: it races, wakes and is woken like any caller, and its death harms no acknowledged write.

These cases use the system clock, because no other clock is shared by processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.leases import OnProcess, OnSession
from holdfast.processes import Completed, External
from holdfast.sessions import FullGraph
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background
from holdfast.triggers import SubscriptionDraft

ROUNDS = 20
CHILDREN = 3
WAKE_S = 2.0
"""A waiter wakes within this time after another process's change is durable."""

PRELUDE = """
import json, sys, time
import holdfast

def send(value):
    sys.stdout.write(json.dumps(value) + "\\n")
    sys.stdout.flush()

def receive():
    line = sys.stdin.readline()
    if not line:
        raise SystemExit
    return json.loads(line)

def attempt(call):
    try:
        return call()
    except holdfast.HoldfastError as error:
        return [type(error).__name__, getattr(error, "actual", None) or getattr(error, "owner", None)]

url, me = sys.argv[1], sys.argv[2]
"""
OPEN = PRELUDE + "store = holdfast.open_blocking(url)\nsend('ready')\n"

COMMIT_ON_REVISION = """
handle = store.sessions.handle("chat")
while True:
    revision = receive()
    send(attempt(lambda: handle.commit(holdfast.Commit(expected_revision=revision, config=me)).revision))
"""

COMMIT_AT_ONCE = """
handle = store.sessions.handle("chat")
receive()
send([handle.commit(holdfast.Commit(usage=[holdfast.Usage("turn", "m", 1)])).revision for _ in range(25)])
"""

SAME_FACTS = """
while True:
    n = receive()
    draft = holdfast.WorkDraft(session_id="chat", payloads=[n], source_key=f"key-{n}")
    turn = holdfast.Commit(turn_id=f"turn-{n}", checkpoint=holdfast.Checkpoint(turn_state=n), enqueues=[draft])
    receipt = store.sessions.handle("chat").commit(turn)
    emission = store.triggers.emit("cron", "daily", idempotency_key=f"day-{n}")
    process = store.processes.register(holdfast.ProcessRegistration(f"job-{n}", holdfast.processes.External(n)))
    event = store.events.append(f"job-{n}", "process.waiting", n, replay_key="once")
    send({
        "facts": [
            receipt.revision, receipt.checkpoint_ref, store.queue.enqueue(draft).batch_id, event.event.sequence,
            emission.occurrence.occurrence_id, process.registration_hash, process.created_at_ms,
        ],
        "first": [not receipt.replayed, len(emission.deliveries), not event.replayed],
    })
"""

CLAIM_ALL = """
receive()
mine = []
while (claim := store.queue.claim("chat", owner_id=me)) is not None:
    mine += [item.payload for batch in claim.batches for item in batch.items]
    store.sessions.handle("chat").commit(holdfast.Commit(completes=[claim]))
send(mine)
"""

CLAIM_RUNS = """
receive()
mine = []
while (claim := store.processes.claim_next(owner_id=me)) is not None:
    mine.append(claim.process.id)
    store.processes.complete(claim.process.id, holdfast.processes.Completed(me), lease=claim.lease)
send(mine)
"""

COUNT_SIGNALS = """
while True:
    store.processes.wait_next(timeout_ms=20_000)
    claim = store.processes.claim_next(owner_id=me)
    log = store.events.after("run").items
    store.processes.suspend(claim.lease, seen=len(log), wait=holdfast.processes.SignalWait("go", len(log) + 1))
    send(len(log))
"""

HOLD_RUN = """
send(store.processes.claim_next(owner_id=me, ttl_ms=700).lease.fence)
receive()
"""

CLAIM_LEASE = """
while True:
    n = receive()
    send(attempt(lambda: store.leases.claim(holdfast.leases.OnSession(f"chat-{n}"), owner_id=me, ttl_ms=600_000).fence))
"""

WAIT = """
from holdfast.testing.contract.second_process import wait
while True:
    what, name = receive()
    send("waiting")
    send(wait(store, what, name))
"""

CAUSE = """
from holdfast.testing.contract.second_process import cause
while True:
    what, name = receive()
    cause(store, what, name)
    send(time.monotonic())
"""

OPEN_AT_ONCE = """
send("ready")
receive()
store = holdfast.open_blocking(url)
store.processes.register(holdfast.ProcessRegistration("job", holdfast.processes.External()))
receipt = store.sessions.handle(f"chat-{me}").commit(holdfast.Commit(expected_revision=0))
store.close()
send(receipt.revision)
"""

WRITE_FOR_EVER = """
handle = store.sessions.handle("chat")
while True:
    revision = handle.commit(
        holdfast.Commit(
            turn_id=f"{me}-{(view.revision if (view := handle.load(holdfast.sessions.ActivePath(last=1))) else 0) + 1}",
            graph=holdfast.Append([holdfast.Node(f"{me}-{view.revision if view else 0}", payload="x" * 5_000)]),
            checkpoint=holdfast.Checkpoint(turn_state={"by": me, "after": view.revision if view else 0}),
            enqueues=[holdfast.WorkDraft(payloads=[me])],
        )
    ).revision
    send(revision)
"""

HOLD = """
claim = store.queue.claim("chat", owner_id=me, ttl_ms=700)
lease = store.leases.claim(holdfast.leases.OnProcess("job"), owner_id=me, ttl_ms=700)
send([claim.fence, lease.fence])
receive()
"""

DELETE = """
receive()
send(store.sessions.delete("chat").deleted)
"""


def cause(store: BlockingStore, what: str, name: str) -> None:
    """Cause a change of this kind."""
    if what == "event":
        store.events.append(name, "process.waiting", "event")
    elif what == "work":
        store.queue.enqueue(holdfast.WorkDraft(session_id=name, payloads=[1]))
    else:
        store.processes.complete(name, Completed("end"))


def wait(store: BlockingStore, what: str, name: str) -> object:
    """Wait for that change, and return it."""
    if what == "event":
        return store.events.wait_for(name, "process.waiting", timeout_ms=20_000).payload
    if what == "work":
        store.queue.wait(name, timeout_ms=20_000)
        return "work"
    outcome = store.processes.wait(name, timeout_ms=20_000)
    return outcome.value if isinstance(outcome, Completed) else outcome


class Child:
    """A Python process that runs a script on the database, and exchanges lines of JSON."""

    def __init__(self, script: str, url: str, name: str) -> None:
        command = [sys.executable, "-c", script, url, name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603

    def send(self, value: object) -> None:
        """Send a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """Return the next line that it sends."""
        assert self._process.stdout is not None
        line = in_background(self._process.stdout.readline).result(TIMEOUT_S)
        assert line, "the second process ended early: see its traceback above"
        return json.loads(line)

    def kill(self) -> list[Any]:
        """Kill it, and return the lines that were not read yet."""
        assert self._process.stdout is not None
        self._process.kill()
        rest = [json.loads(line) for line in self._process.stdout if line.endswith("\n")]
        self._process.wait(TIMEOUT_S)
        return rest

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait(TIMEOUT_S)
        self._process.stdout.close()
        self._process.stdin.close()


class SecondProcessContract(Contract):
    """Real processes on one database."""

    @pytest.fixture
    def url(self, bench: Bench) -> str:
        """Return the URL that a second process opens."""
        if bench.url is None:
            pytest.skip("a memory store has no second process")
        return bench.url

    @pytest.fixture
    def store(self, bench: Bench, url: str) -> BlockingStore:
        """A handle of this process with the bench's clock, for cases in which time does not matter."""
        return bench.open()

    @pytest.fixture
    def timely(self, url: str) -> Iterator[BlockingStore]:
        """A handle of this process, with the system's clock."""
        with holdfast.open_blocking(url) as store:
            yield store

    @pytest.fixture
    def start(self, url: str) -> Iterator[Callable[..., list[Child]]]:
        """Return a function that starts processes on a script, and waits until each of them has opened the store."""
        with ExitStack() as ends:

            def start(script: str, count: int = CHILDREN, opening: str = OPEN) -> list[Child]:
                children = [ends.enter_context(Child(opening + script, url, f"p{index}")) for index in range(count)]
                assert [child.receive() for child in children] == ["ready"] * count
                return children

            yield start

    # Races.

    def test_of_several_processes_on_one_revision_exactly_one_wins(
        self, store: BlockingStore, start: Callable[..., list[Child]]
    ) -> None:
        children = start(COMMIT_ON_REVISION)
        handle = store.sessions.handle("chat")
        for revision in range(ROUNDS):
            for child in children:
                child.send(revision)
            try:
                mine: object = handle.commit(holdfast.Commit(expected_revision=revision, config="here")).revision
            except holdfast.HeadConflict as error:
                mine = ["HeadConflict", error.actual]
            answers = [mine, *(child.receive() for child in children)]
            assert answers.count(revision + 1) == 1
            assert answers.count(["HeadConflict", revision + 1]) == CHILDREN
            view = handle.load()
            assert view is not None
            assert view.revision == revision + 1
            assert view.config == ["here", "p0", "p1", "p2"][answers.index(revision + 1)]

    def test_commits_on_whatever_is_current_get_a_revision_each(
        self, store: BlockingStore, start: Callable[..., list[Child]]
    ) -> None:
        children = start(COMMIT_AT_ONCE)
        handle = store.sessions.handle("chat")
        for child in children:
            child.send("go")
        mine = [handle.commit(holdfast.Commit(usage=[holdfast.Usage("turn", "m", 1)])).revision for _ in range(25)]
        revisions = [*mine, *(revision for child in children for revision in child.receive())]
        assert sorted(revisions) == [*range(1, 101)]
        view = handle.load()
        assert view is not None
        assert view.ledger == (holdfast.Usage("turn", "m", input_tokens=100),)

    def test_messages_of_several_processes_at_once_are_stored_once(
        self, store: BlockingStore, start: Callable[..., list[Child]]
    ) -> None:
        store.triggers.subscribe(SubscriptionDraft(source_type="cron", source_key="daily", target=External()))
        children = start(SAME_FACTS)
        for number in range(ROUNDS):
            for child in children:
                child.send(number)
            answers = [child.receive() for child in children]
            assert answers[0]["facts"] == answers[1]["facts"] == answers[2]["facts"]
            assert answers[0]["facts"][0] == number + 1
            for column in range(3):
                assert sorted(int(answer["first"][column]) for answer in answers) == [0, 0, 1]
        stats = store.maintenance.stats()
        assert (stats.revisions, stats.pending_batches, stats.occurrences, stats.processes, stats.events) == (
            ROUNDS,
        ) * 5

    def test_no_batch_is_claimed_by_two_processes(
        self, timely: BlockingStore, start: Callable[..., list[Child]]
    ) -> None:
        total = 60
        for number in range(total):
            timely.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[number], slot="exclusive"))
        children = start(CLAIM_ALL)
        for child in children:
            child.send("go")
        claimed = [child.receive() for child in children]
        assert sorted(number for mine in claimed for number in mine) == [*range(total)]
        assert all(mine == sorted(mine) for mine in claimed)
        assert len(timely.queue.list("chat")) == 0

    def test_no_run_is_claimed_by_two_processes(self, timely: BlockingStore, start: Callable[..., list[Child]]) -> None:
        names = [f"run-{number:02}" for number in range(60)]
        for name in names:
            timely.processes.start("research", id=name)
        children = start(CLAIM_RUNS)
        for child in children:
            child.send("go")
        claimed = [child.receive() for child in children]
        assert sorted(name for mine in claimed for name in mine) == names
        assert len(timely.processes.list(status="completed", limit=100)) == 60

    def test_a_sleeping_run_is_woken_by_a_signal_of_another_process(
        self, timely: BlockingStore, start: Callable[..., list[Child]]
    ) -> None:
        timely.processes.start("research", id="run")
        [child] = start(COUNT_SIGNALS, 1)
        for number in range(ROUNDS):
            assert child.receive() == number
            timely.events.signal("run", "go")

    def test_the_run_of_a_killed_process_is_taken_over_when_its_lease_ends(
        self, timely: BlockingStore, start: Callable[..., list[Child]]
    ) -> None:
        timely.processes.start("research", id="run")
        [child] = start(HOLD_RUN, 1)
        fence = child.receive()
        child.kill()
        timely.processes.wait_next(timeout_ms=20_000)
        claim = timely.processes.claim_next(owner_id="here")
        assert claim is not None
        assert (claim.process.lost_owner_id, claim.process.attempt, claim.lease.fence) == ("p0", 2, fence + 1)

    def test_a_lease_goes_to_one_process_and_the_others_learn_its_name(
        self, timely: BlockingStore, start: Callable[..., list[Child]]
    ) -> None:
        children = start(CLAIM_LEASE)
        for number in range(ROUNDS):
            for child in children:
                child.send(number)
            answers = [child.receive() for child in children]
            holder = timely.leases.holder(OnSession(f"chat-{number}"))
            assert holder is not None
            assert answers.count(1) == 1
            assert holder.owner_id == f"p{answers.index(1)}"
            assert answers.count(["LeaseHeld", holder.owner_id]) == CHILDREN - 1

    def test_a_session_that_another_process_deleted_is_dead_here(
        self, store: BlockingStore, start: Callable[..., list[Child]]
    ) -> None:
        handle = store.sessions.create("chat")
        handle.commit(holdfast.Commit())
        (child,) = start(DELETE, 1)
        child.send("go")
        assert child.receive() is True
        for call in (handle.load, handle.history, lambda: handle.commit(holdfast.Commit())):
            with pytest.raises(holdfast.SessionDeleted):
                call()

    # Waiting.

    def test_a_change_here_wakes_a_waiter_in_another_process(
        self, store: BlockingStore, start: Callable[..., list[Child]]
    ) -> None:
        (child,) = start(WAIT, 1)
        for number in range(5):
            name = f"job-{number}"
            store.processes.register(holdfast.ProcessRegistration(name, External()))
            for what in ("event", "work", "end"):
                child.send([what, name])
                assert child.receive() == "waiting"
                cause(store, what, name)
                began = time.monotonic()
                assert child.receive() == what
                assert time.monotonic() - began < WAKE_S

    def test_a_change_in_another_process_wakes_a_waiter_here(
        self, store: BlockingStore, bench: Bench, start: Callable[..., list[Child]]
    ) -> None:
        (child,) = start(CAUSE, 1)
        for number in range(5):
            name = f"job-{number}"
            store.processes.register(holdfast.ProcessRegistration(name, External()))
            for what in ("event", "work", "end"):
                waiter = in_background(partial(wait, store, what, name))
                bench.parked()
                child.send([what, name])
                assert waiter.result(TIMEOUT_S) == what
                woken_s = time.monotonic()
                # The monotonic clock is the machine's. The other process's disk time is not part of the wake.
                assert woken_s - float(str(child.receive())) < WAKE_S

    # Opening and dying.

    def test_sixteen_processes_open_a_new_database_at_once(
        self, url: str, bench: Bench, start: Callable[..., list[Child]]
    ) -> None:
        children = start(OPEN_AT_ONCE, 16, opening=PRELUDE)
        for child in children:
            child.send("go")
        assert [child.receive() for child in children] == [1] * 16
        store = bench.open()
        stats = store.maintenance.stats()
        assert (stats.sessions, stats.revisions, stats.processes) == (16, 16, 1)
        assert store.maintenance.verify().findings == ()

    def test_acknowledged_writes_of_a_killed_process_are_stored_and_the_rest_is_whole(
        self, store: BlockingStore, start: Callable[..., list[Child]]
    ) -> None:
        handle = store.sessions.handle("chat")
        acknowledged: list[int] = []
        for number in range(5):
            (child,) = start(WRITE_FOR_EVER, 1)
            reported = [*(child.receive() for _ in range(3 + 4 * number)), *child.kill()]
            assert reported == [*range(reported[0], reported[0] + len(reported))]
            # A server may finish the last commit of a dead process after the read below.
            assert reported[0] - len(acknowledged) in (1, 2)
            acknowledged = [*range(1, reported[-1] + 1)]
            view = handle.load(FullGraph())
            assert view is not None
            # At most one commit is stored whose writer died before it could report it.
            assert view.revision - len(acknowledged) in (0, 1)
            acknowledged = [*range(1, view.revision + 1)]
            assert view.node_count == view.revision
            assert view.checkpoint == holdfast.Checkpoint(turn_state={"by": "p0", "after": view.revision - 1})
            history = [entry.turn_id for entry in handle.history(limit=1_000)]
            assert history == [f"p0-{revision}" for revision in acknowledged]
            assert store.maintenance.stats().pending_batches == view.revision
            assert store.maintenance.verify().findings == ()

    def test_claims_and_leases_of_a_killed_process_expire(
        self, timely: BlockingStore, start: Callable[..., list[Child]]
    ) -> None:
        timely.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["left over"]))
        timely.processes.register(holdfast.ProcessRegistration("job", External()))
        (child,) = start(HOLD, 1)
        assert child.receive() == [1, 1]
        assert child.kill() == []
        timely.queue.wait("chat", timeout_ms=20_000)
        claim = timely.queue.claim("chat", owner_id="successor")
        assert claim is not None
        assert claim.fence == 2
        assert [item.payload for batch in claim.batches for item in batch.items] == ["left over"]
        deadline = time.monotonic() + TIMEOUT_S
        while timely.leases.holder(OnProcess("job")) is not None and time.monotonic() < deadline:
            pass
        assert timely.leases.claim(OnProcess("job"), owner_id="successor").fence == 2
