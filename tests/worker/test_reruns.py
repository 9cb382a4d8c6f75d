"""A handler that runs again goes the way it went before: branches, caught errors, `finally`, children and reports."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

import holdfast
from holdfast.leases import OnProcess
from holdfast.processes import Cancelled, Completed, Failed
from holdfast.worker import BlockingRun, Retry, Run, StepFailed, Worker, replay


def outcome_of(store: holdfast.BlockingStore, run_id: str = "r1") -> Any:
    process = store.processes.get(run_id)
    assert process is not None
    return process.outcome


def look(value: Any) -> Any:
    return value


# Branches.


def test_a_branch_keeps_its_ids_its_time_and_its_child(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    seen: list[dict[str, tuple[str, int]]] = []

    @worker.process("child")
    def child(run: BlockingRun, text: str) -> str:
        return text.upper()

    @worker.process("editor")
    async def editor(run: Run) -> Any:
        found: dict[str, tuple[str, int]] = {}
        seen.append(found)

        async def branch(name: str, steps: int) -> str:
            for number in range(steps):  # recorded steps return at once, so that the branches meet in another order
                await run.step(f"{name}-{number}", look, number)
            found[name] = (await run.uuid(), await run.now())
            return str(await (await run.start("child", {"text": name})).result())

        return await run.gather(branch("first", 3), branch("second", 0), run.gather(branch("third", 1)))

    store.processes.start("editor", id="r1")
    worker.run(until_idle=True)
    assert outcome_of(store) == Completed(["FIRST", "SECOND", ["THIRD"]])
    assert len(seen) > 1
    assert all(one == seen[0] for one in seen if len(one) == 3)
    assert len({found for found, _ in seen[0].values()}) == 3
    assert replay(store, worker, "r1").ok


def test_a_branch_takes_the_same_signal_again(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("polls")
    async def polls(run: Run) -> list[Any]:
        first = await run.signal("vote")

        async def branch(name: str, steps: int) -> Any:
            for number in range(steps):
                await run.step(f"{name}-{number}", look, number)
            vote = await run.signal("vote")
            await run.step(f"count-{name}", look, vote)
            await run.signal("close")
            return vote

        votes = await run.gather(branch("slow", 2), branch("quick", 0))
        return [first, *votes, await run.signal("vote")]

    run = store.processes.start("polls", id="r1")
    for vote in range(3):
        run.signal("vote", vote)
    worker.run(until_idle=True)
    for vote, name in ((3, "vote"), (None, "close"), (None, "close")):
        run.signal(name, vote)
        worker.run(until_idle=True)
    taken = outcome_of(store).value
    assert (taken[0], sorted(taken[1:3]), taken[3]) == (0, [1, 2], 3)
    assert replay(store, worker, "r1").ok


async def continue_in_group(run: Run) -> None:
    async def later() -> None:
        run.continue_as_new()

    async with asyncio.TaskGroup() as group:
        group.create_task(later())


@pytest.mark.parametrize(
    ("call", "work"),
    [
        ("run.uuid", lambda run: asyncio.gather(run.uuid(), run.uuid())),
        ("run.continue_as_new", continue_in_group),
    ],
)
def test_a_call_is_refused_in_a_task_that_the_run_does_not_know(call: str, work: Any) -> None:
    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)

            @worker.process("agent", retry=Retry(1))
            async def agent(run: Run) -> Any:
                return await work(run)

            run = await store.processes.start("agent", id="r1")
            await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    outcome = asyncio.run(main())
    assert isinstance(outcome, Failed)
    assert f"{call}: is called in a task that the run does not know: use `await run.gather(...)`" in outcome.message


def test_an_exit_in_a_branch_fails_the_attempt_and_not_the_worker() -> None:
    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)

            @worker.process("agent", retry=Retry(1))
            async def agent(run: Run) -> Any:
                async def leave() -> None:
                    sys.exit(3)

                return await run.gather(leave(), run.step("a", look, 1))

            run = await store.processes.start("agent", id="r1")
            await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    outcome = asyncio.run(main())
    assert isinstance(outcome, Failed)
    assert "SystemExit: 3" in outcome.message


# Errors that the handler catches.


class Away(Exception):
    """An error of the application's own."""


