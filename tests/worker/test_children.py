"""Children of a run that continues as a new one: they go with it, are reachable, and are cancelled with it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import main
from holdfast.processes import Cancelled, Completed, Failed
from holdfast.worker import BlockingRun, Retry, Run, Worker, continuing, run_facts


def outcome_of(store: holdfast.BlockingStore, id: str) -> Any:
    process = store.processes.get(id)
    assert process is not None
    return process.outcome


def chain_of(url: str) -> Worker:
    """Return a worker whose parent starts three children in its first link, and waits for a signal in its third."""
    worker = Worker(url)

    @worker.process("parent", retry=Retry(1))
    async def parent(run: Run, link: int) -> Any:
        if link == 1:
            await run.start("child", id="waits")
            await run.start("child", id="alone", detached=True)
            ended = await run.start("short", id="ended")
            assert await ended.result() == "done"
        if link < 3:
            run.continue_as_new({"link": link + 1})
        assert run.children == ("waits",)
        go_on = await run.signal("go")
        return [go_on, await run.child("waits").result()]

    @worker.process("child")
    async def child(run: Run) -> Any:
        return await run.signal("end")

    worker.process("short")(lambda run: "done")
    return worker


def test_children_of_a_continued_run_are_cancelled_with_it_unless_detached(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = chain_of(url)
    run = store.processes.start("parent", {"link": 1}, id="r1")
    worker.run(until_idle=True)
    assert run.newest_id() == "r1~3"
    assert [one.id for one in run_facts(store, "r1~3").children] == ["waits"]
    run.cancel(reason="too late")
    worker.run(until_idle=True)
    assert outcome_of(store, "r1~3") == outcome_of(store, "waits") == Cancelled("too late")
    assert outcome_of(store, "alone") is None


def test_a_child_of_a_continued_run_wakes_the_last_link_and_gives_it_its_result(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = chain_of(url)
    run = store.processes.start("parent", {"link": 1}, id="r1")
    worker.run(until_idle=True)
    run.signal("go", "now")
    worker.run(until_idle=True)
    store.events.signal("waits", "end", 7)
    worker.run(until_idle=True)  # waits less long than a run that looks at its child without a signal
    assert run.result(timeout_ms=0) == ["now", 7]
    answer = [event.payload for event in store.events.after("r1~3", type="signal.holdfast-child")]
    assert answer == ["waits"]


def test_signals_of_ended_children_do_not_keep_a_run_from_continuing(
    url: str, store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.journal.MOST_CARRIED", 1)
    worker = Worker(url)

    @worker.process("parent", retry=Retry(1))
    def parent(run: BlockingRun, link: int) -> Any:
        children = [run.start("short") for _ in range(3)]
        found = [child.result() for child in children]
        if link < 2:
            run.continue_as_new({"link": link + 1})
        return found

    worker.process("short")(lambda run: "done")
    store.processes.start("parent", {"link": 1}, id="r1")
    worker.run(until_idle=True)
    assert outcome_of(store, "r1~2") == Completed(["done"] * 3)
    assert [event.type for event in store.events.after("r1~2")].count("signal.holdfast-child") == 3


def test_too_many_living_children_are_named(
    store: holdfast.BlockingStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuing, "MOST_CARRIED", 1)
    worker = Worker(url)

    @worker.process("parent", retry=Retry(1))
    def parent(run: BlockingRun) -> None:
        for name in ("a", "b"):
            run.start("child", id=name)
        run.continue_as_new()

    store.processes.start("parent", id="r1")
    worker.run(until_idle=True)
    outcome = outcome_of(store, "r1")
    assert isinstance(outcome, Failed)
    assert "ChildrenLeft: run 'r1' has 2 children that have not ended, and takes at most 1" in outcome.message


def test_a_child_that_was_started_is_recorded_with_it() -> None:
    """A crash between the two would leave a child that no cancellation reaches."""

    async def main() -> tuple[Any, Any]:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)

            @worker.process("parent", retry=Retry(1))
            async def parent(run: Run) -> None:
                await run.start("child", id="c1")
                await run.store.events.request_cancel(run.id, reason="enough")
                raise RuntimeError

            await store.processes.start("parent", id="r1")
            append = type(store.events).append

            async def refuse(self: Any, process_id: str, type: str, *args: Any, **named: Any) -> Any:
                if type == "step":
                    raise holdfast.InvalidRequest("payload", "planted")
                return await append(self, process_id, type, *args, **named)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(store.events), "append", refuse)
                await worker.serve(until_idle=True)
            child, run = await store.processes.get("c1"), await store.processes.get("r1")
            assert run is not None
            return child, run.status

    assert asyncio.run(main()) == (None, "failed")


def parent_with_children(worker: Worker, end: str) -> None:
    """Register a parent that waits for a signal, and then ends in one way, and children that wait for ever."""

    @worker.process("parent", retry=Retry(1))
    async def parent(run: Run) -> str:
        for name in ("a", "b", "c"):
            await run.start("child", id=name)
        await run.start("child", id="alone", detached=True)
        await run.signal("end")
        if end == "fails":
            raise RuntimeError("planted")
        return "done"

    @worker.process("child")
    async def child(run: Run) -> Any:
        return await run.signal("never")


@pytest.mark.parametrize(("end", "left"), [("fails", ["alone"]), ("returns", ["a", "alone", "b", "c"])])
def test_children_are_cancelled_when_their_parent_fails_and_not_when_it_returns(
    url: str, store: holdfast.BlockingStore, end: str, left: list[str]
) -> None:
    worker = Worker(url)
    parent_with_children(worker, end)
    run = store.processes.start("parent", id="r1")
    worker.run(until_idle=True)
    run.signal("end")
    worker.run(until_idle=True)
    assert sorted(one.id for one in store.processes.list()) == left
    if end == "fails":
        assert outcome_of(store, "a") == Cancelled("its parent 'r1' ended without a result")


def test_children_are_cancelled_once_the_database_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.running.AWAY_S", 0.0)

    async def main() -> list[str]:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)
            parent_with_children(worker, "returns")
            await store.processes.start("parent", id="r1")
            await worker.serve(until_idle=True)
            await store.events.request_cancel("r1", reason="enough")
            request, tries = store.events.request_cancel, 0

            async def away(*args: Any, **named: Any) -> Any:
                nonlocal tries
                tries += 1
                if tries in (2, 3):
                    raise holdfast.Unavailable("the database is away", outcome="not_applied")
                return await request(*args, **named)

            monkeypatch.setattr(store.events, "request_cancel", away)
            await worker.serve(until_idle=True)
            return [one.id for one in await store.processes.list()]

    assert asyncio.run(main()) == ["alone"]


KILLED = """
import os, sys
import holdfast
from holdfast.worker import continuing, processes
from test_children import parent_with_children

