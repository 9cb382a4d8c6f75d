"""A retried run: what has a result does not run again, what failed does, and children are found again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import holdfast
from holdfast.processes import Abandoned, Completed
from holdfast.run_chains import first_of_chain, original_run, retried_run, retrying_cause
from holdfast.worker import ChildFailed, Retry, Run, StepConflict, Worker, replay, run_facts


class Outside:
    """Counts effects, and fails on request."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.keys: list[str] = []
        self.fails = True

    def work(self, name: str) -> str:
        self.calls[name] += 1
        return name

    def charge(self, key: str) -> str:
        self.calls["charge"] += 1
        self.keys.append(key)
        if self.fails:
            raise ValueError("the bank is closed")
        return "charged"


def worker_of(url: str, outside: Outside) -> Worker:
    worker = Worker(url)
    once = Retry(1)

    @worker.process("order", retry=once)
    async def order(run: Run) -> Any:
        first = await run.step("reserve", outside.work, "reserve")
        by = await run.signal("approve")
        good = await run.start("good")
        bad = await run.start("bad")
        alone = await run.start("good", detached=True)
        results = [await good.result(), await alone.result(), await bad.result()]
        return [first, by, *results, await run.step("bill", outside.charge, run.key("bill"), retry=once)]

    @worker.process("good")
    async def good(run: Run) -> Any:
        return await run.step("work", outside.work, "good")

    @worker.process("bad", retry=once)
    async def bad(run: Run) -> Any:
        await run.step("prepare", outside.work, "prepare")
        return await run.step("charge", outside.charge, run.key("charge"))

    return worker


def test_steps_with_a_result_do_not_run_again_and_failed_ones_do(url: str, store: holdfast.BlockingStore) -> None:
    outside = Outside()
    worker = worker_of(url, outside)
    run = store.processes.start("order", id="o1")
    run.signal("approve", "ada")
    worker.run(until_idle=True)
    failed = store.processes.get("o1")
    assert failed is not None
    assert failed.status == "failed"
    outside.fails = False
    retried = store.processes.retry("o1")
    worker.run(until_idle=True)
    assert retried.result(timeout_ms=0) == ["reserve", "ada", "good", "good", "charged", "charged"]
    assert outside.calls == {"reserve": 1, "good": 2, "prepare": 1, "charge": 3}
    assert outside.keys == ["o1/child:2/charge", "o1/child:2/charge", "o1/bill"], "the effect has the same key again"
    assert [one.id for one in store.processes.list(status="any")] == [
        *("o1", "o1/child:1", "o1/child:2", "o1/child:2~2", "o1/child:3", "o1~2")
    ]
    facts = run_facts(store, "o1~2")
    assert (facts.retries, facts.retried_as) == ("o1", None)
    assert (run_facts(store, "o1").retries, run_facts(store, "o1").retried_as) == (None, "o1~2")
    assert [(one.id, one.detached) for one in facts.children] == [
        *(("o1/child:1", False), ("o1/child:2", False), ("o1/child:3", True))
    ]
    assert replay(store, worker, "o1~2").ok


@pytest.mark.parametrize("detached", [False, True])
def test_a_child_of_the_failed_run_wakes_the_retry(url: str, store: holdfast.BlockingStore, detached: bool) -> None:
    """A detached one still runs. Another was cancelled with its parent, and is retried with it."""
    worker = Worker(url)
    fails = [True]

    @worker.process("parent", retry=Retry(1))
    async def parent(run: Run) -> Any:
        child = await run.start("child", detached=detached)
        if fails:
            raise ValueError(fails.pop())
        return await child.result()

    @worker.process("child")
    async def child(run: Run) -> Any:
        return await run.signal("end")

    store.processes.start("parent", id="p")
    worker.run(until_idle=True)
    retried = store.processes.retry("p")
    worker.run(until_idle=True)
    store.events.signal("p/child:1" if detached else "p/child:1~2", "end", 7)
    worker.run(until_idle=True)  # waits less long than a run that looks at its child without a signal
    assert retried.result(timeout_ms=0) == 7
    retried_process = store.processes.get("p")
    assert retried_process is not None
    assert retried_process.status == "failed", "an end is final"


