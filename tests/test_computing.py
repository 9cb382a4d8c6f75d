"""Heavy work runs beside the event loop: in the caller's context, with its own errors, and to its end."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

import holdfast
from holdfast import codec, loop_budget
from holdfast.backends.memory.tables import Table
from holdfast.backends.postgres.thread_offload import LeaveLoop, LoopCall, Steps
from holdfast.compute_threads import compute_threads
from holdfast.wait import AsyncWaiting, BlockingWaiting, run_to_end

LARGE = [{"text": "x" * 100}] * 5_000
WHO: ContextVar[str] = ContextVar("who", default="nobody")


def heavy_thread() -> tuple[int, str]:
    """Exceed the budget, then return the thread and the context."""
    loop_budget.charge(2 * loop_budget.BUDGET_BYTES)
    return threading.get_ident(), WHO.get()


def test_light_work_runs_on_the_loop_and_heavy_work_beside_it() -> None:
    async def compute() -> None:
        WHO.set("me")
        assert await AsyncWaiting().compute(threading.get_ident) == (threading.get_ident(), False)
        (thread, who), heavy = await AsyncWaiting().compute(heavy_thread)
        assert (thread != threading.get_ident(), who, heavy) == (True, "me", True)

    asyncio.run(compute())


def test_a_caller_that_blocks_computes_in_its_own_thread() -> None:
    assert run_to_end(BlockingWaiting().compute(heavy_thread)) == ((threading.get_ident(), "nobody"), False)
    assert run_to_end(BlockingWaiting().compute(threading.get_ident, heavy=True)) == (threading.get_ident(), False)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_an_error_in_a_large_request_is_the_same_as_in_a_small_one(kind: str, tmp_path: Any) -> None:
    url = "memory:" if kind == "memory" else str(tmp_path / "a.db")

    async def refuse() -> None:
        async with holdfast.open(url) as store:
            session = await store.sessions.create("s")
            nodes = [holdfast.Node("n1", payload=LARGE), holdfast.Node("n2", payload={"at": {1}})]
            with pytest.raises(
                holdfast.InvalidRequest, match=r"graph.nodes\[1\].payload: .*value at /at is of type set"
            ):
                await session.commit(holdfast.Commit(graph=holdfast.Append(nodes)))
            await session.commit(holdfast.Commit(turn_id="t", graph=holdfast.Append(nodes[:1])))
            with pytest.raises(holdfast.TurnConflict):
                await session.commit(holdfast.Commit(turn_id="t", graph=holdfast.Append([holdfast.Node(payload=1)])))

    asyncio.run(refuse())


def test_a_full_executor_of_the_loop_does_not_hold_up_a_large_commit() -> None:
    async def commit() -> None:
        loop, gate = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        async with holdfast.open("memory:") as store:
            session = await store.sessions.create("s")
            waiting = loop.run_in_executor(None, gate.wait)
            try:
                commit = session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=LARGE)))
                await asyncio.wait_for(commit, 30)
            finally:
                gate.set()
                await waiting

    asyncio.run(commit())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_computes_in_threads_of_its_own() -> None:
    assert compute_threads.submit(lambda: 1).result() == 1
    child = os.fork()
    if child == 0:
        os._exit(0 if compute_threads.submit(lambda: 2).result(10) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_small_call_does_not_wait_on_the_loop_for_a_large_one_in_memory() -> None:
    """The large call holds the lock of the memory store meanwhile."""

    async def both() -> None:
        async with holdfast.open("memory:") as store:
            begun, gate = threading.Event(), threading.Event()
            backend: Any = store._context.backend

            async def slow(_: Any) -> int:
                begun.set()
                assert gate.wait(30)
                return 1

            large = asyncio.create_task(backend.write(slow, heavy=True))
            while not begun.is_set():
                await asyncio.sleep(0)
            small = asyncio.create_task(store.sessions.create("s"))
            await asyncio.sleep(0)
            gate.set()
            assert await large == 1
            assert (await small).session_id == "s"

    asyncio.run(both())


def test_a_cancelled_large_write_to_memory_wakes_its_waiters() -> None:
    async def cancel() -> None:
        async with holdfast.open("memory:") as store:
            begun, gate = threading.Event(), threading.Event()
            backend: Any = store._context.backend

            async def slow(tx: Any) -> None:
                begun.set()
                assert gate.wait(30)
                tx.notify("topic")

            change = backend.watch("topic")
            write = asyncio.create_task(backend.write(slow, heavy=True))
            while not begun.is_set():
                await asyncio.sleep(0)
            write.cancel()
            with pytest.raises(asyncio.CancelledError):
                await write
            gate.set()
            assert await backend.pause(change, 30_000)

    asyncio.run(cancel())


# Steps.


class FakeLink:
    """The state that steps keep on a statement runner."""

    heavy = False
    stepping = False


async def answered(value: Any) -> Any:
    await asyncio.sleep(0)
    if isinstance(value, BaseException):
        raise value
    return value


def test_an_operation_continues_beside_the_loop_after_a_large_answer() -> None:
    runner = FakeLink()
    where: list[int] = []

    async def operation() -> str:
        for answer in (["small"], ["x" * loop_budget.BUDGET_BYTES], ["small"]):
            where.append(threading.get_ident())
            assert runner.stepping
            assert await LoopCall(partial(answered, answer)) == answer
        where.append(threading.get_ident())
        return "done"

    async def run() -> None:
        here = threading.get_ident()
        assert await Steps(runner).run(operation()) == "done"
        assert [thread == here for thread in where] == [True, True, False, False]
        assert not runner.stepping

    asyncio.run(run())


@pytest.mark.parametrize(("more", "leaves"), [(-200_000, False), (0, True)])
def test_a_loop_of_its_own_takes_larger_answers(more: int, leaves: bool) -> None:
    runner = FakeLink()

    async def operation() -> int:
        await LoopCall(partial(answered, ["x" * (loop_budget.OWN_LOOP_BYTES + more)]))
        return threading.get_ident()

    async def run() -> None:
        steps = Steps(runner, budget_bytes=loop_budget.OWN_LOOP_BYTES)
        assert (await steps.run(operation()) != threading.get_ident()) is leaves

    asyncio.run(run())


@pytest.mark.parametrize("blocking", [True, False])
def test_a_turn_of_middle_size_leaves_the_loop_of_an_application_only(
    clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    turn = holdfast.Commit(turn_id="t1", checkpoint=holdfast.Checkpoint.of({"a": os.urandom(400_000)}))
    left: list[object] = []
    submit = compute_threads.submit
    monkeypatch.setattr(compute_threads, "submit", lambda call: left.append(call) or submit(call))

    async def by_tasks() -> bytes:
        async with holdfast.open(clean_postgres_url) as store:
            await store.sessions.handle("s").commit(turn)
            return component(await store.sessions.handle("s").load())

    if blocking:
        with holdfast.open_blocking(clean_postgres_url) as store:
            store.sessions.handle("s").commit(turn)
            found = component(store.sessions.handle("s").load())
    else:
        found = asyncio.run(by_tasks())
    assert found == component_of(turn)
    assert bool(left) is not blocking


def component(view: holdfast.sessions.SessionView | None) -> Any:
    assert view is not None
    assert view.checkpoint is not None
    return view.checkpoint.components()["a"]


def component_of(turn: holdfast.Commit) -> Any:
    assert turn.checkpoint is not None
    return turn.checkpoint.components()["a"]


@pytest.mark.parametrize("size", [loop_budget.BUDGET_BYTES, loop_budget.OWN_LOOP_BYTES])
def test_a_value_of_an_unknown_size_leaves_any_loop(size: int) -> None:
    shared: Any = ["x"] * 100_000
    with loop_budget.LoopBudget(size), pytest.raises(loop_budget.BudgetExceeded):
        codec.checked_document(shared, depth=100, size=10_000_000)


def test_an_operation_may_ask_to_continue_beside_the_loop() -> None:
    async def operation() -> int:
        await LeaveLoop()
        return threading.get_ident()

    async def run() -> None:
        assert await Steps(FakeLink()).run(operation()) != threading.get_ident()

    asyncio.run(run())


@pytest.mark.parametrize("heavy", [False, True])
def test_an_operation_gets_the_error_of_its_statement(heavy: bool) -> None:
    async def operation() -> str:
        with pytest.raises(KeyError):
            await LoopCall(partial(answered, KeyError("lost")))
        raise LookupError("mine")

    async def run() -> None:
        with pytest.raises(LookupError, match="mine"):
            await Steps(FakeLink(), heavy=heavy).run(operation())

    asyncio.run(run())


@pytest.mark.parametrize("ends", [False, True])
def test_an_operation_that_is_cancelled_while_it_computes_ends_after_its_step(ends: bool) -> None:
    async def run() -> None:
        begun, gate, reported = threading.Event(), threading.Event(), []

        async def operation() -> None:
            begun.set()
            assert gate.wait(30)
            if not ends:
                try:
                    await LoopCall(partial(answered, "never asked for"))
                except asyncio.CancelledError:
                    reported.append(threading.get_ident())
                    raise

        task = asyncio.create_task(Steps(FakeLink(), heavy=True).run(operation()))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert reported == ([] if ends else [threading.get_ident()])

    asyncio.run(run())


def put_rows(table: Table[int, str], count: int) -> None:
    for number in range(count):
        table.put(number, "row")


def test_rows_in_memory_that_are_scanned_or_written_are_charged() -> None:
    table: Table[int, str] = Table()
    with loop_budget.LoopBudget():
        put_rows(table, 100)
        table.commit()
        assert len(list(table.scan())) == 100
    with loop_budget.LoopBudget(), pytest.raises(loop_budget.BudgetExceeded):
        put_rows(table, 1_000)
    table.roll_back()
    put_rows(table, 5_000)
    table.commit()
    with loop_budget.LoopBudget(), pytest.raises(loop_budget.BudgetExceeded):
        next(table.scan(), None)


def test_an_operation_in_memory_that_starts_over_in_a_thread_is_applied_once() -> None:
    async def housekeep() -> None:
        async with holdfast.open("memory:") as store:
            session = await store.sessions.create("s")
            ids = [f"n{number}" for number in range(3_000)]
            assert (await session.add_nodes([holdfast.Node(one) for one in ids])).added == 3_000
            others = [asyncio.create_task(session.commit(holdfast.Commit())) for _ in range(20)]
            assert await session.tombstone(ids) == 3_000
            assert (await store.maintenance.vacuum()).removed_nodes == 3_000
            revisions = sorted([(await one).revision for one in others])
            assert revisions == list(range(1, 21))
            async with store.transaction() as inside:
                await inside.sessions.handle("s").add_nodes([holdfast.Node(f"m{number}") for number in range(3_000)])
            assert (await store.maintenance.verify()).findings == ()
            assert (await store.maintenance.stats()).nodes == 6_000

    asyncio.run(housekeep())
