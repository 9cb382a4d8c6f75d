"""A handler goes the same way again after a time limit cut a step, a task group failed, or a branch caught its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

import holdfast
from holdfast.processes import Completed, Failed
from holdfast.testing.clock import ManualClock
from holdfast.worker import Retry, Run, Worker, replay, run_facts

LIMIT_S = 0.05


async def with_timeout(step: Awaitable[Any]) -> Any:
    async with asyncio.timeout(LIMIT_S):
        return await step


async def with_wait_for(step: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(step, LIMIT_S)


async def with_a_task(step: Awaitable[Any]) -> Any:
    task = asyncio.ensure_future(step)
    await asyncio.wait([task], timeout=LIMIT_S)
    if task.done():
        return task.result()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    raise TimeoutError


async def with_scope(step: Awaitable[Any]) -> Any:
    with anyio.move_on_after(LIMIT_S):
        try:
            return await step
        except TimeoutError:
            return "an error where there was none"
    raise TimeoutError  # the scope swallows the cancel


LIMITS: dict[str, Callable[[Awaitable[Any]], Awaitable[Any]]] = {
    "asyncio.timeout": with_timeout,
    "asyncio.wait_for": with_wait_for,
    "a task": with_a_task,
    "anyio": with_scope,
}


@pytest.mark.parametrize("in_branch", [False, True])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_step_that_a_time_limit_of_the_handler_cut_is_not_called_again(
    url: str, store: holdfast.BlockingStore, limit: str, in_branch: bool
) -> None:
    worker = Worker(url)
    calls: Counter[str] = Counter()

    async def ask(model: str) -> str:
        calls[model] += 1
        if model == "large" and calls[model] == 1:
            await asyncio.sleep(60)
        return model

    async def answer(run: Run) -> Any:
        try:
            return await LIMITS[limit](run.step("large", ask, "large"))
        except TimeoutError:
            return await run.step("small", ask, "small")

    @worker.process("agent", retry=Retry(1))
    async def agent(run: Run) -> Any:
        found = (await run.gather(answer(run)))[0] if in_branch else await answer(run)
        return [found, await run.signal("go")]

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    assert [(step.name, step.state) for step in run_facts(store, "r1").steps] == [
        ("large", "failed"),
        ("small", "done"),
    ]
    assert replay(store, worker, "r1").stopped_at == "signal 'go'"
    run.signal("go", "on")
    worker.run(until_idle=True)
    assert run.outcome(timeout_ms=0) == Completed(["small", "on"])
    assert calls == {"large": 1, "small": 1}


def test_a_back_off_that_a_time_limit_cut_is_over() -> None:
    clock = ManualClock()
    calls: list[str] = []

    def ask() -> None:
        calls.append("ask")
        raise ConnectionError("away")

    async def main() -> Any:
        async with holdfast.open("memory:", clock=clock) as store:
            worker = Worker(store)

            @worker.process("agent", retry=Retry(1))
            async def agent(run: Run) -> Any:
                found = "an answer"
                with suppress(TimeoutError):
                    async with asyncio.timeout(LIMIT_S):
                        await run.step("ask", ask, retry=Retry(3, backoff_s=4, jitter=0))
                    found = "no answer"
                return [found, await run.signal("go")]

            run = await store.processes.start("agent", id="r1")
            await worker.serve(until_idle=True)
            clock.advance(10_000)
            await run.signal("go", "on")
            await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    assert asyncio.run(main()) == Completed(["an answer", "on"])
    assert calls == ["ask"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_time_limit_does_not_cut_the_record_of_a_step(fails: bool) -> None:
    clock = ManualClock()
    calls: list[str] = []

    def ask() -> str:
        calls.append("ask")
        if fails and len(calls) == 1:
            raise ConnectionError("away")
        return "found"

    async def main() -> Any:
        async with holdfast.open("memory:", clock=clock) as store:
            worker = Worker(store)

            @worker.process("agent", retry=Retry(1))
            async def agent(run: Run) -> Any:
                persist = run.steps.persist

                async def slowly(message: str, call: Any) -> Any:
                    answer = await persist(message, call)
                    if message == "cannot record a step" and "recorded" not in calls:
                        calls.append("recorded")
                        await asyncio.sleep(60)
                    return answer

                run.steps.persist = slowly
                found = "nothing"
                with suppress(TimeoutError):
                    async with asyncio.timeout(LIMIT_S):
                        found = await run.step("ask", ask, retry=Retry(2, backoff_s=4))
                calls.append(found)
                return [found, await run.signal("go")]

            run = await store.processes.start("agent", id="r1")
            await worker.serve(until_idle=True)
            clock.advance(10_000)
            await run.signal("go", "on")
            await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    seen = "nothing" if fails else "found"
    assert asyncio.run(main()) == Completed([seen, "on"])
    assert calls == ["ask", "recorded", seen, seen]


@pytest.mark.parametrize("call", ["now", "progress", "start"])
def test_a_time_limit_does_not_cut_another_record(call: str) -> None:
    makes: dict[str, Callable[[Run], Awaitable[Any]]] = {
        "now": lambda run: run.now(),
        "progress": lambda run: run.progress("so far"),
        "start": lambda run: run.start("child", id="c1"),
    }
    calls: list[str] = []

    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)

            @worker.process("agent", retry=Retry(1))
            async def agent(run: Run) -> Any:
                persist = run.steps.persist

                async def slowly(message: str, make: Any) -> Any:
                    answer = await persist(message, make)
                    if not calls:
                        calls.append("recorded")
                        await asyncio.sleep(60)
                    return answer

                run.steps.persist = slowly
                found = "cut"
                with suppress(TimeoutError):
                    async with asyncio.timeout(LIMIT_S):
                        await makes[call](run)
                    found = "made"
                calls.append(found)
                return await run.signal("go")

            run = await store.processes.start("agent", id="r1")
            await worker.serve(until_idle=True)
            await run.signal("go", "on")
            await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    assert asyncio.run(main()) == Completed("on")
    assert calls == ["recorded", "made", "made"]


@pytest.mark.parametrize("wait", ["sleep", "signal"])
def test_a_time_limit_does_not_cut_a_short_wait(url: str, store: holdfast.BlockingStore, wait: str) -> None:
    worker = Worker(url)
    seen: list[str] = []

    @worker.process("agent", retry=Retry(1))
    async def agent(run: Run) -> Any:
        found = "over"
        try:
            async with asyncio.timeout(LIMIT_S):
                if wait == "sleep":
                    await run.sleep(4 * LIMIT_S)
                else:
                    await run.signal("never", timeout_s=4 * LIMIT_S)
        except TimeoutError as error:
            found = str(error)
        seen.append(found)
        return await run.signal("go")

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    run.signal("go", "on")
    worker.run(until_idle=True)
    assert run.result(timeout_ms=0) == "on"
    assert seen == ["over" if wait == "sleep" else "no signal 'never' within 0.2 s"] * 2


def test_a_step_that_was_cut_in_a_task_may_begin_later_or_never(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    calls: Counter[str] = Counter()

    async def ask(model: str) -> str:
        calls[model] += 1
        await asyncio.sleep(60 if model == "slow" else 0)
        return model

    @worker.process("agent", retry=Retry(1))
    async def agent(run: Run) -> Any:
        tasks = [asyncio.create_task(run.step("fast", ask, "fast"))]
        if not calls["slow"]:  # chance: when the handler runs again, the fast step returns at once
            tasks.append(asyncio.create_task(run.step("slow", ask, "slow")))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks[1:]:
            task.cancel()
        return [tasks[0].result(), await run.signal("go")]

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    run.signal("go", "on")
    worker.run(until_idle=True)
    assert run.outcome(timeout_ms=0) == Completed(["fast", "on"])
    assert calls == {"fast": 1, "slow": 1}


def test_a_function_that_raises_a_cancel_of_its_own_is_a_failed_step(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    calls: list[str] = []

    async def lose() -> None:
        calls.append("lose")
        raise asyncio.CancelledError

    @worker.process("agent", retry=Retry(1))
    async def agent(run: Run) -> Any:
        await run.step("lose", lose, retry=Retry(2, backoff_s=0))

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    outcome = run.outcome(timeout_ms=0)
    assert isinstance(outcome, Failed)
    assert "lose raised CancelledError, and was not cancelled" in outcome.message
    assert len(calls) == 2


def test_a_handler_continues_after_a_task_group_whose_error_it_caught(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url, concurrency=1)
    calls: Counter[str] = Counter()

    async def fail() -> None:
        calls["fail"] += 1
        raise ConnectionError("away")

    async def wait() -> None:
        calls["wait"] += 1
        await asyncio.sleep(60)

    @worker.process("agent", retry=Retry(1))
    async def agent(run: Run) -> Any:
        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(run.step("wait", wait))
                group.create_task(run.step("fail", fail))
        return [await run.step("next", len, "abc"), await run.signal("go")]

    @worker.process("other", retry=Retry(1))
    async def other(run: Run) -> int:
        return await run.step("next", len, "abc")

    run = store.processes.start("agent", id="r1")
    others = [store.processes.start("other", id=f"o{number}") for number in range(3)]
    worker.run(until_idle=True)
    run.signal("go", "on")
    worker.run(until_idle=True)
    assert run.outcome(timeout_ms=0) == Completed([3, "on"])
    assert calls == {"fail": 1, "wait": 1}
    assert [one.outcome(timeout_ms=0) for one in others] == [Completed(3)] * 3  # the same slot ran them


def test_a_time_limit_after_a_task_group_with_an_error_is_named(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    async def fail() -> None:
        raise ConnectionError("away")

    @worker.process("agent", retry=Retry(1), timeout_s=0.5)
    async def agent(run: Run) -> None:
        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        await asyncio.sleep(60)

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    outcome = run.outcome(timeout_ms=0)
    assert isinstance(outcome, Failed)
    assert "agent took longer than 0.5 s" in outcome.message


ENDS: dict[str, Callable[[Run], Awaitable[Any]]] = {
    "sleep": lambda run: run.sleep(3600),
    "signal": lambda run: run.signal("go"),
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_a_branch_that_swallows_its_end_sleeps_all_the_same(
    url: str, store: holdfast.BlockingStore, end: str, nested: bool
) -> None:
    worker = Worker(url)
    calls: list[str] = []

    @worker.process("agent", retry=Retry(1))
    async def agent(run: Run) -> Any:
        async def branch() -> str:
            with suppress(BaseException):
                await ENDS[end](run)
            return "over"

        work = run.gather(branch()) if nested else branch()
        await run.gather(work, run.step("other", len, "abc"))
        await run.step("after", calls.append, "after")

    store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    process = store.processes.get("r1")
    assert process is not None
    assert (process.status, process.suspended, calls) == ("running", True, [])


@pytest.mark.parametrize("in_branch", [False, True])
def test_branches_in_a_finally_block_run_after_the_wait_and_once(
    url: str, store: holdfast.BlockingStore, in_branch: bool
) -> None:
    worker = Worker(url)
    calls: list[str] = []

    @worker.process("agent", retry=Retry(1))
    async def agent(run: Run) -> Any:
        async def wait() -> Any:
            try:
                return await run.signal("go")
            finally:
                await run.gather(run.step("clean up", calls.append, "clean up"))

        return (await run.gather(wait()))[0] if in_branch else await wait()

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    assert calls == []
    run.signal("go", "on")
    worker.run(until_idle=True)
    assert (run.result(timeout_ms=0), calls) == ("on", ["clean up"])


def test_branches_inside_of_a_step_are_refused(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("agent", retry=Retry(1))
    async def agent(run: Run) -> Any:
        return await run.step("outer", run.gather)

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    outcome = run.outcome(timeout_ms=0)
    assert isinstance(outcome, Failed)
    assert "run.gather: is inside of step 'outer'" in outcome.message


def test_a_branch_that_swallows_its_end_continues_the_run_all_the_same(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    calls: list[str] = []

    @worker.process("agent", retry=Retry(1))
    async def agent(run: Run, day: int = 1) -> int:
        async def branch() -> None:
            with suppress(BaseException):
                run.continue_as_new({"day": day + 1})

        if day == 1:
            await run.gather(branch())
            await run.step("after", calls.append, "after")
        return day

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    assert (run.result(timeout_ms=0), calls) == (2, [])