def test_a_retry_may_leave_the_way_that_the_failure_took(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    outside = Outside()

    @worker.process("order", retry=Retry(1))
    async def order(run: Run) -> Any:
        try:
            return await run.step("bill", outside.charge, run.key("bill"), retry=Retry(1))
        except Exception:
            await run.step("apologise", outside.work, "apologise")
            raise

    store.processes.start("order", id="o1")
    worker.run(until_idle=True)
    outside.fails = False
    retried = store.processes.retry("o1")
    worker.run(until_idle=True)
    assert retried.result(timeout_ms=0) == "charged"
    assert replay(store, worker, retried.id).ok


def test_changed_code_of_a_copied_step_holds_the_retry(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    outside = Outside()
    names = ["first", "second"]

    @worker.process("order", retry=Retry(1))
    async def order(run: Run) -> Any:
        await run.step("reserve", outside.work, names.pop(0))
        return await run.step("bill", outside.charge, run.key("bill"))

    store.processes.start("order", id="o1")
    worker.run(until_idle=True)
    outside.fails = False
    retried = store.processes.retry("o1")
    worker.run(until_idle=True)
    held = store.processes.get(retried.id)
    assert held is not None
    assert held.is_held
    assert StepConflict.__name__ in (held.last_error or "")


def test_an_abandoned_child_is_left_to_a_person(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("parent", retry=Retry(1))
    async def parent(run: Run) -> Any:
        return await (await run.start("child")).result()

    worker.process("child")(lambda run: "done")
    store.processes.start("parent", id="p")
    cause = holdfast.processes.Provenance(caused_by={"type": "run", "process_id": "p"})
    store.processes.start("child", id="p/child:1", provenance=cause)
    store.processes.complete("p/child:1", Abandoned("its worker died"))
    worker.run(until_idle=True)
    first = store.processes.retry("p")
    worker.run(until_idle=True)
    assert ChildFailed.__name__ in first.outcome(timeout_ms=0).message  # type: ignore[union-attr]
    store.processes.retry("p/child:1")
    second = store.processes.retry(first.id)
    worker.run(until_idle=True)
    assert second.outcome(timeout_ms=0) == Completed("done")


def test_a_large_result_is_there_after_the_failed_run_was_pruned(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    outside = Outside()
    large = "x" * (store.limits.document_bytes + 1)

    @worker.process("order", retry=Retry(1))
    async def order(run: Run) -> Any:
        found = await run.step("load", outside.work, large)
        return [len(found), await run.step("bill", outside.charge, run.key("bill"))]

    store.processes.start("order", id="o1")
    worker.run(until_idle=True)
    outside.fails = False
    retried = store.processes.retry("o1")
    store.maintenance.prune(holdfast.RetentionPolicy(terminal_processes_older_than_ms=0))
    store.maintenance.collect_garbage()
    assert store.processes.get("o1") is None
    worker.run(until_idle=True)
    assert retried.result(timeout_ms=0) == [len(large), "charged"]
    assert outside.calls[large] == 1


def test_a_retry_that_continues_names_its_own_children(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    fails = [True]

    @worker.process("parent", retry=Retry(1))
    async def parent(run: Run, link: int) -> Any:
        result = await (await run.start("child", link)).result()
        if fails:
            raise ValueError(fails.pop())
        if link == 1:
            run.continue_as_new({"link": 2})
        return [result, run.id]

    worker.process("child")(lambda run: run.args)
    store.processes.start("parent", {"link": 1}, id="p")
    worker.run(until_idle=True)
    retried = store.processes.retry("p")
    worker.run(until_idle=True)
    assert retried.result(timeout_ms=0) == [2, "p~3"]
    assert [one.id for one in store.processes.list(status="completed")] == ["p/child:1", "p~2", "p~3", "p~3/child:1"]
    last = store.processes.get("p~3")
    assert last is not None
    assert last.provenance.caused_by == {"continues": "p~2", "first": "p"}


@pytest.mark.parametrize(
    ("run_id", "cause"),
    [("r~2", {"retries": "q"}), ("r~3", {"retries": "r"}), ("r", {"retries": "r~2"}), ("r~2", {"retries": 1})],
)
def test_a_cause_is_believed_only_if_the_ids_agree(run_id: str, cause: Any) -> None:
    assert retried_run(run_id, cause) is None
    assert original_run(run_id, {**cause, "original": "r"}) == run_id


def test_a_chain_of_retries_keeps_its_first_and_its_original_run() -> None:
    continued = {"continues": "r", "first": "r"}
    once = retrying_cause("r~2", continued)
    assert once == {"retries": "r~2", "first": "r", "original": "r~2"}
    twice = retrying_cause("r~3", once)
    assert twice == {"retries": "r~3", "first": "r", "original": "r~2"}
    assert (first_of_chain("r~4", twice), original_run("r~4", twice)) == ("r", "r~2")