@pytest.mark.parametrize("kind", [ConnectionError, Away])
def test_a_caught_error_is_caught_again(url: str, store: holdfast.BlockingStore, kind: type[Exception]) -> None:
    worker = Worker(url)
    calls: Counter[str] = Counter()

    def primary() -> str:
        calls["primary"] += 1
        if calls["primary"] == 1:
            raise kind("away")
        return "primary"

    def fallback() -> str:
        calls["fallback"] += 1
        return "fallback"

    @worker.process("agent", retry=Retry(1))
    def agent(run: BlockingRun) -> Any:
        try:
            found = run.step("primary", primary)
        except kind as error:
            found = f"{error}: {run.step('fallback', fallback)}"
        run.signal("go")
        return found

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    run.signal("go")
    worker.run(until_idle=True)
    assert outcome_of(store) == Completed("away: fallback")
    assert calls == {"primary": 1, "fallback": 1}
    assert replay(store, worker, "r1").ok


def test_an_error_of_a_class_that_is_not_loaded_is_a_failed_step(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    gone: Any = type("Gone", (Exception,), {"__module__": "an_application_of_yesterday"})

    @worker.process("agent", retry=Retry(1))
    def agent(run: BlockingRun) -> str:
        def fail() -> None:
            raise gone("away")

        try:
            run.step("primary", fail)
        except (gone, StepFailed):
            run.signal("go")
        return "continued"

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    run.signal("go")
    worker.run(until_idle=True)
    assert outcome_of(store) == Completed("continued")


def test_an_error_that_ends_the_attempt_is_not_recorded(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    calls: Counter[str] = Counter()

    def flaky() -> str:
        calls["flaky"] += 1
        if calls["flaky"] == 1:
            raise ConnectionError("away")
        return "there"

    @worker.process("agent", retry=Retry(2, backoff_s=0))
    async def agent(run: Run) -> list[str]:
        return await run.gather(run.step("flaky", flaky), run.step("steady", look, "steady"))

    store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    assert outcome_of(store) == Completed(["there", "steady"])


def _with_asyncio(*steps: Any) -> Any:
    return asyncio.gather(*steps)


async def _with_group(*steps: Any) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in steps]
    return [task.result() for task in tasks]


@pytest.mark.parametrize("side_by_side", [_with_asyncio, _with_group])
def test_a_failure_that_only_another_task_has_seen_is_tried_again(side_by_side: Any) -> None:
    calls: list[str] = []

    async def flaky() -> str:
        calls.append("flaky")
        if len(calls) == 1:
            raise OSError("no answer")
        return "done"

    async def busy(run: Run) -> None:
        for number in range(3):
            await run.step(f"busy-{number}", look, number)

    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)

            @worker.process("agent", retry=Retry(2, backoff_s=0))
            async def agent(run: Run) -> Any:
                return (await side_by_side(run.step("flaky", flaky), busy(run)))[0]

            run = await store.processes.start("agent", id="r1")
            await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    assert asyncio.run(main()) == Completed("done")
    assert len(calls) == 2


@pytest.mark.parametrize("in_branch", [False, True])
def test_a_failure_that_a_task_of_the_handler_caught_is_caught_again(in_branch: bool) -> None:
    calls: Counter[str] = Counter()

    async def broken() -> None:
        calls["broken"] += 1
        raise OSError("no answer")

    async def guarded(run: Run) -> Any:
        try:
            step = run.step("broken", broken)
            return await (run.gather(step) if in_branch else step)
        except OSError as error:
            return await run.step("instead", look, str(error))

    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)

            @worker.process("agent", retry=Retry(2, backoff_s=0))
            async def agent(run: Run) -> Any:
                found = asyncio.create_task(guarded(run))
                await asyncio.wait([found])
                calls["handler"] += 1
                if calls["handler"] == 1:
                    raise ValueError("crash")
                return await found

            run = await store.processes.start("agent", id="r1")
            await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    assert asyncio.run(main()) == Completed("no answer")
    assert calls == {"broken": 1, "handler": 2}


@pytest.mark.parametrize("way", ["a new step", "a step that is retried"])
def test_a_task_that_outlives_its_call_makes_no_further_step(way: str) -> None:
    paid: list[int] = []
    kept: list[asyncio.Task[None]] = []

    async def pay() -> None:
        paid.append(1)
        if way == "a step that is retried":
            raise OSError("no answer")

    async def main() -> None:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)

            @worker.process("agent", retry=Retry(2, backoff_s=0))
            async def agent(run: Run) -> str:
                async def later() -> None:
                    if way == "a new step":
                        await asyncio.sleep(0.05)
                    await run.step("pay", pay, retry=Retry(5, backoff_s=0.05, jitter=0))

                if not kept:
                    kept.append(asyncio.create_task(later()))
                    await asyncio.sleep(0.02)
                    raise ValueError("crash")
                return "done"

            await store.processes.start("agent", id="r1")
            await worker.serve(until_idle=True)
            await asyncio.wait(kept)

    asyncio.run(main())
    assert len(paid) == (0 if way == "a new step" else 1)
    with pytest.raises(holdfast.InvalidRequest, match="is made after the handler has ended"):
        kept[0].result()


