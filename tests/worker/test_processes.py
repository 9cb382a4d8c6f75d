"""A worker runs processes: results complete them, errors are tried again, and what must not run again is abandoned."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import holdfast
from holdfast.processes import Abandoned, Cancelled, Completed, ExternalRef, Failed, Process, Recovery
from holdfast.store import events as store_events
from holdfast.testing.clock import ManualClock
from holdfast.worker import BlockingRun, ChildFailed, Failure, GiveUp, Retry, Run, Worker
from holdfast.worker.journal import Journal

WAIT_S = 30
WAIT_MS = WAIT_S * 1000


class Running:
    """A worker that runs in a thread until it is stopped."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._thread = threading.Thread(target=worker.run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._worker.stop()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def process_of(store: holdfast.BlockingStore, id: str = "r1") -> Process:
    process = store.processes.get(id)
    assert process is not None
    return process


@pytest.mark.parametrize("way", ["async", "thread"])
def test_the_result_of_a_handler_completes_the_run(url: str, store: holdfast.BlockingStore, way: str) -> None:
    worker = Worker(url)

    async def research_async(run: Run, question: str, depth: int = 1) -> Any:
        await run.progress({"asked": question})
        assert await run.store.now_ms() > 0
        return [run.id, run.kind, run.attempt, run.args, question, depth]

    def research(run: BlockingRun, question: str, depth: int = 1) -> Any:
        run.progress({"asked": question})
        assert run.store.now_ms() > 0
        return [run.id, run.kind, run.attempt, run.args, question, depth]

    worker.process("research")(research_async if way == "async" else research)
    store.processes.start("research", {"question": "why?"}, id="r1")
    worker.run(until_idle=True)
    outcome = process_of(store).outcome
    assert outcome == Completed(["r1", "research", 1, {"question": "why?"}, "why?", 1])
    assert [event.payload for event in store.events.after("r1", type="progress")] == [{"asked": "why?"}]
    assert repr(worker.tally) == "1 done, 0 failed, 0 dead"


@pytest.mark.parametrize(("args", "got"), [(None, []), ([1, 2], [[1, 2]]), ("text", ["text"])])
def test_arguments_other_than_an_object_follow_the_run(
    store: holdfast.BlockingStore, url: str, args: Any, got: Any
) -> None:
    worker = Worker(url)

    @worker.process("any")
    async def echo(run: Run, *given: Any) -> Any:
        return list(given)

    store.processes.start("any", args, id="r1")
    worker.run(until_idle=True)
    assert process_of(store).outcome == Completed(got)


