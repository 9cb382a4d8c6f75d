"""A worker outlasts an outage of the database: no attempt is lost by it, and a handler does not run twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.worker import Job, Retry, Run, Worker
from holdfast.worker.claim_renewal import ClaimRenewer, Held

WAIT_S = 30


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.running.AWAY_S", 0.0)


class Away:
    """A call that fails at its first tries: before it took effect, or after."""

    def __init__(self, call: Callable[..., Awaitable[Any]], tries: int, *, applied: bool = False) -> None:
        self._call = call
        self._left = tries
        self._applied = applied

    async def __call__(self, *args: Any, **options: Any) -> Any:
        if self._left == 0:
            return await self._call(*args, **options)
        self._left -= 1
        if self._applied:
            await self._call(*args, **options)
        raise holdfast.Unavailable("the database is away", outcome="unknown" if self._applied else "not_applied")


async def turn_under(store: holdfast.Store, monkeypatch: pytest.MonkeyPatch, method: str, away: Any) -> Any:
    """Run one message by a worker while a method of the session is away. Return calls, messages, batch and tally."""
    worker = Worker(store)
    calls: list[int] = []

    @worker.turn(retry=Retry(1))
    async def answer(turn: holdfast.Turn) -> None:
        calls.append(1)
        turn.add(turn.input)

    batch = await store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["hi"]))
    make = store.sessions.handle

    def handle(session_id: str) -> holdfast.Session:
        session = make(session_id)
        monkeypatch.setattr(session, method, away(getattr(session, method)))
        return session

    monkeypatch.setattr(store.sessions, "handle", handle)
    await worker.serve(until_idle=True)
    monkeypatch.undo()
    settled = await store.queue.get("chat", batch.batch_id)
    assert settled is not None
    return len(calls), await store.sessions.handle("chat").messages(), settled.state, repr(worker.tally)


@pytest.mark.parametrize("applied", [False, True])
def test_a_turns_commit_is_tried_again_while_the_claim_lives(monkeypatch: pytest.MonkeyPatch, applied: bool) -> None:
    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            return await turn_under(store, monkeypatch, "commit", lambda call: Away(call, 3, applied=applied))

    assert asyncio.run(main()) == (1, ["hi"], "completed", "1 done, 0 failed, 0 dead")


def test_a_turn_is_loaded_once_the_database_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            return await turn_under(store, monkeypatch, "_read", lambda call: Away(call, 2))

    assert asyncio.run(main()) == (1, ["hi"], "completed", "1 done, 0 failed, 0 dead")


def test_a_failure_is_recorded_once_the_database_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)

            @worker.job("mail", retry=Retry(1))
            async def send(job: Job) -> None:
                raise ValueError("no")

            draft = holdfast.WorkDraft(session_id="post", payloads=[1], kind="mail")
            batch = await store.queue.enqueue(draft)
            monkeypatch.setattr(store.queue, "fail", Away(store.queue.fail, 3))
            await worker.serve(until_idle=True)
            settled = await store.queue.get("post", batch.batch_id)
            assert settled is not None
            return settled.state, settled.last_error

    assert asyncio.run(main()) == ("dead", "ValueError: no")


def test_a_commit_that_never_succeeds_ends_with_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> tuple[int, int]:
        async with holdfast.open("memory:") as store:
            worker = Worker(store, lease_s=0.5, grace_s=0)
            worker.turn(lambda turn: turn.add("x"))
            away = holdfast.Unavailable("the database is away")
            await store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["hi"]))
            make = store.sessions.handle

            def handle(session_id: str) -> holdfast.Session:
                session = make(session_id)
                monkeypatch.setattr(session, "commit", Away(session.commit, 10**9))
                return session

            def renew(*_: Any, **__: Any) -> Any:
                raise away

            monkeypatch.setattr("holdfast.worker.claim_renewal.ClaimRenewer._renewed", renew)
            monkeypatch.setattr(store.sessions, "handle", handle)
            monkeypatch.setattr("holdfast.worker.running.AWAY_S", 0.01)
            serving = asyncio.create_task(worker.serve())
            while not worker.tally.lost:
                await asyncio.sleep(0.01)
            worker.stop()
            await serving
            return worker.tally.failed, worker.tally.dead

    assert asyncio.run(main()) == (0, 0)


@pytest.mark.parametrize("shape", ["turn", "job", "process"])
def test_an_outage_longer_than_the_claim_makes_no_dead_letter(tmp_path: Path, shape: str) -> None:
    """Another connection holds the file until the claim has ended. The handler was called for its only attempt."""
    path = tmp_path / "agent.db"
    options = holdfast.SqliteOptions(busy_timeout_ms=50)
    worker = Worker(f"sqlite:{path}", concurrency=1, lease_s=0.5, options=options)
    calls: list[int] = []
    called = threading.Event()
    once = Retry(1)

    async def call(attempt: int) -> None:
        calls.append(attempt)
        called.set()
        if len(calls) == 1:
            await asyncio.sleep(WAIT_S)

    @worker.turn(retry=once)
    async def answer(turn: holdfast.Turn) -> None:
        assert turn.claim is not None
        await call(turn.claim.batches[0].attempts)

    @worker.job("mail", retry=once)
    async def send(job: Job) -> None:
        await call(job.attempt)

    @worker.process("research", retry=once)
    async def research(run: Run) -> None:
        await call(run.attempt)

    with holdfast.open_blocking(f"sqlite:{path}") as store:
        if shape == "process":
            store.processes.start("research", id="r1")
        else:
            kind = {"turn": "turn", "job": "mail"}[shape]
            batch = store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1], kind=kind))
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            assert called.wait(WAIT_S)
            outage = apsw.Connection(str(path))
            outage.set_busy_timeout(1000 * WAIT_S)
            outage.execute("BEGIN IMMEDIATE")
            while not worker.tally.lost:
                time.sleep(0.01)
            outage.execute("ROLLBACK")
            outage.close()
            if shape == "process":
                outcome = store.processes.wait("r1", timeout_ms=1000 * WAIT_S)
                assert isinstance(outcome, holdfast.processes.Completed), outcome
            else:
                settled = store.queue.wait_settled("chat", batch.batch_id, timeout_ms=1000 * WAIT_S)
                assert (settled.state, settled.attempts) == ("completed", 1), settled.last_error
        finally:
            worker.stop()
            thread.join(WAIT_S)
    assert len(calls) == 2


def test_an_outage_that_one_of_several_workers_meets_makes_no_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder cannot renew its claim. Another worker takes its only attempt for one that killed the holder."""
    url = f"sqlite:{tmp_path / 'agent.db'}"
    calls: list[str] = []

    async def main() -> Any:
        async with holdfast.open(url) as store:
            cut_off, other = Worker(store, lease_s=0.5), Worker(url)
            is_cut = True

            @cut_off.job("mail", retry=Retry(1))
            async def send(job: Job) -> None:
                calls.append("cut off")
                if len(calls) == 1:
                    await asyncio.sleep(WAIT_S)

            @other.job("mail", retry=Retry(1))
            async def send_elsewhere(job: Job) -> None:
                calls.append("elsewhere")

            def unless_cut(call: Callable[..., Awaitable[Any]]) -> Any:
                async def made(*args: Any, **options: Any) -> Any:
                    if is_cut and calls:
                        raise holdfast.Unavailable("the database is away", outcome="not_applied")
                    return await call(*args, **options)

                return made

            for facet, name in ((store.workers, "heartbeat"), (store.queue, "claim_next"), (store.queue, "give_back")):
                monkeypatch.setattr(facet, name, unless_cut(getattr(facet, name)))
            batch = await store.queue.enqueue(holdfast.WorkDraft(session_id="post", payloads=[1], kind="mail"))
            serving = asyncio.create_task(cut_off.serve())
            while not cut_off.tally.lost:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(other.run, until_idle=True)
            lost = await store.queue.wait_settled("post", batch.batch_id, timeout_ms=1000 * WAIT_S)
            is_cut = False
            while (found := await store.queue.get("post", batch.batch_id)) is None or found.state != "completed":
                await asyncio.sleep(0.01)
            cut_off.stop()
            await serving
            return lost.state, len(await store.queue.dead_letters())

    assert asyncio.run(asyncio.wait_for(main(), WAIT_S)) == ("dead", 0)
    assert calls == ["cut off", "cut off"]


