"""No call outlives its worker, and the work of calls that are cut short is given back, also after a second signal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.worker import Retry, Worker, service

WAIT_S = 30


def cancel_again(serving: asyncio.Task[None]) -> None:
    serving.cancel()


def end_the_loop(serving: asyncio.Task[None]) -> None:
    """Cancel every task, as `asyncio.run` does after a second Ctrl-C."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.mark.parametrize("end", [cancel_again, end_the_loop])
def test_a_second_cancel_gives_the_work_back_at_once(end: Callable[[asyncio.Task[None]], None]) -> None:
    async def main() -> None:
        async with holdfast.open("memory:") as store:
            worker = Worker(store, grace_s=WAIT_S)
            begun, ended = asyncio.Semaphore(0), list[str]()

            async def work(name: str) -> None:
                begun.release()
                try:
                    await asyncio.sleep(WAIT_S)
                finally:
                    ended.append(name)

            @worker.turn(retry=Retry(1))
            async def answer(turn: holdfast.Turn) -> None:
                await work("turn")

            @worker.process("watch", retry=Retry(1))
            async def watch(run: holdfast.worker.Run) -> None:
                await work("run")

            batch = await store.sessions.handle("chat").enqueue("hi")
            run = (await store.processes.start("watch")).process
            serving = asyncio.create_task(worker.serve())
            for _ in range(2):
                await begun.acquire()
            serving.cancel()
            for _ in range(100):  # steps of the loop, until the worker waits for its calls
                await asyncio.sleep(0)
            assert ended == [], "it lets them finish"
            end(serving)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(serving, WAIT_S)
            assert sorted(ended) == ["run", "turn"], "no call outlives the worker"
            stored = await store.queue.get("chat", batch.batch_id)
            assert stored is not None
            assert (stored.state, stored.attempts) == ("pending", 0)
            assert await store.leases.holder(holdfast.leases.OnProcess(run.id)) is None
            assert len(await store.workers.list()) == 0

    asyncio.run(main())


@pytest.mark.parametrize(("again_s", "attempts"), [(0.0, 0), (WAIT_S, 1)])
def test_a_second_signal_ends_the_grace_period_unless_it_is_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again_s: float, attempts: int
) -> None:
    monkeypatch.setattr(service, "AGAIN_S", again_s)
    worker = Worker(tmp_path / "agent.db", grace_s=WAIT_S)

    @worker.turn
    async def answer(turn: holdfast.Turn) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        if not again_s:
            await asyncio.sleep(WAIT_S)

    with holdfast.open_blocking(tmp_path / "agent.db") as store:
        batch = store.sessions.handle("chat").enqueue("hi")
        worker.run()
        stored = store.queue.get("chat", batch.batch_id)
        assert stored is not None
        assert (stored.state, stored.attempts) == ("completed" if again_s else "pending", attempts)
