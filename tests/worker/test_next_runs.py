"""The end of a run and the claim of the next one, in one transaction: nothing is lost in an outage or a shutdown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.worker import Run, Worker

STEPS = 100
"""Steps of the event loop, in which a worker that stops cancels its calls."""


async def states(store: holdfast.Store) -> list[tuple[str, int]]:
    """Return status and attempt of each run, without the duties of the worker."""
    found = await store.processes.list(status="any")
    return [(one.status, one.attempt) for one in found if getattr(one.input, "kind", "") == "count"]


def test_one_slot_claims_each_run_but_the_first_with_the_end_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> tuple[list[int], list[str]]:
        async with holdfast.open("memory:") as store:
            worker = Worker(store, concurrency=1)
            seen: list[int] = []
            claims: list[str] = []

            @worker.process("count")
            async def count(run: Run, number: int) -> None:
                seen.append(number)

            for number in range(5):
                await store.processes.start("count", {"number": number}, due_at_ms=number)
            for name in ("claim_next", "complete_and_claim_next"):
                watch(store, name, claims)
            await worker.serve(until_idle=True)
            return seen, claims

    def watch(store: holdfast.Store, name: str, claims: list[str]) -> None:
        inner = getattr(store.processes, name)

        async def watched(*args: Any, **options: Any) -> Any:
            answer = await inner(*args, **options)
            claim: Any = answer if name == "claim_next" else answer[1]
            claims.extend([] if claim is None else [name])
            return answer

        monkeypatch.setattr(store.processes, name, watched)

    seen, claims = asyncio.run(main())
    assert seen == [0, 1, 2, 3, 4]
    assert claims == ["claim_next"] + ["complete_and_claim_next"] * 4


def test_a_run_that_is_done_is_ended_when_the_database_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.running.AWAY_S", 0.0)

    async def main() -> tuple[int, list[tuple[str, int]]]:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)
            calls: list[str] = []

            @worker.process("count")
            async def count(run: Run) -> None:
                calls.append(run.id)

            await store.processes.start("count")

            async def away(*_: Any, **__: Any) -> Any:
                raise holdfast.Unavailable("the database is away", outcome="unknown")

            monkeypatch.setattr(store.processes, "complete_and_claim_next", away)
            await worker.serve(until_idle=True)
            return len(calls), await states(store)

    assert asyncio.run(main()) == (1, [("completed", 1)])


def test_a_run_that_is_claimed_during_the_shutdown_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[tuple[str, int]]:
        async with holdfast.open("memory:") as store:
            worker = Worker(store, concurrency=1, grace_s=0)

            @worker.process("count")
            async def count(run: Run) -> None: ...

            for number in range(2):
                await store.processes.start("count", id=f"run-{number}", due_at_ms=number)
            taken, stopped = asyncio.Event(), asyncio.Event()
            inner = store.processes.complete_and_claim_next

            async def slow(*args: Any, **options: Any) -> Any:
                answer = await inner(*args, **options)
                taken.set()
                await stopped.wait()
                return answer

            monkeypatch.setattr(store.processes, "complete_and_claim_next", slow)
            serving = asyncio.create_task(worker.serve())
            await taken.wait()
            worker.stop()
            for _ in range(STEPS):
                await asyncio.sleep(0)
            stopped.set()
            await serving
            return await states(store)

    # The attempt that was given back does not count.
    assert asyncio.run(main()) == [("completed", 1), ("running", 0)]


def test_a_stopping_worker_claims_no_further_run() -> None:
    async def main() -> list[tuple[str, int]]:
        async with holdfast.open("memory:") as store:
            worker = Worker(store, concurrency=1)

            @worker.process("count")
            async def count(run: Run) -> None:
                worker.stop()
                for _ in range(STEPS):
                    await asyncio.sleep(0)

            for number in range(2):
                await store.processes.start("count", id=f"run-{number}", due_at_ms=number)
            await worker.serve()
            return await states(store)

    assert asyncio.run(main()) == [("completed", 1), ("running", 0)]


def test_a_result_that_is_too_large_for_an_event_is_kept_and_the_next_run_is_run() -> None:
    async def main() -> list[int]:
        async with holdfast.open("memory:") as store:
            worker = Worker(store, concurrency=1)
            size = store.limits.document_bytes + 1

            @worker.process("large")
            async def large(run: Run) -> str:
                return "x" * size

            runs = [await store.processes.start("large", due_at_ms=number) for number in range(2)]
            await worker.serve(until_idle=True)
            return [len(await run.result()) - size for run in runs]

    assert asyncio.run(main()) == [0, 0]
