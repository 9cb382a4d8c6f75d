"""A run that is cancelled makes no further call, whatever its handler catches, and ends as cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.processes import Cancelled
from holdfast.worker import BlockingRun, Run, Worker, replay

CALLS: dict[str, Callable[[Run], Awaitable[Any]]] = {
    "step": lambda run: run.step("next", len, "abc"),
    "recorded step": lambda run: run.step("before", len, "abc"),
    "sleep": lambda run: run.sleep(0),
    "signal": lambda run: run.signal("go", timeout_s=0),
    "start": lambda run: run.start("child", id="c1"),
    "progress": lambda run: run.progress("so far"),
    "uuid": lambda run: run.uuid(),
    "branch": lambda run: run.gather(run.step("next", len, "abc")),
}


def cancel_inside(store: holdfast.BlockingStore, worker: Worker, begins: threading.Event) -> float:
    """Start a run, cancel it once it is in its wait, and return the time until it has ended."""
    run = store.processes.start("agent", id="r1")
    serving = threading.Thread(target=lambda: worker.run(until_idle=True))
    serving.start()
    assert begins.wait(30)
    began_s = time.monotonic()
    run.cancel(reason="too late")
    outcome = run.outcome(timeout_ms=30_000)
    took_s = time.monotonic() - began_s
    serving.join(30)
    assert isinstance(outcome, Cancelled)
    assert outcome.message == "too late"
    return took_s


@pytest.mark.parametrize("name", CALLS)
def test_a_handler_that_swallows_the_cancel_makes_no_further_call(
    url: str, store: holdfast.BlockingStore, name: str
) -> None:
    worker = Worker(url)
    begins = threading.Event()
    raised: list[type[BaseException]] = []

    async def work() -> None:
        begins.set()
        await asyncio.sleep(30)

    @worker.process("agent")
    async def agent(run: Run) -> str:
        await run.step("before", len, "abc")
        for call in (lambda: run.step("work", work), lambda: CALLS[name](run), lambda: CALLS[name](run)):
            try:
                await call()
            except BaseException as error:
                raised.append(type(error))
        assert run.cancelled
        return "all done"

    cancel_inside(store, worker, begins)
    assert raised == [asyncio.CancelledError] * 3
    events = store.events.after("r1")
    steps: list[Any] = [event.payload for event in events if event.type != "process.cancel_requested"]
    assert [one.get("name") for one in steps[:-1]] == ["before"]
    assert store.processes.get("c1") is None
    assert replay(store, worker, "r1").ok


def test_a_plain_handler_that_swallows_the_cancel_makes_no_further_call(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = Worker(url)
    begins = threading.Event()
    raised: list[type[BaseException]] = []

    @worker.process("agent")
    def agent(run: BlockingRun) -> str:
        begins.set()
        for call in (lambda: run.signal("go", timeout_s=4), run.uuid, lambda: run.step("next", len, "abc")):
            try:
                call()
            except BaseException as error:
                raised.append(type(error))
        return "all done"

    cancel_inside(store, worker, begins)
    assert raised == [asyncio.CancelledError] * 3


@pytest.mark.parametrize("way", ["async", "plain"])
def test_a_cancel_cuts_a_short_wait_for_a_signal(url: str, store: holdfast.BlockingStore, way: str) -> None:
    worker = Worker(url)
    begins = threading.Event()

    def plain(run: BlockingRun) -> None:
        begins.set()
        run.signal("go", timeout_s=4.9)

    async def agent(run: Run) -> None:
        begins.set()
        await run.signal("go", timeout_s=4.9)

    worker.process("agent")(plain if way == "plain" else agent)
    assert cancel_inside(store, worker, begins) < 3


@pytest.mark.parametrize("comes", ["before the call", "during the call"])
def test_a_request_to_cancel_without_a_payload_counts(comes: str) -> None:
    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)

            async def cancel() -> None:
                await store.events.append("r1", "process.cancel_requested", None, replay_key="c1")

            @worker.process("agent")
            async def agent(run: Run) -> None:
                await cancel()
                await asyncio.sleep(30)

            run = await store.processes.start("agent", id="r1")
            if comes == "before the call":
                await cancel()
            async with asyncio.timeout(10):
                await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    assert asyncio.run(main()) == Cancelled("cancelled on request")
