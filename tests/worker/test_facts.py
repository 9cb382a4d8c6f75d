"""The facts of a run say what it waits for, how its steps went, and which worker runs it."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

import holdfast
from holdfast.cli import main
from holdfast.worker import BlockingRun, GiveUp, Retry, Run, Worker, run_facts


def broken() -> None:
    raise OSError("no answer")


def test_the_facts_name_the_wait_the_steps_and_the_children(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("agent")
    async def agent(run: Run, way: str) -> Any:
        await run.step("plan", int)
        if way == "signal":
            await run.signal("approve")
        elif way == "sleep":
            await run.sleep(3600)
        elif way == "child":
            await (await run.start("agent", {"way": "signal"}, id="c")).result()
        elif way == "step retry":
            await run.step("call", broken, retry=Retry(3, backoff_s=3600))

    for way in ("signal", "sleep", "child", "step retry", "done"):
        store.processes.start("agent", {"way": way}, id=way)
    assert run_facts(store, "sleep").wait is not None
    worker.run(until_idle=True)
    facts = {way: run_facts(store, way) for way in ("signal", "sleep", "child", "step retry", "done")}
    waits = {way: one.wait and (one.wait.kind, one.wait.name) for way, one in facts.items()}
    assert waits == {
        "signal": ("signal", "approve"),
        "sleep": ("sleep", None),
        "child": ("child", "c"),
        "step retry": ("step retry", "call"),
        "done": None,
    }
    assert [(one.id, one.status) for one in facts["child"].children] == [("c", "running")]
    steps = [(one.name, one.state, one.attempt, one.error) for one in facts["step retry"].steps]
    assert steps == [("plan", "done", 1, None), ("call", "retried", 1, "OSError: no answer")]
    assert facts["done"].journal.events == 2


def test_a_gather_names_each_of_its_waits(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("waits")
    async def waits(run: Run) -> None:
        await run.signal("never")

    @worker.process("agent")
    async def agent(run: Run, ways: list[str]) -> None:
        child = await run.start("waits", id=f"child of {run.id}") if "child" in ways else None
        branches = {
            "signal": lambda: run.signal("approve"),
            "timed": lambda: run.signal("stop", timeout_s=7200),
            "sleep": lambda: run.sleep(3600),
            "long": lambda: run.sleep(5400),
            "step retry": lambda: run.step("call", broken, retry=Retry(3, backoff_s=1800, jitter=0)),
            "child": lambda: child and child.result(),
        }
        await run.gather(*(cast("Any", branches[way])() for way in ways))

    store.processes.start("agent", {"ways": ["sleep", "signal", "child", "timed", "step retry"]}, id="all")
    store.processes.start("agent", {"ways": ["sleep", "long"]}, id="sleeps")
    worker.run(until_idle=True)
    found = run_facts(store, "all")
    now_ms = store.now_ms()
    waits_for = [(one.kind, one.name, one.until_ms and round((one.until_ms - now_ms) / 60_000)) for one in found.waits]
    assert waits_for == [
        ("sleep", None, 60),
        ("signal", "approve", None),
        ("child", "child of all", None),
        ("signal", "stop", 120),
        ("step retry", "call", 30),
    ]
    assert found.wait == found.waits[0]
    why = store.maintenance.explain_process("all")
    assert [(one.name, one.subject_id) for one in why.causes] == [
        ("sleeping", None),
        ("waits-for-a-signal", None),
        ("waits-for-a-child", "child of all"),
        ("waits-for-a-signal", None),
        ("retrying-a-step", None),
    ]
    assert [one.next_at_ms for one in why.causes] == [one.until_ms for one in found.waits]
    assert [one.kind for one in run_facts(store, "sleeps").waits] == ["sleep", "sleep"]
    assert store.maintenance.verify().ok


def test_a_child_that_continued_as_another_run_shows_the_state_of_that(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("child")
    async def child(run: Run, rounds: int) -> None:
        if rounds:
            run.continue_as_new({"rounds": rounds - 1})
        await run.signal("never")

    @worker.process("fails")
    async def fails(run: Run) -> None:
        raise GiveUp

    @worker.process("parent")
    async def parent(run: Run, rounds: int) -> None:
        if rounds:
            await run.start("child", {"rounds": 2}, id="c")
            await run.start("child", {"rounds": 0}, id="d", detached=True)
            run.continue_as_new({"rounds": rounds - 1})
        await run.start("child", {"rounds": 1}, id="e")
        await run.start("fails", id="f")
        await run.signal("never")

    store.processes.start("parent", {"rounds": 1}, id="p")
    worker.run(until_idle=True)
    store.processes.retry("f")
    first = [(one.id, one.status, one.newest_id, one.detached) for one in run_facts(store, "p").children]
    assert first == [("c", "running", "c~3", False), ("d", "running", None, True)]
    second = [(one.id, one.status, one.newest_id, one.detached) for one in run_facts(store, "p~2").children]
    assert second == [
        ("c", "running", "c~3", False),
        ("e", "running", "e~2", False),
        ("f", "running", "f~2", False),
    ]


@pytest.mark.parametrize("form", ["async", "plain"])
def test_a_step_that_fails_the_attempt_of_its_run_shows_that(
    url: str, store: holdfast.BlockingStore, form: str
) -> None:
    worker = Worker(url)
    shown: list[Any] = []

    def look() -> int:
        facts = run_facts(store, "r1")
        shown.extend((one.state, one.attempt, one.error) for one in facts.steps if one.name == "call")
        assert all(one.took_ms is not None and one.took_ms >= 20 for one in facts.steps if one.name == "call")
        return len(shown)

    def flaky() -> str:
        calls = look()
        time.sleep(0.02)
        if calls < 2:
            raise OSError(f"no answer to call {calls + 1}")
        return "done"

    @worker.process("async", retry=Retry(3, backoff_s=0))
    async def agent(run: Run) -> None:
        await run.gather(run.step("call", flaky), run.step("other", int))

    @worker.process("plain", retry=Retry(3, backoff_s=0))
    def plain(run: BlockingRun) -> None:
        run.step("call", flaky)
        run.step("other", int)

    store.processes.start(form, id="r1")
    worker.run(until_idle=True)
    look()
    assert shown == [
        ("failed", 1, "OSError: no answer to call 1"),
        ("failed", 2, "OSError: no answer to call 2"),
        ("done", 3, "OSError: no answer to call 2"),
    ]
    assert store.processes.handle("r1").outcome() == holdfast.processes.Completed()


def test_a_step_that_a_time_limit_cut_shows_that(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("agent", retry=Retry(1), timeout_s=0.1)
    async def agent(run: Run) -> None:
        await run.step("call", asyncio.sleep, 60)

    store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    [step] = run_facts(store, "r1").steps
    assert (step.name, step.state, step.attempt) == ("call", "failed", 1)
    assert step.error is not None
    assert "the handler was cancelled during this call" in step.error


def test_a_result_that_cannot_be_stored_is_a_failed_step(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    calls: list[str] = []

    def unstorable() -> Any:
        calls.append("made")
        return object()

    @worker.process("caught")
    async def caught(run: Run) -> str:
        try:
            await run.step("call", unstorable, retry=Retry(3))
        except holdfast.InvalidRequest as error:
            await run.sleep(0.01)
            return str(error)
        return "not refused"

    @worker.process("raised", retry=Retry(1))
    async def raised(run: Run) -> None:
        await run.step("call", unstorable)

    for kind in ("caught", "raised"):
        store.processes.start(kind, id=kind)
    worker.run(until_idle=True)
    assert "cannot be stored" in store.processes.handle("caught").result()
    for id in ("caught", "raised"):
        [step] = run_facts(store, id).steps
        assert (step.state, step.attempt) == ("failed", 1)
        assert step.error is not None
        assert "cannot be stored" in step.error


def test_a_claimed_run_names_its_worker(store: holdfast.BlockingStore) -> None:
    store.processes.start("agent", id="r1")
    assert store.processes.claim_next(owner_id="w1") is not None
    facts = run_facts(store, "r1")
    assert facts.wait is not None
    assert facts.worker is not None
    assert (facts.wait.kind, facts.wait.name, facts.worker.owner_id) == ("worker", "w1", "w1")


def test_a_process_other_than_a_run_has_no_facts_of_a_run(store: holdfast.BlockingStore) -> None:
    store.processes.register(holdfast.ProcessRegistration("b", holdfast.processes.External()))
    with pytest.raises(holdfast.InvalidRequest, match="is not a run"):
        run_facts(store, "b")
    with pytest.raises(holdfast.UnknownProcess):
        run_facts(store, "x")


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_command_shows_them(tmp_path: Any, capsys: pytest.CaptureFixture[str], form: str) -> None:
    url = f"sqlite:{tmp_path / 'agent.db'}"
    worker = Worker(url)

    @worker.process("agent")
    async def agent(run: Run) -> None:
        await run.step("plan", int)
        await run.signal("approve")

    with holdfast.open_blocking(url) as store:
        store.processes.start("agent", id="r1")
        worker.run(until_idle=True)
    assert main(["runs", "show", "r1", "--url", url, *(["--json"] if form == "json" else [])]) == 0
    shown = capsys.readouterr().out
    assert "approve" in shown
    assert "plan" in shown
