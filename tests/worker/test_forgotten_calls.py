"""A handler that catches the end of its call, or forgets an `await`, loses nothing silently."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import holdfast
from holdfast.worker import BlockingRun, Retry, Run, Worker, replay


def caught(run: Any, n: int) -> str:
    with suppress(BaseException):
        run.continue_as_new({"n": n + 1})
    return "first"


def in_finally(run: Any, n: int) -> str:
    try:
        run.continue_as_new({"n": n + 1})
    finally:
        return "first"  # noqa: B012 - the mistake


def calls_on(run: Any, n: int) -> str:
    try:
        run.continue_as_new({"n": n + 1})
    except BaseException:
        run.continue_as_new({"n": 7})
    return "first"


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("swallow", [caught, in_finally, calls_on])
def test_a_run_continues_as_new_though_its_handler_caught_that(
    url: str, store: holdfast.BlockingStore, swallow: Any, is_async: bool
) -> None:
    worker = Worker(url)

    async def count(run: Run, n: int = 0) -> Any:
        return n or swallow(run, n)

    def plain(run: BlockingRun, n: int = 0) -> Any:
        return n or swallow(run, n)

    worker.process("count", retry=Retry(1))(count if is_async else plain)
    handle = store.processes.start("count", id="r1")
    worker.run(until_idle=True)
    assert handle.result(timeout_ms=1) == 1
    assert replay(store, worker, "r1").ok


def test_a_branch_that_caught_its_end_continues_the_run_as_new(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("count", retry=Retry(1))
    async def count(run: Run, n: int = 0) -> Any:
        async def branch() -> str:
            return caught(run, n)

        return n or await run.gather(branch(), run.step("other", str, "a"))

    handle = store.processes.start("count")
    worker.run(until_idle=True)
    assert handle.result(timeout_ms=1) == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda run: run.step("charge", print, "effect"), r"run.step\('charge'\)"),
        (lambda run: run.start("child"), r"run.start\('child'\)"),
        (lambda run: run.progress({"a": 1}), r"run.progress\(…\)"),
        (lambda run: run.now(), r"run.now\(\)"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_call_that_was_not_awaited_fails_the_run(
    url: str, store: holdfast.BlockingStore, call: Any, said: str
) -> None:
    worker = Worker(url)

    @worker.process("order", retry=Retry(1))
    async def order(run: Run) -> int:
        await run.step("before", str, "a")
        call(run)
        return 1

    handle = store.processes.start("order")
    worker.run(until_idle=True)
    with pytest.raises(Exception, match=rf"{said}.*was not awaited"):
        handle.result(timeout_ms=1)


def test_many_calls_of_a_run_are_not_kept(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    kept: list[int] = []

    @worker.process("many", retry=Retry(1))
    async def many(run: Run) -> int:
        for number in range(300):
            await run.step(f"one {number}", int, number)
        answers = await run.gather(*(run.step(f"two {number}", int, number) for number in range(200)))
        kept.append(len(vars(run.steps.unawaited)["_calls"]))
        return len(answers)

    handle = store.processes.start("many")
    worker.run(until_idle=True)
    assert (handle.result(timeout_ms=1), kept[0] < 400) == (200, True)


def test_gather_in_a_plain_handler_is_refused(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    worker.process("plain", retry=Retry(1))(lambda run: run.gather(1, 2))
    handle = store.processes.start("plain")
    worker.run(until_idle=True)
    with pytest.raises(Exception, match=r"run\.gather: needs an `async def` handler"):
        handle.result(timeout_ms=1)