cancel_newest = continuing.cancel_newest

async def kill_at_second_child(store, run_id, reason):
    if run_id == "b":
        os.kill(os.getpid(), 9)
    await cancel_newest(store, run_id, reason)

if sys.argv[2] == "killed":
    processes.cancel_newest = kill_at_second_child
worker = holdfast.Worker(sys.argv[1], lease_s=1)
parent_with_children(worker, "returns")
worker.run(until_idle=True)
"""


def test_a_worker_that_is_killed_while_it_cancels_children_leaves_none_running(tmp_path: Path) -> None:
    place = f"sqlite:{tmp_path / 'agent.db'}"

    def work(way: str) -> int:
        command = [sys.executable, "-c", KILLED, place, way]
        return subprocess.run(command, cwd=Path(__file__).parent, timeout=60, check=False).returncode

    with holdfast.open_blocking(place) as store:
        run = store.processes.start("parent", id="r1")
        assert work("whole") == 0
        run.cancel(reason="enough")
        assert work("killed") == -9
        assert outcome_of(store, "r1") is None
        store.processes.wait_next(timeout_ms=10_000, kinds=["parent"])
        assert work("whole") == 0
        assert outcome_of(store, "r1") == outcome_of(store, "c") == Cancelled("enough")
        assert [one.id for one in store.processes.list()] == ["alone"]


def test_a_signal_to_the_first_link_names_the_run_that_continues_and_a_handle_finds_it(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = chain_of(url)
    run = store.processes.start("parent", {"link": 1}, id="r1")
    worker.run(until_idle=True)
    for refused in (lambda: store.events.signal("r1", "go"), lambda: store.events.request_cancel("r1")):
        with pytest.raises(holdfast.AlreadyTerminal, match=r"it continues as run 'r1~2'") as info:
            refused()
        assert info.value.continued_as == "r1~2"
    assert run.signal("go").event.process_id == "r1~3"
    with pytest.raises(holdfast.AlreadyTerminal, match="read its outcome"):
        store.events.signal("ended", "go")


def test_the_command_signals_and_cancels_the_run_that_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"sqlite:{tmp_path / 'agent.db'}"
    with holdfast.open_blocking(place) as store:
        store.processes.start("parent", {"link": 1}, id="r1")
        chain_of(place).run(until_idle=True)
    assert main(["--url", place, "processes", "signal", "r1", "go"]) == 0
    assert main(["--url", place, "processes", "cancel", "r1", "--yes"]) == 0
    assert [line.split(" of ")[1] for line in capsys.readouterr().out.splitlines()] == ["r1~3", "r1~3"]


def test_a_child_that_ended_is_not_pruned_before_its_parent_reads_its_result(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = Worker(url)

    @worker.process("parent", retry=Retry(1))
    async def parent(run: Run) -> Any:
        child = await run.start("child", id="c1")
        await run.signal("go")
        return await child.result()

    worker.process("child")(lambda run: 7)
    run = store.processes.start("parent", id="p1")
    worker.run(until_idle=True)
    ended = holdfast.RetentionPolicy(terminal_processes_older_than_ms=0)
    assert store.maintenance.prune(ended).processes == 0
    run.signal("go")
    worker.run(until_idle=True)
    assert run.result(timeout_ms=0) == 7
    assert store.maintenance.prune(ended).processes == 2
