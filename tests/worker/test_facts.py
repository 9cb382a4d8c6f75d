"""The facts of a run say what it waits for, how its steps went, and who runs it."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.cli import main
from holdfast.worker import Retry, Run, Worker, run_facts


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
        "child": ("child", "child"),
        "step retry": ("step retry", "call"),
        "done": None,
    }
    assert [(one.id, one.status) for one in facts["child"].children] == [("c", "running")]
    steps = [(one.name, one.state, one.attempt, one.error) for one in facts["step retry"].steps]
    assert steps == [("plan", "done", 1, None), ("call", "retried", 1, "OSError: no answer")]
    assert facts["done"].journal.events == 2


def test_a_claimed_run_names_its_worker(store: holdfast.BlockingStore) -> None:
    store.processes.start("agent", id="r1")
    assert store.processes.claim_next(owner_id="w1") is not None
    facts = run_facts(store, "r1")
    assert facts.wait is not None
    assert facts.worker is not None
    assert (facts.wait.kind, facts.wait.name, facts.worker.owner_id) == ("worker", "w1", "w1")


def test_what_is_no_run_has_no_facts_of_a_run(store: holdfast.BlockingStore) -> None:
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