def test_arguments_that_do_not_fit_are_named_in_the_error(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("research", retry=Retry(1))
    async def research(run: Run, question: str) -> None: ...

    store.processes.start("research", {"query": "why?"}, id="r1")
    worker.run(until_idle=True)
    outcome = process_of(store).outcome
    assert isinstance(outcome, Failed)
    assert outcome.message.startswith("InvalidRequest: args: do not fit")
    assert "'question'" in outcome.message


def test_a_failing_run_is_tried_again_and_then_failed(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    answer: list[Failure] = []
    worker.on_failure(answer.append)

    @worker.process("research", retry=Retry(2, backoff_s=0))
    async def research(run: Run) -> None:
        raise ValueError(f"attempt {run.attempt}")

    store.processes.start("research", id="r1")
    worker.run(until_idle=True)
    assert process_of(store).outcome == Failed("ValueError: attempt 2", code="handler_failed")
    assert [(one.shape, one.id, one.attempt, one.is_last) for one in answer] == [
        ("process", "r1", 1, False),
        ("process", "r1", 2, True),
    ]


def test_a_run_that_gives_up_is_not_tried_again(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("research", retry=Retry(5))
    def research(run: BlockingRun) -> None:
        raise GiveUp("no such topic")

    store.processes.start("research", id="r1")
    worker.run(until_idle=True)
    assert process_of(store).status == "failed"


def test_a_result_that_json_cannot_hold_fails_by_name(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("research", retry=Retry(1))
    async def research(run: Run) -> Any:
        return object()

    store.processes.start("research", id="r1")
    worker.run(until_idle=True)
    outcome = process_of(store).outcome
    assert isinstance(outcome, Failed)
    assert "research: returned a value that cannot be stored: is not a JSON value" in outcome.message


def test_a_worker_with_old_code_leaves_the_runs_of_a_new_version_alone(
    url: str, store: holdfast.BlockingStore, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Worker(url), Worker(url)
    old.process("research")(lambda run: "old code")
    new.process("research", version="2")(lambda run: "new code")
    runs = [store.processes.start("research", version="2"), store.processes.start("research")]
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        old.run(until_idle=True)
    assert "has 1 runs of version '2' that wait and no handler here: handled here are 1" in caplog.text
    assert store.processes.get(runs[0].id).attempt == 0  # type: ignore[union-attr]
    new.run(until_idle=True)
    assert [run.result(timeout_ms=0) for run in runs] == ["new code", "old code"]


def test_versions_of_a_handler_live_side_by_side(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    worker.process("research", version="2")(lambda run: "second")
    worker.process("research")(lambda run: "any")
    for version in ("1", "2"):
        store.processes.start("research", id=f"r{version}", version=version)
    worker.run(until_idle=True)
    assert process_of(store, "r1").outcome == Completed("any")
    assert process_of(store, "r2").outcome == Completed("second")


# Cancellation.


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_request_to_cancel_reaches_the_handler_within_a_second(
    url: str, store: holdfast.BlockingStore, way: str
) -> None:
    worker = Worker(url)
    begun = threading.Event()
    ended_s: list[float] = []

    async def research_async(run: Run) -> str:
        begun.set()
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            ended_s.append(time.monotonic())
        return "not cancelled"

    def research(run: BlockingRun) -> str:
        begun.set()
        deadline_s = time.monotonic() + WAIT_S
        while not run.cancelled and time.monotonic() < deadline_s:
            time.sleep(0.005)
        ended_s.append(time.monotonic())
        return "not cancelled"

    worker.process("research")(research_async if way == "async" else research)
    store.processes.start("research", id="r1")
    with Running(worker):
        assert begun.wait(WAIT_S)
        asked_s = time.monotonic()
        store.events.request_cancel("r1", reason="too late")
        outcome = store.processes.wait("r1", timeout_ms=WAIT_MS)
    assert outcome == Cancelled("too late")
    assert ended_s[0] - asked_s < 1


def test_a_recorded_step_does_not_wake_the_watcher_for_cancellations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.processes.WATCH_AFTER_S", 0.0)
    steps = 30
    looks: list[str | None] = []
    right = store_events.Events._page

    async def page(self: Any, filter: Any) -> Any:
        looks.append(filter.type)
        return await right(self, filter)

    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)

            @worker.process("research")
            async def research(run: Run) -> int:
                for number in range(steps):
                    await run.step(f"step-{number}", asyncio.sleep, 0.001)
                await asyncio.sleep(0.05)
                return steps

            await store.processes.start("research", id="r1")
            monkeypatch.setattr(store_events.Events, "_page", page)
            await worker.serve(until_idle=True)
            return await store.processes.wait("r1", timeout_ms=WAIT_MS)

    assert asyncio.run(main()) == Completed(steps)
    assert looks.count("process.cancel_requested") <= 2


def test_a_run_that_was_cancelled_before_it_began_is_not_called(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    calls: list[Any] = []
    worker.process("research")(calls.append)
    store.processes.start("research", id="r1", due_at_ms=store.now_ms() + 3_600_000)
    store.events.request_cancel("r1", reason="never mind")
    worker.run(until_idle=True)
    assert (calls, process_of(store).outcome) == ([], Cancelled("never mind"))


def test_an_error_of_the_clean_up_is_kept_with_the_cancellation(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    begun = threading.Event()

    @worker.process("research")
    async def research(run: Run) -> None:
        begun.set()
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            raise OSError("disk")

    store.processes.start("research", id="r1")
    with Running(worker):
        assert begun.wait(WAIT_S)
        store.events.request_cancel("r1")
        outcome = store.processes.wait("r1", timeout_ms=WAIT_MS)
    assert outcome == Cancelled("cancelled on request", raw={"error": "OSError: disk"})


# Leases and recovery.


def test_a_handler_keeps_its_lease_though_it_blocks_the_event_loop(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    attempts: list[int] = []

    @worker.process("block", lease_s=0.5)
    async def block(run: Run) -> None:
        attempts.append(run.attempt)
        time.sleep(1.5)  # on purpose

    store.processes.start("block", id="r1")
    worker.run(until_idle=True)
    assert (attempts, process_of(store).status) == ([1], "completed")


def test_a_handler_whose_lease_is_lost_is_cancelled_and_stores_nothing(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    begun, ended = threading.Event(), threading.Event()

    @worker.process("research", lease_s=0.5)
    async def research(run: Run) -> str:
        begun.set()
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            ended.set()
        return "of a lost lease"

    store.processes.start("research", id="r1")
    with Running(worker):
        assert begun.wait(WAIT_S)
        store.processes.complete("r1", Completed("elsewhere"))
        assert ended.wait(WAIT_S)
    assert process_of(store).outcome == Completed("elsewhere")
    assert worker.tally.lost == 1


def lose_a_holder(store: holdfast.BlockingStore) -> None:
    """Claim a run as a worker that dies."""
    claim = store.processes.claim_next(owner_id="dies", ttl_ms=1)
    assert claim is not None
    while store.now_ms() <= claim.lease.expires_at_ms:
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("declared_by", "recovery"),
    [("the start", "owner_bound"), ("the handler", "owner_bound"), ("the handler", "external")],
)
def test_a_run_that_must_not_run_again_is_abandoned_with_evidence(
    url: str, store: holdfast.BlockingStore, declared_by: str, recovery: Recovery
) -> None:
    worker = Worker(url)
    calls: list[Any] = []
    worker.process("pay", recovery=recovery if declared_by == "the handler" else "rerunnable")(calls.append)
    store.processes.start("pay", id="r1", recovery=recovery if declared_by == "the start" else None)
    lose_a_holder(store)
    worker.run(until_idle=True)
    outcome = process_of(store).outcome
    assert calls == []
    assert isinstance(outcome, Abandoned)
    evidence: Any = outcome.evidence
    assert (evidence["lost_owner_id"], evidence["last_sequence"], evidence["steps"]) == ("dies", 0, [])
    assert "dies" in outcome.message


def test_a_rerunnable_run_of_a_lost_worker_runs_again(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    worker.process("pay", retry=Retry(1))(lambda run: run.attempt)
    store.processes.start("pay", id="r1")
    lose_a_holder(store)
    worker.run(until_idle=True)
    assert process_of(store).outcome == Completed(2)


def test_a_run_whose_workers_died_at_every_attempt_and_once_more_has_failed(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = Worker(url)
    calls: list[Any] = []
    worker.process("pay", retry=Retry(1))(calls.append)
    store.processes.start("pay", id="r1")
    lose_a_holder(store)
    lose_a_holder(store)
    worker.run(until_idle=True)
    outcome = process_of(store).outcome
    assert calls == []
    assert isinstance(outcome, Failed)
    assert "survived" in outcome.message


def test_an_external_run_continues_outside_and_is_ended_there(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    calls: list[str] = []

    @worker.process("train", recovery="external")
    def train(run: BlockingRun) -> None:
        calls.append(run.id)
        run.store.processes.set_external_ref(run.id, ExternalRef("cluster", "job-7"))

    store.processes.start("train", id="r1")
    worker.run(until_idle=True)
    assert process_of(store).suspended
    store.events.signal("r1", "ping")
    worker.run(until_idle=True)
    assert calls == ["r1"], "it is not started a second time"
    store.processes.complete("r1", Completed("trained"))
    assert process_of(store).outcome == Completed("trained")


def test_an_external_handler_that_returned_is_not_called_again_by_a_signal(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = Worker(url)
    calls: list[str] = []

    @worker.process("train", recovery="external")
    def train(run: BlockingRun) -> None:
        calls.append(run.id)

    store.processes.start("train", id="r1")
    worker.run(until_idle=True)
    store.events.signal("r1", "ping")
    worker.run(until_idle=True)
    assert (calls, process_of(store).suspended) == (["r1"], True)
    store.processes.complete("r1", Failed("no room", code="outside"))
    store.processes.retry("r1")
    worker.run(until_idle=True)
    assert calls == ["r1", "r1~2"], "a retry hands it over again"
    assert holdfast.worker.replay(store, worker, "r1~2").ok


@pytest.mark.parametrize("way", ["async", "plain"])
def test_an_owner_bound_run_that_outlasts_the_grace_is_abandoned(
    url: str, store: holdfast.BlockingStore, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.calls.THREAD_GRACE_S", 0.1)
    begun, over = threading.Event(), threading.Event()
    calls: list[str] = []

    async def pay(run: Run) -> None:
        calls.append(run.id)
        begun.set()
        await asyncio.sleep(0 if over.is_set() else WAIT_S)

    def pay_in_thread(run: BlockingRun) -> None:
        calls.append(run.id)
        begun.set()
        over.wait(WAIT_S)

    def served(*, grace: bool) -> Worker:
        made = Worker(url, grace_s=0 if grace else WAIT_S, lease_s=1, name="stops" if grace else "goes-on")
        made.process("pay", recovery="owner_bound")(pay_in_thread if way == "plain" else pay)
        return made

    worker = served(grace=True)
    store.processes.start("pay", id="r1")
    with Running(worker):
        assert begun.wait(WAIT_S)
    over.set()
    served(grace=False).run(until_idle=True)
    outcome = process_of(store).outcome
    assert calls == ["r1"], "it is not called again"
    assert isinstance(outcome, Abandoned)
    assert "stops" in outcome.message


@pytest.mark.parametrize("recovery", ["owner_bound", "external"])
@pytest.mark.parametrize("during", ["the claim", "the load"])
def test_a_shutdown_during_a_takeover_does_not_hide_that_a_holder_was_lost(
    recovery: Recovery, during: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    async def main() -> Any:
        async with holdfast.open("memory:") as store:

            def made() -> Worker:
                worker = Worker(store, grace_s=0, lease_s=1)
                worker.process("pay", recovery=recovery)(lambda run: calls.append(run.id))
                return worker

            await store.processes.start("pay", id="r1")
            assert await store.processes.claim_next(owner_id="dies", ttl_ms=1) is not None
            await asyncio.sleep(0.01)
            worker = made()
            owner: Any = type(store.processes) if during == "the claim" else Journal
            name = "claim_next" if during == "the claim" else "load"
            usual = getattr(owner, name)

            async def slow(*args: Any, **named: Any) -> Any:
                claim = await usual(*args, **named)
                worker.stop()
                await asyncio.sleep(0.2)
                return claim

            with monkeypatch.context() as patched:
                patched.setattr(owner, name, slow)
                await worker.serve()
            async with asyncio.timeout(WAIT_S):
                while not calls and not (await _process(store)).is_terminal:
                    await made().serve(until_idle=True)
                    await asyncio.sleep(0.05)
            return (await _process(store)).outcome

    outcome = asyncio.run(main())
    assert calls == []
    assert isinstance(outcome, Abandoned)


async def _process(store: holdfast.Store) -> Process:
    process = await store.processes.get("r1")
    assert process is not None
    return process


def test_a_run_that_outlasts_the_grace_is_given_back_without_an_attempt(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = Worker(url, grace_s=0)
    begun = threading.Event()

    @worker.process("research")
    async def research(run: Run) -> None:
        begun.set()
        await asyncio.sleep(WAIT_S)

    store.processes.start("research", id="r1")
    with Running(worker):
        assert begun.wait(WAIT_S)
    assert (process_of(store).status, process_of(store).attempt) == ("running", 0)


# Steps, sleeps, signals and children.


def test_a_recorded_step_is_not_run_again(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    effects: list[str] = []

    def effect(name: str) -> str:
        effects.append(name)
        return name.upper()

    @worker.process("research", retry=Retry(3, backoff_s=0))
    async def research(run: Run) -> Any:
        first = await run.step("first", effect, "a")
        both = await run.gather(run.step("left", effect, "b"), run.step("right", effect, "c"))
        if run.attempt == 1:
            raise OSError("crash")
        return [first, *both, await run.uuid() == await run.uuid()]

    store.processes.start("research", id="r1")
    worker.run(until_idle=True)
    assert process_of(store).outcome == Completed(["A", "B", "C", False])
    assert sorted(effects) == ["a", "b", "c"]


MISTAKES: dict[str, tuple[Any, str]] = {
    "a name used twice": (lambda run: [run.step("x", int), run.step("x", int)], "was used before"),
    "a step in a step": (lambda run: run.step("outer", lambda: run.step("inner", int)), "inside of step 'outer'"),
    "a result that cannot be stored": (
        lambda run: run.step("x", object),
        "run.step('x'): returned a value that cannot",
    ),
    "a part of a result that cannot be stored": (
        lambda run: run.step("x", lambda: {"at": [set()]}),
        "run.step('x'): returned a value that cannot be stored: is not a JSON value: value at /at/0 is of type set",
    ),
    "an argument that cannot be stored": (lambda run: run.start("k", {"a": set()}), "args: is not a JSON value"),
    "a report that cannot be stored": (lambda run: run.progress({1}), "run.progress: payload: is not a JSON value"),
    "a run that cannot continue": (
        lambda run: run.continue_as_new({"at": set()}),
        "run.continue_as_new: args: is not a JSON value: value at /at is of type set",
    ),
    "a blank name": (lambda run: run.step(" ", int), "needs a name"),
    "a name of our own": (lambda run: run.step("~sleep:1", int), "needs a name"),
    "no function": (lambda run: run.step("x", 7), "needs a function"),
    "the key of no name": (lambda run: run.key(7), "run.key: needs the name of a step, not int"),
    "a negative sleep": (
        lambda run: run.sleep(-1),
        "run.sleep: the time must be a number of seconds from 0 to 31622400",
    ),
    "a wait that is no length": (lambda run: run.signal("go", timeout_s="1"), "run.signal: timeout_s must be a number"),
    "the id of no child": (lambda run: run.child(7), "run.child: needs the id of a run, not int"),
    "a version that is no text": (
        lambda run: run.continue_as_new(version=2),
        "run.continue_as_new: version: must be text, not int",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_run_is_named(url: str, store: holdfast.BlockingStore, name: str) -> None:
    handler, says = MISTAKES[name]
    worker = Worker(url)
    worker.process("research", retry=Retry(1))(handler)
    store.processes.start("research", id="r1")
    worker.run(until_idle=True)
    outcome = process_of(store).outcome
    assert isinstance(outcome, Failed)
    assert says in outcome.message


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (lambda run: run.step("plan", int, 8), "its arguments are not those"),
        (lambda run: run.step("plan", float, 7), "its function was int, and is float now"),
        (lambda run: None, "returned without it"),
    ],
)
def test_changed_code_is_noticed(url: str, store: holdfast.BlockingStore, second: Any, says: str) -> None:
    def first(run: BlockingRun) -> None:
        run.step("plan", int, 7)
        raise OSError

    store.processes.start("research", id="r1")
    for handler, attempts in ((first, 2), (second, 2)):
        worker = Worker(url)
        worker.process("research", retry=Retry(attempts, backoff_s=0))(handler)
        if handler is first:
            worker.on_failure(lambda _, stop=worker.stop: stop())
        worker.run(until_idle=handler is not first)
    held = process_of(store)
    assert (held.is_held, held.attempt) == (True, 1)
    assert says in (held.last_error or "")


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_sleeping_run_holds_no_worker_and_continues_when_it_is_due(way: str) -> None:
    clock = ManualClock()
    calls: list[int] = []

    async def nap_async(run: Run) -> str:
        calls.append(1)
        await run.sleep(3600)
        return "rested"

    def nap(run: BlockingRun) -> str:
        calls.append(1)
        run.sleep(3600)
        return "rested"

    async def main() -> tuple[bool, Any]:
        async with holdfast.open("memory:", clock=clock) as store:
            worker = Worker(store)
            worker.process("nap")(nap_async if way == "async" else nap)
            await store.processes.start("nap", id="r1")
            await worker.serve(until_idle=True)
            clock.advance(3_599_000)
            await worker.serve(until_idle=True)
            asleep = await store.processes.get("r1")
            assert asleep is not None
            clock.advance(1_000)
            await worker.serve(until_idle=True)
            ended = await store.processes.get("r1")
            assert ended is not None
            return asleep.suspended, ended.outcome

    assert asyncio.run(main()) == (True, Completed("rested"))
    assert len(calls) == 2


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_signal_wakes_a_run_and_each_is_taken_once(url: str, store: holdfast.BlockingStore, way: str) -> None:
    worker = Worker(url)

    async def wait_async(run: Run) -> Any:
        return [await run.signal("approve"), await run.signal("approve", timeout_s=3600)]

    def wait(run: BlockingRun) -> Any:
        return [run.signal("approve"), run.signal("approve", timeout_s=3600)]

    worker.process("ask")(wait_async if way == "async" else wait)
    store.processes.start("ask", id="r1")
    worker.run(until_idle=True)
    assert process_of(store).wait is not None
    for number in (1, 2):
        store.events.signal("r1", "approve", number)
        worker.run(until_idle=True)
    assert process_of(store).outcome == Completed([1, 2])


def test_a_signal_that_does_not_come_in_time_is_a_timeout_for_good(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("ask", retry=Retry(2, backoff_s=0))
    async def ask(run: Run) -> Any:
        try:
            return await run.signal("approve", timeout_s=0.05)
        except TimeoutError:
            if run.attempt == 1:
                await run.store.events.signal(run.id, "approve", "late")
                raise OSError from None
            return ["nobody", await run.signal("approve")]

    store.processes.start("ask", id="r1")
    worker.run(until_idle=True)
    assert process_of(store).outcome == Completed(["nobody", "late"])


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_run_waits_for_its_children_without_a_worker(url: str, store: holdfast.BlockingStore, way: str) -> None:
    worker = Worker(url, concurrency=1)

    async def parent_async(run: Run) -> Any:
        children = [await run.start("double", {"number": number}) for number in (1, 2)]
        return [await child.result() for child in children]

    def parent(run: BlockingRun) -> Any:
        children = [run.start("double", {"number": number}) for number in (1, 2)]
        return [child.result() for child in children]

    worker.process("parent")(parent_async if way == "async" else parent)
    worker.process("double")(lambda run, number: 2 * number)
    store.processes.start("parent", id="r1")
    worker.run(until_idle=True)
    assert process_of(store).outcome == Completed([2, 4])


def test_a_child_without_a_result_is_an_error_of_the_parent(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("parent")
    async def parent(run: Run) -> str:
        child = await run.start("broken")
        try:
            return str(await child.result())
        except ChildFailed as failed:
            return str(failed)

    @worker.process("broken", retry=Retry(1))
    async def broken(run: Run) -> None:
        raise ValueError("no")

    store.processes.start("parent", id="r1")
    worker.run(until_idle=True)
    assert process_of(store).outcome == Completed("child run 'r1/child:1': Failed: ValueError: no")


def test_children_are_cancelled_with_their_parent_unless_detached(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("parent")
    async def parent(run: Run) -> Any:
        child = await run.start("sleepy", id="bound")
        await run.start("sleepy", id="free", detached=True)
        return await child.result()

    @worker.process("sleepy")
    async def sleepy(run: Run) -> Any:
        return await run.signal("go")

    store.processes.start("parent", id="r1")
    worker.run(until_idle=True)
    store.events.request_cancel("r1", reason="enough")
    worker.run(until_idle=True)
    assert [process_of(store, one).status for one in ("r1", "bound", "free")] == ["cancelled", "cancelled", "running"]


# Kills.

KILLED = """
import os, sys
import holdfast

worker = holdfast.Worker(sys.argv[1], lease_s=1)

@worker.process("agent", retry=holdfast.Retry(100, backoff_s=0))
def agent(run):
    def effect(number):
        with open(sys.argv[2], "a") as file:
            file.write(f"{number}\\n")
        return number
    total = 0
    for number in range(6):
        total += run.step(f"step-{number}", effect, number)
        if number == run.attempt:
            os.kill(os.getpid(), 9)
    return total

worker.run(until_idle=True)
"""


def test_a_run_survives_workers_that_are_killed(url: str, store: holdfast.BlockingStore, tmp_path: Any) -> None:
    effects = tmp_path / "effects"
    store.processes.start("agent", id="r1")
    deadline_s = time.monotonic() + WAIT_S
    kills = 0
    while process_of(store).status == "running" and time.monotonic() < deadline_s:
        ended = subprocess.run([sys.executable, "-c", KILLED, url, str(effects)], check=False, timeout=WAIT_S)
        kills += ended.returncode == -9
        time.sleep(0.05)  # until the lease ends; nothing waits for it
    assert process_of(store).outcome == Completed(15)
    assert kills == 5
    assert effects.read_text().split() == ["0", "1", "2", "3", "4", "5"], "each step was recorded before the kill"


def test_a_handle_follows_from_the_beginning_by_default_and_with_none(store: holdfast.BlockingStore) -> None:
    run = store.processes.start("research", id="run-1")
    store.processes.complete("run-1", holdfast.processes.Completed())
    assert [event.type for event in run.follow(None)] == [event.type for event in run.follow()] == ["process.completed"]