def test_a_claim_whose_answer_is_lost_makes_no_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store, lease_s=0.5)
            calls: list[int] = []

            @worker.job("mail", retry=Retry(1))
            async def send(job: Job) -> None:
                calls.append(1)

            batch = await store.queue.enqueue(holdfast.WorkDraft(session_id="post", payloads=[1], kind="mail"))
            monkeypatch.setattr(store.queue, "claim_next", Away(store.queue.claim_next, 1, applied=True))
            serving = asyncio.create_task(worker.serve())
            settled = await store.queue.wait_settled("post", batch.batch_id, timeout_ms=1000 * WAIT_S)
            worker.stop()
            await serving
            return len(calls), settled.state

    assert asyncio.run(main()) == (1, "completed")


def test_work_is_given_back_at_a_shutdown_once_the_database_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store, grace_s=0)
            called = asyncio.Event()

            @worker.job("mail", retry=Retry(1))
            async def send(job: Job) -> None:
                called.set()
                await asyncio.sleep(WAIT_S)

            batch = await store.queue.enqueue(holdfast.WorkDraft(session_id="post", payloads=[1], kind="mail"))
            monkeypatch.setattr(store.queue, "give_back", Away(store.queue.give_back, 2))
            serving = asyncio.create_task(worker.serve())
            await asyncio.wait_for(called.wait(), WAIT_S)
            worker.stop()
            await serving
            given_back = await store.queue.get("post", batch.batch_id)
            assert given_back is not None
            return given_back.state, given_back.attempts

    assert asyncio.run(main()) == ("pending", 0)


