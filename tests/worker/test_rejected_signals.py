"""Signals that are not of the declared type: rejected with a record, and the run waits for the next one."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.cli import main as command_line
from holdfast.processes import Completed
from holdfast.testing.crashes import survives_crashes
from holdfast.worker import BlockingRun, Retry, Run, Worker, replay, run_facts


@dataclasses.dataclass
class Approval:
    by: str


@dataclasses.dataclass
class Signature:
    by: str
    at: int


def typed(store: Any, handler: Any, declared: Any = Approval) -> Worker:
    """Return a worker with a handler that takes typed signals, and has one attempt."""
    worker = Worker(store)
    worker.process("research", signals={"approve": declared}, retry=Retry(1))(handler)
    return worker


def in_memory(play: Callable[[holdfast.Store], Awaitable[None]]) -> None:
    """Play with a store in memory and a run that is due."""

    async def main() -> None:
        async with holdfast.open("memory:") as store:
            await store.processes.start("research", id="r1")
            await play(store)

    asyncio.run(main())


async def steps_of(store: holdfast.Store) -> list[str]:
    """Return the names of the recorded steps."""
    log = await store.events.after("r1", limit=100)
    payloads: list[Any] = [event.payload for event in log if event.type == "step"]
    return [payload["name"] for payload in payloads]


async def process_of(store: holdfast.Store) -> holdfast.processes.Process:
    """Return the run as it stands."""
    found = await store.processes.get("r1")
    assert found is not None
    return found


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_run_waits_for_the_next_signal_and_says_which_it_rejected(
    url: str, store: holdfast.BlockingStore, way: str, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    async def of_async(run: Run) -> str:
        return str((await run.signal("approve")).by)

    def of_thread(run: BlockingRun) -> str:
        return str(run.signal("approve").by)

    worker = typed(url, of_async if way == "async" else of_thread)
    run = store.processes.start("research", id="r1")
    run.signal("approve", {"by": 7})
    run.signal("approve", None)
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        worker.run(until_idle=True)
    assert caplog.text.count("a signal 'approve' of run r1 was rejected") == 2
    assert worker.tally.failed == worker.tally.dead == 0
    facts = run_facts(store, "r1")
    assert [(one.name, one.ordinal) for one in facts.rejected] == [("approve", 1), ("approve", 2)]
    assert "'approve' that is not a valid Approval: Expected `str`, got `int` - at `$.by`" in facts.rejected[0].error
    assert facts.wait is not None
    assert (facts.wait.kind, facts.wait.name) == ("signal", "approve")
    assert command_line(["runs", "show", "r1", "--url", url]) == 0
    assert "signal 1 of 'approve' that is not a valid Approval" in " ".join(capsys.readouterr().out.split())
    assert command_line(["runs", "show", "r1", "--url", url, "--json"]) == 0
    assert [one["ordinal"] for one in json.loads(capsys.readouterr().out)["rejected"]] == [1, 2]
    run.signal("approve", {"by": "ada"})
    worker.run(until_idle=True)
    assert run.result(timeout_ms=0) == "ada"
    assert replay(store, worker, "r1").ok


def test_a_rejected_signal_does_not_end_the_time_limit_of_a_wait() -> None:
    async def play(store: holdfast.Store) -> None:
        async def asks(run: Run) -> str:
            try:
                return str((await run.signal("approve", timeout_s=0.01)).by)
            except TimeoutError:
                return "nobody"

        await store.events.signal("r1", "approve", "no")
        await typed(store, asks).serve(until_idle=True)
        assert (await process_of(store)).outcome == Completed("nobody")

    in_memory(play)


def test_branches_share_what_fits() -> None:
    async def play(store: holdfast.Store) -> None:
        async def asks(run: Run) -> Any:
            both = await run.gather(run.signal("approve"), run.signal("approve"))
            return sorted(one.by for one in both)

        for payload in ("no", {"by": "bob"}, 7, {"by": "ada"}):
            await store.events.signal("r1", "approve", payload)
        await typed(store, asks).serve(until_idle=True)
        assert (await process_of(store)).outcome == Completed(["ada", "bob"])

    in_memory(play)


def test_a_rejected_signal_is_not_carried_over_to_the_next_run() -> None:
    async def play(store: holdfast.Store) -> None:
        async def asks(run: Run, left: int = 1) -> Any:
            found = await run.signal("approve")
            if left:
                run.continue_as_new({"left": 0})
            return found.by

        worker = typed(store, asks)
        await store.events.signal("r1", "approve", "no")
        await worker.serve(until_idle=True)
        for payload in ({"by": "bob"}, {"by": "ada"}):
            await store.events.signal("r1", "approve", payload)
        await worker.serve(until_idle=True)
        following = (await process_of(store)).continued_as
        assert following is not None
        sent = await store.events.after(following, type="signal.approve", limit=10)
        assert [event.payload for event in sent] == [{"by": "ada"}]

    in_memory(play)


def test_a_signal_that_was_taken_before_its_type_changed_holds_the_run() -> None:
    async def play(store: holdfast.Store) -> None:
        async def asks(run: Run) -> Any:
            await run.signal("approve")
            return await run.signal("go")

        worker = Worker(store)
        worker.process("research", signals={"approve": Approval, "go": None})(asks)
        await store.events.signal("r1", "approve", {"by": "ada"})
        await worker.serve(until_idle=True)
        changed = Worker(store)
        changed.process("research", signals={"approve": Signature, "go": None})(asks)
        await store.events.signal("r1", "go")
        await changed.serve(until_idle=True)
        held = await process_of(store)
        assert held.is_held
        assert "it took a signal 'approve' that is not a valid Signature" in (held.last_error or "")
        assert await steps_of(store) == ["~took:approve:1", held_at(await steps_of(store))]

    in_memory(play)


def held_at(names: list[str]) -> str:
    """Return the name of the record of the hold."""
    [found] = [name for name in names if name.startswith("~held:")]
    return found


def test_a_signal_that_was_taken_before_it_had_a_type_holds_the_run() -> None:
    async def play(store: holdfast.Store) -> None:
        async def asks(run: Run) -> Any:
            await run.signal("approve")
            await run.step("plan", int, 7)
            return await run.signal("go")

        worker = Worker(store)
        worker.process("research")(asks)
        await store.events.signal("r1", "approve", "yes")
        await worker.serve(until_idle=True)
        changed = Worker(store)
        changed.process("research", signals={"approve": Approval, "go": None})(asks)
        await store.events.signal("r1", "go")
        await changed.serve(until_idle=True)
        held = await process_of(store)
        assert held.is_held
        assert "step 'plan': it came after a signal 'approve' that is not a valid Approval" in (held.last_error or "")

    in_memory(play)


def test_a_retry_judges_a_rejected_signal_again(url: str, store: holdfast.BlockingStore) -> None:
    async def fails(run: Run) -> Any:
        await run.signal("approve")
        raise OSError("no answer")

    async def answers(run: Run) -> Any:
        return [(await run.signal("approve")).by, await run.signal("approve")]

    run = store.processes.start("research", id="r1")
    for payload in ("no", {"by": "ada"}):
        run.signal("approve", payload)
    typed(url, fails).run(until_idle=True)
    retried = store.processes.retry("r1")
    typed(url, answers, Approval | str).run(until_idle=True)
    assert retried.result(timeout_ms=0) == ["ada", "no"]


def test_a_run_with_a_rejected_signal_survives_crashes() -> None:
    worker = Worker("memory:")

    @worker.process("research", signals={"approve": Approval})
    async def research(run: Run) -> Any:
        await run.step("plan", int, 7)
        await run.store.events.signal(run.id, "approve", "no", replay_key="no")
        await run.store.events.signal(run.id, "approve", {"by": "ada"}, replay_key="yes")
        found = await run.signal("approve")
        await run.sleep(60)
        return found.by

    assert survives_crashes(worker, "research").result == "ada"