# Waits that are caught.


def test_a_finally_block_runs_after_the_wait_and_once(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    done: list[str] = []

    @worker.process("locking")
    def locking(run: BlockingRun) -> int:
        run.step("lock", done.append, "lock")
        try:
            run.signal("go")
            run.step("use", done.append, "use")
        finally:
            run.step("unlock", done.append, "unlock")
        return 1

    @worker.process("catching")
    async def catching(run: Run) -> Any:
        try:
            return await run.signal("go")
        except:  # noqa: E722 - as handlers do
            await run.step("default", done.append, "default")
            return "default"

    for kind in ("locking", "catching"):
        store.processes.start(kind, id=kind)
    worker.run(until_idle=True)
    assert done == ["lock"]
    for kind in ("locking", "catching"):
        store.events.signal(kind, "go", "went")
    worker.run(until_idle=True)
    assert done == ["lock", "use", "unlock"]
    assert (outcome_of(store, "locking"), outcome_of(store, "catching")) == (Completed(1), Completed("went"))


# Children and reports.


@pytest.mark.parametrize("detached", [False, True])
def test_a_child_that_was_pruned_is_not_started_again(url: str, store: holdfast.BlockingStore, detached: bool) -> None:
    worker = Worker(url)
    charged: list[str] = []

    @worker.process("charge")
    def charge(run: BlockingRun) -> int:
        charged.append(run.id)
        return 1

    @worker.process("order")
    async def order(run: Run) -> Any:
        child = await run.start("charge", id="c1", detached=detached)
        paid = 1 if detached else await child.result()
        await run.signal("ship")
        return paid

    run = store.processes.start("order", id="r1")
    worker.run(until_idle=True)
    store.maintenance.prune(holdfast.RetentionPolicy(terminal_processes_older_than_ms=0))
    assert store.processes.get("c1") is None
    run.signal("ship")
    worker.run(until_idle=True)
    assert (outcome_of(store), charged) == (Completed(1), ["c1"])


def test_a_report_is_made_once(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("agent")
    async def agent(run: Run) -> None:
        for number in range(4):
            await run.progress(number)
            await run.signal("next")

    run = store.processes.start("agent", id="r1")
    for _ in range(5):
        worker.run(until_idle=True)
        if outcome_of(store) is None:
            run.signal("next")
    assert [event.payload for event in store.events.after("r1", type="progress")] == [0, 1, 2, 3]


# Refusals, and calls that were given up.


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda run: run.signal("go"), "run.signal: is inside of step 'outer'"),
        (lambda run: run.progress(1), "run.progress: is inside of step 'outer'"),
        (lambda run: run.sleep(0), "run.sleep: is inside of step 'outer'"),
        (lambda run: run.now(), "run.now: is inside of step 'outer'"),
        (lambda run: run.uuid(), "run.uuid: is inside of step 'outer'"),
        (lambda run: run.child("c1").result(), "child.result: is inside of step 'outer'"),
        (lambda run: run.start("agent", id="c1", detached=True), "run.start: is inside of step 'outer'"),
        (lambda run: run.continue_as_new(1), "run.continue_as_new: is inside of step 'outer'"),
        (lambda run: run.step("inner", look, 1), "run.step('inner'): is inside of step 'outer'"),
    ],
    ids=["signal", "progress", "sleep", "now", "uuid", "result", "start", "continue", "step"],
)
def test_no_call_of_the_run_is_made_inside_of_a_step(
    store: holdfast.BlockingStore, url: str, call: Any, says: str
) -> None:
    worker = Worker(url)

    @worker.process("agent", retry=Retry(1))
    def agent(run: BlockingRun) -> Any:
        return run.step("outer", lambda: call(run))

    store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    assert says in outcome_of(store).message


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("https://example.net/" + "x" * 500, "bytes too long: give it a shorter one"),
        ("a\0b", "must not contain NUL"),
        ("a\ud800", "contains a lone surrogate"),
    ],
    ids=["long", "nul", "surrogate"],
)
def test_a_name_that_cannot_be_recorded_is_refused_before_the_call(
    store: holdfast.BlockingStore, url: str, name: str, says: str
) -> None:
    worker = Worker(url)
    called: list[int] = []

    @worker.process("agent", retry=Retry(1))
    def agent(run: BlockingRun) -> Any:
        return run.step(name, called.append, 1)

    store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    assert says in outcome_of(store).message
    assert called == []


