"""Runs whose code has changed: they are held with the error, lose no attempt, and continue with code that fits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

import holdfast
from holdfast.processes import Cancelled, Completed, Process
from holdfast.testing.clock import ManualClock
from holdfast.testing.crashes import survives_crashes
from holdfast.worker import BlockingRun, Failure, Retry, Run, StepConflict, Worker, run_facts
from holdfast.worker.retries import FIRST_HOLD_MS, LONGEST_HOLD_MS, hold_delay_ms

LONGEST_WITH_JITTER_MS = 330_000


class Deployed:
    """Workers that come one after the other to a store in memory, each with code of its own."""

    def __init__(self, store: holdfast.Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.failures: list[Failure] = []

    async def serve(self, handler: Any, retry: Retry | None = None) -> Worker:
        """Serve with this handler until nothing can be claimed."""
        worker = Worker(self.store)
        worker.process("research", retry=retry or Retry(2, backoff_s=0))(handler)
        worker.on_failure(self.failures.append)
        await worker.serve(until_idle=True)
        return worker

    async def process(self) -> Process:
        """Return the run as it stands."""
        found = await self.store.processes.get("r1")
        assert found is not None
        return found


def in_memory(play: Callable[[Deployed], Awaitable[None]]) -> None:
    """Play with a store in memory and a run that is due."""

    async def main() -> None:
        clock = ManualClock()
        async with holdfast.open("memory:", clock=clock) as store:
            await store.processes.start("research", id="r1")
            await play(Deployed(store, clock))

    asyncio.run(main())


class Effects:
    """Counts the calls of steps."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def plan(self, question: str) -> str:
        self.calls.append(f"plan {question}")
        return question

    def search(self, question: str) -> str:
        self.calls.append(f"search {question}")
        return question.upper()


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_run_continues_when_the_right_code_comes_back(url: str, store: holdfast.BlockingStore, way: str) -> None:
    effects = Effects()
    deployed = {"question": "why"}

    async def of_async(run: Run) -> Any:
        plan = await run.step("plan", effects.plan, deployed["question"])
        await run.signal("go")
        return await run.step("search", effects.search, plan)

    def of_thread(run: BlockingRun) -> Any:
        plan = run.step("plan", effects.plan, deployed["question"])
        run.signal("go")
        return run.step("search", effects.search, plan)

    def serve() -> Worker:
        worker = Worker(url)
        worker.process("research", retry=Retry(1))(of_async if way == "async" else of_thread)
        worker.run(until_idle=True)
        return worker

    store.processes.start("research", id="r1")
    serve()
    deployed["question"] = "how"
    store.events.signal("r1", "go")
    assert (serve().tally.held, effects.calls) == (1, ["plan why"])
    held = store.processes.get("r1")
    assert held is not None
    assert (held.is_held, held.status, held.attempt) == (True, "running", 0)
    assert held.last_error is not None
    assert held.last_error.startswith("StepConflict: run 'r1', step 'plan': its arguments are not those ")
    waits = run_facts(store, "r1").wait
    assert waits is not None
    assert (waits.kind, waits.until_ms) == ("code", held.due_at_ms)
    [cause] = store.maintenance.explain_process("r1").causes
    assert (cause.name, cause.error, cause.next_at_ms) == ("code-changed", held.last_error, held.due_at_ms)
    assert store.maintenance.verify().findings == ()
    deployed["question"] = "why"
    store.events.signal("r1", "go")  # it wakes a run that is held, too
    serve()
    assert effects.calls == ["plan why", "search why"]
    ended = store.processes.get("r1")
    assert ended is not None
    assert ended.outcome == Completed("WHY")


@dataclass(frozen=True)
class Prompt:
    """A value that is called."""

    text: str

    def __call__(self, question: str) -> str:
        return f"{self.text} {question}"

    def ask(self, question: str) -> str:
        return f"{self.text} {question}"


class OtherPrompt(msgspec.Struct, frozen=True):
    text: str

    def __call__(self, question: str) -> str:
        return f"{self.text} {question}"