# The renewer.


class Hanging:
    """Renewals that hang until they are let go. The first one, which reports the worker, does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()
        renewed = ClaimRenewer._renewed

        def hang(renewer: ClaimRenewer, *given: Any) -> Any:
            if given[1]:
                self.asked.set()
                assert self.go_on.wait(WAIT_S)
            return renewed(renewer, *given)

        monkeypatch.setattr(ClaimRenewer, "_renewed", hang)


def test_a_claim_is_lost_on_time_though_its_renewal_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog counts from the last accepted renewal, and does not wait for the thread that renews."""
    hanging = Hanging(monkeypatch)
    lost = threading.Event()
    with holdfast.open_blocking("memory:") as store:
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        claim = store.queue.claim_next(owner_id="w1", ttl_ms=300)
        assert claim is not None
        renewer = ClaimRenewer(store, "w1", ["turn"], 300)
        renewer.start()
        held = Held(claim, 300, time.monotonic(), lost.set)
        try:
            renewer.hold(held)
            assert hanging.asked.wait(WAIT_S)
            renewer.give_up_overdue()
            assert not lost.is_set(), "its time is not over"
            while not held.is_over(time.monotonic()):
                time.sleep(0.001)
            renewer.give_up_overdue()
            assert lost.is_set()
            assert held.is_lost
        finally:
            hanging.go_on.set()
            renewer.close()


