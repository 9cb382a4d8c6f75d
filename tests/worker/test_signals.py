"""Signals that a handler declares: others are refused when they are sent, and payloads come as the declared types."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

import holdfast
from holdfast.processes import Failed
from holdfast.testing.clock import ManualClock
from holdfast.worker import BlockingRun, Retry, Run, Worker, replay


@dataclasses.dataclass
class Approval:
    by: str


@dataclasses.dataclass
class Refusal:
    why: str


def research(run: BlockingRun) -> Any:
    approval = run.signal("approve")
    return approval.by if isinstance(approval, Approval) else approval


def outcome_of(store: holdfast.BlockingStore) -> Any:
    process = store.processes.get("r1")
    assert process is not None
    return process.outcome


def test_a_handler_declares_its_signals_and_gets_typed_payloads(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    worker.process("research", signals={"approve": Approval, "stop": None})(research)
    run = store.processes.start("research", id="r1")
    worker.run(until_idle=True)
    with pytest.raises(holdfast.errors.UndeclaredSignal, match=r"takes no signal 'aprove': .* 'approve', 'stop'"):
        run.signal("aprove", {"by": "ada"})
    run.signal("approve", Approval("ada").__dict__)
    worker.run(until_idle=True)
    assert run.result(timeout_ms=0) == "ada"
    assert [event.payload for event in store.events.after("r1", type="run.signals")] == [["approve", "stop"]]
    assert replay(store, worker, "r1").ok
    with pytest.raises(holdfast.AlreadyTerminal, match="gets no signal 'approve'"):
        run.signal("approve", {"by": "ada"})


def test_the_newest_declaration_holds(url: str, store: holdfast.BlockingStore) -> None:
    run = store.processes.start("research", id="r1")
    worker = Worker(url)
    for signals in (["approve"], {"approve": None, "stop": None}, None):
        worker = Worker(url)
        worker.process("research", signals=signals)(research)
        worker.run(until_idle=True)
        if signals != ["approve"]:
            run.signal("stop")
        else:
            with pytest.raises(holdfast.errors.UndeclaredSignal):
                run.signal("stop")
            store.events.append("r1", "run.signals", None)
            run.signal("wake-up")  # so that the next worker claims the run
    run.signal("approve", 7)
    worker.run(until_idle=True)
    assert run.result(timeout_ms=0) == 7


def test_the_next_run_of_a_chain_takes_the_signals_that_were_not_taken(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("watch", signals=["news"])
    def watch(run: BlockingRun, day: int) -> Any:
        news = run.signal("news")
        return news if day == 3 else run.continue_as_new({"day": day + 1})

    run = store.processes.start("watch", {"day": 1}, id="r1")
    for news in (1, 2, 3):
        run.signal("news", news)
    worker.run(until_idle=True)
    assert run.result(timeout_ms=0) == 3


def test_a_wait_for_a_signal_that_is_not_declared_fails_by_name() -> None:
    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)
            worker.process("research", signals=["other"], retry=Retry(1))(research)
            run = await store.processes.start("research", id="r1")
            await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    outcome = asyncio.run(main())
    assert isinstance(outcome, Failed)
    assert "run.signal: 'approve' is not declared: the handler declares 'other'" in outcome.message


@pytest.mark.parametrize("signals", ["approve", 7, ["a b"], [""], ["holdfast-child"], {1: None}])
def test_signals_that_cannot_be_sent_are_not_declared(signals: Any) -> None:
    worker = Worker("memory:")
    with pytest.raises(holdfast.InvalidRequest, match="signals"):
        worker.process("research", signals=signals)(research)


@pytest.mark.parametrize("signals", [{"approve": object}, {"approve": Approval | Refusal}])
def test_a_type_that_no_payload_can_have_is_not_declared(signals: Any) -> None:
    with pytest.raises(holdfast.InvalidRequest, match=r"signals: 'approve' declares .*, which no payload can be"):
        Worker("memory:").process("research", signals=signals)(research)


@pytest.mark.parametrize("signals", [None, {"approve": str}])
def test_a_signal_that_is_sent_after_its_deadline_is_left_for_the_next_call(signals: Any) -> None:
    async def main() -> list[Any]:
        clock = ManualClock()
        async with holdfast.open("memory:", clock=clock) as store:
            worker = Worker(store)

            @worker.process("research", signals=signals, retry=Retry(1))
            async def research(run: Run) -> list[Any]:
                try:
                    first = await run.signal("approve", timeout_s=60)
                except TimeoutError:
                    first = "timed out"
                await run.step("note", str, first)
                second = await run.signal("approve")
                await run.sleep(60)
                return [first, second]

            ends: list[Any] = []
            for number, sent_after_ms in enumerate((60_000, 60_001)):
                run = await store.processes.start("research", id=f"r{number}")
                await worker.serve(until_idle=True)
                clock.advance(sent_after_ms)
                await run.signal("approve", "one")
                clock.advance(3_600_000)  # no worker looks meanwhile
                await worker.serve(until_idle=True)
                await run.signal("approve", "two")
                await worker.serve(until_idle=True)
                clock.advance(60_000)
                await worker.serve(until_idle=True)
                ends.append(await run.result(timeout_ms=0))
            return ends

    assert asyncio.run(main()) == [["one", "two"], ["timed out", "one"]]
