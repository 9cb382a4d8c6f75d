"""The size of a run's journal as its handler sees it: the same at each place, whenever the handler runs again."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import holdfast
from holdfast.processes import Completed
from holdfast.worker import BlockingRun, Retry, Run, Worker


def test_the_journal_is_as_large_as_before_at_each_place(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    calls: Counter[str] = Counter()
    seen: list[list[tuple[int, int]]] = []

    def flaky() -> str:
        calls["flaky"] += 1
        if calls["flaky"] == 1:
            raise ConnectionError("away")
        return "there"

    def fail() -> None:
        raise ValueError("no")

    @worker.process("child")
    def child(run: BlockingRun) -> str:
        return "of the child"

    @worker.process("agent", signals={"go": int, "next": Any}, retry=Retry(1))
    async def agent(run: Run) -> None:
        sizes: list[tuple[int, int]] = []
        seen.append(sizes)

        def look_at_journal() -> None:
            sizes.append((run.journal.events, run.journal.size_bytes))

        look_at_journal()
        await run.step("progress:1", flaky, retry=Retry(3, backoff_s=0))
        look_at_journal()
        try:
            await run.step("fail", fail)
        except ValueError:
            look_at_journal()
        await run.progress({"so": "far"})
        look_at_journal()
        with suppress(TimeoutError):
            await run.signal("next", timeout_s=0)
        look_at_journal()
        started = await run.start("child")
        await run.gather(run.signal("go"), run.uuid(), run.sleep(0))
        look_at_journal()
        await started.result()
        look_at_journal()
        await run.signal("next")
        look_at_journal()

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    for name, payload in (("go", "none"), ("go", 1), ("next", 2)):
        run.signal(name, payload)
        worker.run(until_idle=True)
    assert run.outcome(timeout_ms=0) == Completed(None)
    assert len(seen) > 2
    assert all(one == seen[-1][: len(one)] for one in seen)
    assert [events for events, _ in seen[-1]] == [0, 2, 3, 4, 6, 11, 12, 14], "a signal of a declared type has a record"
    assert all(before < after for (_, before), (_, after) in zip(seen[-1], seen[-1][1:], strict=False))


def test_a_handler_may_continue_by_the_size_of_its_journal(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("watch", retry=Retry(1))
    def watch(run: BlockingRun, total: int) -> Any:
        while total < 8:
            total += run.signal("news")
            run.step(f"note/{total}", str, total)
            if run.journal.events >= 5:
                run.continue_as_new({"total": total})
        return total

    run = store.processes.start("watch", {"total": 0}, id="watch")
    for _ in range(8):
        run.signal("news", 1)
        worker.run(until_idle=True)
    assert run.outcome(timeout_ms=0) == Completed(8)
    assert run.newest_id() == "watch~3"