def test_a_child_that_is_started_twice_is_named(store: holdfast.BlockingStore, url: str) -> None:
    worker = Worker(url)

    @worker.process("agent", retry=Retry(1))
    def agent(run: BlockingRun) -> None:
        run.start("other", id="c1")
        run.start("other", id="c1")

    store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    assert "run.start: was called for child 'c1' before in this run" in outcome_of(store).message


SETS = """
import sys, holdfast
worker = holdfast.Worker(sys.argv[1])
@worker.process("agent")
def agent(run):
    count = run.step("count", len, {"a", "b", "c", "d", "e"})
    run.signal("go")
    return count
worker.run(until_idle=True)
"""


def test_a_set_is_the_same_argument_in_another_process(store: holdfast.BlockingStore, url: str) -> None:
    run = store.processes.start("agent", id="r1")
    for seed in ("1", "2"):
        subprocess.run([sys.executable, "-c", SETS, url], check=True, env={"PYTHONHASHSEED": seed}, timeout=60)
        if seed == "1":
            run.signal("go")
    assert outcome_of(store) == Completed(5)


def test_a_plain_handler_makes_no_further_step_once_it_is_cancelled(store: holdfast.BlockingStore, url: str) -> None:
    worker = Worker(url)
    called: list[int] = []
    is_inside, goes_on = threading.Event(), threading.Event()

    def work(number: int) -> int:
        called.append(number)
        is_inside.set()
        goes_on.wait(30)
        return number

    @worker.process("agent")
    def agent(run: BlockingRun) -> None:
        for number in range(10):
            try:
                run.step(f"work-{number}", work, number)
            finally:
                while not run.cancelled and number == 0:
                    threading.Event().wait(0.01)

    run = store.processes.start("agent", id="r1")
    serving = threading.Thread(target=lambda: worker.run(until_idle=True))
    serving.start()
    assert is_inside.wait(30)
    run.cancel()
    goes_on.set()
    serving.join(30)
    assert isinstance(outcome_of(store), Cancelled)
    assert called == [0]


@dataclasses.dataclass
class Left:
    one: int


@dataclasses.dataclass
class Right:
    other: int


def test_a_type_that_cannot_be_read_back_is_refused_before_the_call(store: holdfast.BlockingStore, url: str) -> None:
    worker = Worker(url)
    called: list[int] = []

    def either() -> Left | Right:
        called.append(1)
        return Left(1)

    @worker.process("agent", retry=Retry(1))
    def agent(run: BlockingRun) -> Any:
        return run.step("either", either)

    store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    assert "run.step('either'): declares to return" in outcome_of(store).message
    assert called == []


@pytest.mark.parametrize("way", ["step", "start", "progress"])
def test_a_handler_that_catches_the_loss_of_its_lease_calls_no_further_step(
    store: holdfast.BlockingStore, url: str, way: str
) -> None:
    worker = Worker(url, concurrency=1)  # the next attempt begins when this one has ended
    called: list[str] = []

    def lose() -> None:
        if not called:
            store.leases.revoke(OnProcess("r1"))
        called.append("lose")

    @worker.process("agent")
    def agent(run: BlockingRun) -> str:
        if way != "step":
            lose()
        with suppress(Exception):
            if way == "step":
                run.step("lose", lose)
            elif way == "start":
                run.start("other", id="c1", detached=True)
            else:
                run.progress(1)
        with suppress(Exception):
            run.step("next", called.append, "next")
        return "done"

    store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    assert (outcome_of(store), called) == (Completed("done"), ["lose", "lose", "next"])


def test_a_cancel_cuts_a_short_sleep_of_a_plain_handler(store: holdfast.BlockingStore, url: str) -> None:
    worker = Worker(url)
    begins = threading.Event()

    @worker.process("agent")
    def agent(run: BlockingRun) -> None:
        begins.set()
        run.sleep(5)

    run = store.processes.start("agent", id="r1")
    serving = threading.Thread(target=lambda: worker.run(until_idle=True))
    began_s = time.monotonic()
    serving.start()
    assert begins.wait(30)
    run.cancel()
    serving.join(30)
    assert isinstance(outcome_of(store), Cancelled)
    assert time.monotonic() - began_s < 5