class Counting:
    """A callable whose state is its own."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, question: str) -> str:
        self.calls += 1
        return question

    def ask(self, question: str) -> str:
        return question

    @classmethod
    def make(cls, question: str) -> str:
        return question


class OtherCounting(Counting):
    """Has the methods of its base."""


class Holding(pydantic.BaseModel):
    """A model that has no form as a document."""

    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    client: Any
    at: int = 0


PAIRS = [(1, number) for number in range(101)]
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


def ask(text: str, question: str, *, mood: str = "polite") -> str:
    return f"{text} {question} {mood}"


def tell(text: str, question: str) -> str:
    return f"{text} {question}"


def pass_on(*given: Any) -> str:
    return str(given[-1])


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (partial(ask, "say"), partial(tell, "say"), "its function was ask, and is tell now"),
        (partial(ask, "say"), partial(ask, "tell"), "its arguments"),
        (partial(ask, "say"), partial(ask, "say", mood="rude"), "its arguments"),
        (partial(partial(ask, "say"), mood="rude"), partial(ask, "say", mood="rude"), None),
        (partial(Prompt("say")), Prompt("say"), None),
        (Prompt("say"), Prompt("tell"), "its arguments"),
        (Prompt("say").ask, Prompt("tell").ask, "its arguments"),
        (Prompt("say"), OtherPrompt("say"), "its function was Prompt, and is OtherPrompt now"),
        (OtherPrompt("say"), OtherPrompt("tell"), "its arguments"),
        (Counting(), Counting(), None),
        (partial(pass_on, Counting(), "say"), partial(pass_on, Counting(), "tell"), "its arguments"),
        (
            partial(pass_on, {"by": [Counting(), "say"]}),
            partial(pass_on, {"by": [Counting(), "tell"]}),
            "its arguments",
        ),
        (partial(pass_on, Counting(), "say"), partial(pass_on, Counting(), "say"), None),
        (partial(pass_on, ask), partial(pass_on, tell), "its arguments"),
        (partial(pass_on, ask), partial(pass_on, ask), None),
        (partial(pass_on, Counting), partial(pass_on, Counting().__call__), "its arguments"),
        (partial(pass_on, {1: "say"}), partial(pass_on, {1: "tell"}), "its arguments"),
        (partial(pass_on, {2: 3, 1: 4}), partial(pass_on, {1: 4, 2: 3}), None),
        (partial(pass_on, Counting(), {1: "say"}), partial(pass_on, Counting(), {1: "tell"}), "its arguments"),
        (partial(pass_on, {(1, 2): 3}), partial(pass_on, {(1, 2): 4}), "its arguments"),
        (partial(pass_on, {(1, 2): 3, (3, 4): 5}), partial(pass_on, {(3, 4): 5, (1, 2): 3}), None),
        (partial(pass_on, dict.fromkeys(PAIRS, 1)), partial(pass_on, dict.fromkeys(PAIRS, 2)), None),  # too many parts
        (partial(pass_on, "\ud800", "say"), partial(pass_on, "\ud800", "tell"), "its arguments"),
        (partial(pass_on, CYCLE, "say"), partial(pass_on, CYCLE, "tell"), "its arguments"),
        (partial(pass_on, Holding(client=Counting())), partial(pass_on, Holding(client=Counting())), None),
        (partial(pass_on, Holding(client=CYCLE, at=1)), partial(pass_on, Holding(client=CYCLE, at=2)), "its arguments"),
        (partial(pass_on, partial(ask, "say")), partial(pass_on, partial(ask, "tell")), "its arguments"),
        (partial(pass_on, partial(ask, "say")), partial(pass_on, partial(tell, "say")), "its arguments"),
        ("say {}".format, "tell {}".format, "its arguments"),
        ("say {}".format, "say {}".format, None),
        (Counting().ask, OtherCounting().ask, "its function was Counting.ask, and is OtherCounting.ask now"),
        (Counting.make, OtherCounting.make, "its function was Counting.make, and is OtherCounting.make now"),
        (Counting().ask, Counting().ask, None),
        (partial(pass_on, Path("say")), partial(pass_on, Path("tell")), "its arguments"),
        (partial(pass_on, Path("say")), partial(pass_on, Path("say")), None),
    ],
)
def test_a_step_of_a_partial_or_an_object_that_changed_is_noticed(before: Any, after: Any, problem: str | None) -> None:
    async def play(deployed: Deployed) -> None:
        called = before

        async def handler(run: Run) -> Any:
            said = await run.step("plan", called, "why")
            await run.signal("go")
            return said

        await deployed.serve(handler)
        called = after
        await deployed.store.events.signal("r1", "go")
        await deployed.serve(handler)
        process = await deployed.process()
        assert process.is_held == (problem is not None)
        assert (problem or "") in (process.last_error or "")

    in_memory(play)


def test_a_step_that_was_left_out_is_noticed_at_the_next_wait() -> None:
    effects = Effects()

    async def play(deployed: Deployed) -> None:
        async def handler(run: Run) -> None:
            await run.step("plan", effects.plan, "why")
            await run.signal("go")

        async def changed(run: Run) -> None:
            await run.signal("go")
            await run.signal("stop")
            await run.step("search", effects.search, "why")

        await deployed.serve(handler)
        await deployed.store.events.signal("r1", "go")
        await deployed.serve(changed)
        held = await deployed.process()
        assert held.is_held
        assert "step 'plan': it is recorded, and the handler waits before it" in (held.last_error or "")
        assert effects.calls == ["plan why"]

    in_memory(play)


@pytest.mark.parametrize("way", ["tasks", "threads"])
def test_tasks_and_threads_may_ask_after_the_handler_waits(way: str) -> None:
    """A signal wakes the run before the time of its sleep."""

    async def play(deployed: Deployed) -> None:
        async def counting(run: Run) -> int:
            return await run.step("first", len, "a") + await run.step("second", len, "b")

        async def with_tasks(run: Run) -> int:
            count = asyncio.create_task(counting(run))
            if await run.step("begun", bool, 1) and (await run.store.processes.get("r1")).event_count < 4:
                await count
            await run.sleep(60)
            return await count

        def with_threads(run: BlockingRun) -> int:
            def count() -> int:
                return run.step("first", len, "a") + run.step("second", len, "b")

            with ThreadPoolExecutor() as threads:
                counted = threads.submit(count)
                if run.step("begun", bool, 1) and run.store.processes.get("r1").event_count < 4:
                    counted.result()
                run.sleep(60)
                return counted.result()

        handler = with_tasks if way == "tasks" else with_threads
        await deployed.serve(handler)
        await deployed.store.events.signal("r1", "other")
        await deployed.serve(handler)
        assert not (await deployed.process()).is_held, (await deployed.process()).last_error
        deployed.clock.advance(60_000)
        await deployed.serve(handler)
        assert (await deployed.process()).outcome == Completed(2)

    in_memory(play)


@pytest.mark.parametrize("way", ["waits", "ends"])
def test_children_with_random_ids_are_not_started_without_an_end(way: str) -> None:
    """The end of a child wakes its parent, also one that is held."""

    async def play(deployed: Deployed) -> None:
        ids = itertools.count()

        async def handler(run: Run) -> Any:
            child = await run.start("child", id=f"child-{next(ids)}", detached=way == "ends")
            if way == "waits":
                return await child.result()
            if run.attempt == 1:
                raise OSError("no answer")
            return None

        async def child(run: Run) -> None: ...

        worker = Worker(deployed.store)
        worker.process("research", retry=Retry(3, backoff_s=0))(handler)
        worker.process("child")(child)
        await worker.serve(until_idle=True)
        held = await deployed.process()
        assert held.is_held
        assert "run.start of child 'child-0': it is recorded, and the handler" in (held.last_error or "")
        assert len(await deployed.store.processes.list(status="any")) <= 1 + 2

    in_memory(play)


def test_a_handler_that_is_not_deterministic_is_reported_and_its_run_can_be_saved() -> None:
    """A retry leaves out the record that no code can meet, and keeps the others."""
    effects = Effects()
    chance = itertools.count()

    async def play(deployed: Deployed) -> None:
        async def drifts(run: Run) -> Any:
            plan = await run.step("plan", effects.plan, "why")
            await run.step("search", effects.search, f"{plan} {next(chance)}")
            await run.signal("go")

        async def mended(run: Run) -> Any:
            plan = await run.step("plan", effects.plan, "why")
            return await run.step("search again", effects.search, plan)

        await deployed.serve(drifts)
        await deployed.store.events.signal("r1", "go")
        await deployed.serve(drifts)
        held = await deployed.process()
        assert held.is_held
        assert held.last_error is not None
        why = await deployed.store.maintenance.explain_process("r1")
        for said in (held.last_error, why.causes[0].problem):
            assert "not deterministic" in said
            assert "holdfast runs replay r1 --app" in said
        await deployed.store.processes.handle("r1").cancel()
        await deployed.serve(mended)
        retried = await deployed.store.processes.retry("r1")
        await deployed.serve(mended)
        assert await retried.result(timeout_ms=0) == "WHY"
        assert effects.calls == ["plan why", "search why 0", "search why"]

    in_memory(play)


def test_a_hold_is_neither_an_attempt_nor_does_it_give_one_back() -> None:
    async def play(deployed: Deployed) -> None:
        async def fails(run: Run) -> None:
            await run.step("plan", int, 7)
            raise OSError("no answer")

        async def changed(run: Run) -> None:
            await run.step("plan", int, 8)

        await deployed.serve(fails, Retry(2, backoff_s=1))
        for _ in range(3):
            deployed.clock.advance(LONGEST_WITH_JITTER_MS)
            await deployed.serve(changed)
        held = await deployed.process()
        assert (held.is_held, held.attempt) == (True, 1)
        deployed.clock.advance(LONGEST_WITH_JITTER_MS)
        await deployed.serve(fails, Retry(2, backoff_s=1))
        assert (await deployed.process()).status == "failed", "its second attempt was its last"

    in_memory(play)


def test_a_held_run_is_tried_again_by_itself_and_ever_more_rarely() -> None:
    tried: list[int] = []

    async def play(deployed: Deployed) -> None:
        async def asks(run: Run) -> Any:
            await run.step("plan", int, 7)
            return await run.signal("go")

        async def changed(run: Run) -> None:
            tried.append(deployed.clock.now_ms())
            await run.step("plan", int, 8)

        await deployed.serve(asks)
        await deployed.store.events.signal("r1", "go", "gone")
        for _ in range(12):
            await deployed.serve(changed)
            due_at_ms = (await deployed.process()).due_at_ms
            assert due_at_ms is not None
            deployed.clock.advance(due_at_ms - deployed.clock.now_ms())
        log = await deployed.store.events.after("r1", limit=100)
        assert [event.type for event in log] == ["step", "signal.go", "step"], "the hold is recorded once"
        recorded: Any = log[2].payload
        assert recorded["value"]["step"] == "plan"
        await deployed.serve(asks)
        assert (await deployed.process()).outcome == Completed("gone")
        assert [failure.held for failure in deployed.failures] == [True] * 12
        assert "is held, because its code has changed, tried again in" in str(deployed.failures[0])

    in_memory(play)
    delays = [after - before for before, after in itertools.pairwise(tried)]
    assert 0.9 * FIRST_HOLD_MS <= delays[0] <= 1.1 * FIRST_HOLD_MS
    assert 0.9 * LONGEST_HOLD_MS <= delays[-1] <= 1.1 * LONGEST_HOLD_MS
    assert sum(delays[:6]) > 6 * FIRST_HOLD_MS * 1.1, "the delays grow"


def test_a_hold_lasts_as_long_again_within_bounds() -> None:
    assert [hold_delay_ms(held_ms, chance=0.5) for held_ms in (0, 20_000, 10**9)] == [10_000, 20_000, 300_000]


def test_a_handler_that_catches_the_conflict_calls_nothing_more() -> None:
    effects = Effects()

    async def play(deployed: Deployed) -> None:
        async def asks(run: Run) -> Any:
            await run.step("plan", effects.plan, "why")
            return await run.signal("go")

        async def swallows(run: Run) -> Any:
            for question in ("how", "when"):
                try:
                    await run.step("plan", effects.plan, question)
                except StepConflict:
                    await run.step(f"search {question}", effects.search, question)
            return "done"

        async def replaces(run: Run) -> Any:
            try:
                await run.step("plan", effects.plan, "how")
            except Exception:
                raise OSError("no plan") from None

        await deployed.serve(asks)
        for number, changed in enumerate((swallows, replaces)):
            await deployed.store.events.signal("r1", "go", number)
            await deployed.serve(changed)
            held = await deployed.process()
            assert held.is_held, changed
            assert held.last_error is not None
            assert "step 'plan'" in held.last_error

    in_memory(play)
    assert effects.calls == ["plan why"]


def test_a_held_run_is_cancelled_on_request() -> None:
    async def play(deployed: Deployed) -> None:
        async def asks(run: Run) -> Any:
            await run.step("plan", int, 7)
            return await run.signal("go")

        async def changed(run: Run) -> Any:
            return await run.step("plan", int, 8)

        await deployed.serve(asks)
        await deployed.store.events.signal("r1", "go")
        await deployed.serve(changed)
        await deployed.store.events.request_cancel("r1", reason="not needed")
        await deployed.serve(changed)
        assert (await deployed.process()).outcome == Cancelled("not needed")

    in_memory(play)


@dataclass
class Short:
    """A plan as it was."""

    steps: int


@dataclass
class Long:
    """A plan as it is now."""

    steps: int
    why: str


def test_a_recorded_result_that_is_not_of_the_declared_type_any_more_holds_the_run() -> None:
    def plan_before() -> Short:
        return Short(7)

    def plan_now() -> Long:
        return Long(7, "why")

    plan_before.__qualname__ = plan_now.__qualname__ = "plan"

    async def play(deployed: Deployed) -> None:
        async def asks(run: Run) -> Any:
            await run.step("plan", plan_before)
            return await run.signal("go")

        async def changed(run: Run) -> Any:
            return await run.step("plan", plan_now)

        await deployed.serve(asks)
        await deployed.store.events.signal("r1", "go")
        await deployed.serve(changed)
        held = await deployed.process()
        assert held.is_held
        assert held.last_error is not None
        assert "its recorded value is not a valid Long" in held.last_error

    in_memory(play)


def test_a_handler_without_the_same_steps_at_each_call_fails_its_crash_test_with_the_reason() -> None:
    worker = Worker("memory:")
    calls: list[int] = []

    @worker.process("research")
    async def research(run: Run) -> Any:
        calls.append(1)
        await run.step("plan", int, len(calls))
        return await run.step("search", int, 7)

    with pytest.raises(AssertionError, match="ended as nothing: it is held: StepConflict: run 'run', step 'plan'"):
        survives_crashes(worker, "research", setup=calls.clear)