def test_all_claims_of_a_worker_are_renewed_in_one_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[int] = []
    renewed = ClaimRenewer._renewed

    def count(renewer: ClaimRenewer, *given: Any) -> Any:
        trips.append(len(given[1]) + len(given[2]))
        return renewed(renewer, *given)

    monkeypatch.setattr(ClaimRenewer, "_renewed", count)
    with holdfast.open_blocking("memory:") as store:
        renewer = ClaimRenewer(store, "w1", ["turn"], 60_000)
        for number in range(20):
            store.queue.enqueue(holdfast.WorkDraft(session_id=f"chat-{number}", payloads=[1]))
        store.processes.start("research", id="r1")
        claims: list[Any] = [store.queue.claim_next(owner_id="w1", ttl_ms=60_000) for _ in range(20)]
        run = store.processes.claim_next(owner_id="w1", ttl_ms=60_000)
        assert run is not None
        held = [Held(claim, 60_000, time.monotonic(), lambda: None) for claim in (*claims, run.lease)]
        renewer._renew(held)
        assert trips == [21]
        [worker] = store.workers.list()
        assert len(worker.running) == 21
        renewer.close()


def renewal_s(count: int) -> float:
    """Return the processor time in which a heartbeat renews so many claims, the least of three."""
    with holdfast.open_blocking("memory:") as store:
        for number in range(count):
            store.queue.enqueue(holdfast.WorkDraft(session_id=f"chat-{number}", payloads=[1]))
        claims = [store.queue.claim_next(owner_id="w1", ttl_ms=60_000) for _ in range(count)]
        held = [claim for claim in claims if claim is not None]
        used_s: list[float] = []
        for _ in range(3):
            began_s = time.process_time()
            answer = store.workers.heartbeat(None, ttl_ms=60_000, claims=held)
            used_s.append(time.process_time() - began_s)
            assert len(answer.claims) == count
            assert all(kept is not None for kept in answer.claims)
        return min(used_s)


def test_a_thousand_claims_are_renewed_without_a_scan_for_each() -> None:
    """A heartbeat whose cost grew with the square of its claims took seconds, in which others waited for the store."""
    assert renewal_s(1_000) < 20 * renewal_s(100)


def test_a_claim_whose_settlement_is_on_its_way_is_not_given_up_by_a_renewal() -> None:
    lost = threading.Event()
    with holdfast.open_blocking("memory:") as store:
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        claim = store.queue.claim_next(owner_id="w1", ttl_ms=60_000)
        assert claim is not None
        renewer = ClaimRenewer(store, "w1", ["turn"], 60_000)
        held = Held(claim, 60_000, time.monotonic(), lost.set)
        renewer.hold(held)
        store.queue.complete(claim)
        held.is_settling = True
        renewer._renew([held])
        assert not lost.is_set(), "the answer to the settlement tells if it is lost"
        held.is_settling = False
        renewer._renew([held])
        assert lost.is_set()
        renewer.close()


def test_a_handler_is_cancelled_though_the_renewal_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = Hanging(monkeypatch)

    async def main() -> int:
        async with holdfast.open("memory:") as store:
            worker = Worker(store, lease_s=0.5, grace_s=0)
            ended = asyncio.Event()

            @worker.job("slow")
            async def slow(job: Job) -> None:
                try:
                    await asyncio.sleep(WAIT_S)
                finally:
                    ended.set()

            await store.queue.enqueue(holdfast.WorkDraft(session_id="post", payloads=[1], kind="slow"))
            serving = asyncio.create_task(worker.serve())
            await asyncio.wait_for(ended.wait(), WAIT_S)
            worker.stop()
            hanging.go_on.set()
            await serving
            return worker.tally.lost

    assert asyncio.run(main()) >= 1


def test_a_worker_that_finds_no_database_when_it_starts_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import holdfast\n"
        "worker = holdfast.Worker('postgresql://nobody@127.0.0.1:1/nowhere')\n"
        "worker.job('mail')(print)\n"
    )
    command = [sys.executable, "-m", "holdfast", "worker", "app:worker"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 3, ended.stderr  # the database is not available now
