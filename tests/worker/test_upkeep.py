"""Beside its handlers, a worker fires schedules, starts triggered runs and collects garbage: each thing once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import StoreClosed
from holdfast.processes import External, Run
from holdfast.schedules import Schedule
from holdfast.testing.clock import ManualClock
from holdfast.triggers import EventPayload, SubscriptionDraft
from holdfast.worker import Worker, background_tasks
from holdfast.worker.background_tasks import Ticker
from holdfast.worker.housekeeping import NAME, Housekeeping
from holdfast.worker.router import Router

WAIT_S = 60
DAY_MS = 24 * 3_600_000


async def until(found: Callable[[], Any]) -> None:
    """Let other tasks run until something is there."""
    deadline_s = time.monotonic() + WAIT_S
    while not found():
        assert time.monotonic() < deadline_s, "it did not happen"
        await asyncio.sleep(0.01)


# Schedules.


def test_each_tick_is_one_job_of_the_kind(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    done: list[tuple[Any, str]] = []
    worker.job("report")(lambda job: done.append((job.payload, job.batch.source_key)))
    worker.every("0 3 * * *", "report", tz="Europe/Vienna", payload={"days": 7})
    worker.run(until_idle=True)
    assert done == []
    schedule = store.schedules.get("report")
    assert schedule is not None
    assert (schedule.cron, schedule.tz, schedule.last_tick_ms) == ("0 3 * * *", "Europe/Vienna", None)
    missed(store, "report")
    worker.run(until_idle=True)
    worker.run(until_idle=True)
    [(payload, source_key)] = done
    assert payload == {"days": 7}
    assert source_key.startswith("schedule:report:20")
    batch = store.queue.find("schedule:report", source_key)
    assert batch is not None
    assert (batch.kind, batch.state) == ("report", "completed")


def missed(store: holdfast.BlockingStore, name: str) -> None:
    """Make a schedule look as if no worker had been there for three days."""
    schedule = store.schedules.get(name)
    assert schedule is not None
    assert schedule.next_tick_ms is not None
    store.schedules.remove(name)
    past = Schedule(
        name=name,
        cron=schedule.cron,
        tz=schedule.tz,
        work=schedule.work,
        run=schedule.run,
        paused=False,
        next_tick_ms=schedule.next_tick_ms - 3 * DAY_MS,
        last_tick_ms=None,
        seen_ms=schedule.next_tick_ms - 3 * DAY_MS - 1,
        failure=None,
        created_at_ms=0,
        updated_at_ms=0,
    )
    store.schedules.restore(past)


def test_a_tick_is_a_turn_or_a_run_if_the_handler_is(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    worker.turn(lambda turn: turn.add(turn.input))
    runs: list[Any] = []
    worker.process("research", version="2")(lambda run, question: runs.append(question))
    worker.every("0 3 * * *", "turn", name="morning", session_id="chat", payload="good morning")
    worker.every("0 4 * * *", "research", payload={"question": "why?"})
    worker.run(until_idle=True)
    for name in ("morning", "research"):
        store.schedules.run_now(name)
    worker.run(until_idle=True)
    assert store.sessions.handle("chat").messages() == ["good morning"]
    assert runs == ["why?"]


def test_a_running_worker_fires_at_the_tick_and_once_with_others() -> None:
    async def main() -> list[int]:
        clock = ManualClock()
        done: list[int] = []
        async with holdfast.open("memory:", clock=clock) as store:
            workers = [Worker(store) for _ in range(3)]
            for worker in workers:
                worker.job("report")(lambda job: done.append(job.payload))
                worker.every("0 3 * * *", "report", payload=1)
            serving = [asyncio.create_task(worker.serve()) for worker in workers]
            for day in range(1, 4):
                await asyncio.sleep(0.05)
                assert len(done) == day - 1
                clock.advance(DAY_MS)
                await until(lambda day=day: len(done) == day)
            for worker in workers:
                worker.stop()
            await asyncio.gather(*serving)
        return done

    assert asyncio.run(main()) == [1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("0 0 31 2 *", "report"), "cron"),
        (("nightly", "report"), "cron"),
        (("0 3 * * *", "report", {"tz": "Mars"}), "tz"),
        (("0 3 * * *", "report", {"payload": "x" * 20_000_000}), "payload"),
        (("0 3 * * *", "report", {"payload": object()}), "payload"),
        (("0 3 * * *", "report", {"session_id": ""}), "session_id"),
        (("0 3 * * *", " "), "kind"),
        (("0 3 * * *", "report", {"name": ""}), "name"),
    ],
    ids=["impossible", "no cron", "zone", "large", "no JSON", "session", "kind", "name"],
)
def test_a_wrong_schedule_is_refused_where_it_is_declared(arguments: tuple[Any, ...], field: str) -> None:
    worker = Worker("memory:")
    options = arguments[2] if len(arguments) > 2 else {}
    with pytest.raises(holdfast.InvalidRequest) as info:
        worker.every(*arguments[:2], **options)
    assert info.value.field == field


def test_a_schedule_needs_a_handler_and_a_name_of_its_own() -> None:
    worker = Worker("memory:")
    worker.turn(lambda turn: None)
    worker.process("research")(lambda run: None)
    worker.every("0 3 * * *", "report")
    with pytest.raises(holdfast.InvalidRequest) as twice:
        worker.every("0 4 * * *", "report")
    assert twice.value.field == "name"
    with pytest.raises(holdfast.InvalidRequest) as info:
        worker.run(until_idle=True)
    assert (info.value.field, "@worker.job('report')" in info.value.problem) == ("kind", True)
    worker.job("report")(lambda job: None)
    worker.run(until_idle=True)
    worker.every("0 4 * * *", "research", session_id="chat")
    with pytest.raises(holdfast.InvalidRequest) as session:
        worker.run(until_idle=True)
    assert session.value.field == "session_id"


def test_a_payload_that_does_not_fit_the_handler_of_a_run_is_refused_when_the_worker_starts() -> None:
    worker = Worker("memory:")

    @worker.process("research")
    def research(run: Any, days: int) -> None: ...

    worker.every("0 3 * * *", "research", name="fits", payload={"days": 7})
    worker.run(until_idle=True)
    worker.every("0 4 * * *", "research", name="weekly", payload={"days": "seven"})
    with pytest.raises(holdfast.InvalidRequest) as info:
        worker.run(until_idle=True)
    assert info.value.field == "payload"
    assert "'weekly'" in info.value.problem
    assert "days" in info.value.problem


def test_without_the_extra_a_worker_says_that_schedules_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> bool:
        async with holdfast.open("memory:") as store:
            await store.schedules.put("nightly", "0 3 * * *")
            monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
            worker = Worker(store)
            ticker = Ticker(store, worker._service.upkeep.schedules, worker._handlers)
            await ticker.declare()
            return await ticker.act()

    with caplog.at_level(logging.WARNING, "holdfast"):
        assert asyncio.run(main()) is False
    assert "pip install 'holdfast[schedules]'" in caplog.text


PROGRAM = """
import sys, time
import holdfast

worker = holdfast.Worker(sys.argv[1], concurrency=2, lease_s=1)

@worker.job("report", retry=holdfast.Retry(100, backoff_s=0))
def report(job):
    pass

@worker.process("research", retry=holdfast.Retry(100, backoff_s=0))
def research(run, n):
    return n

worker.run()
"""


def begun(url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, url])


def test_killed_workers_fire_every_tick_once_and_start_every_delivery_once(
    url: str, store: holdfast.BlockingStore
) -> None:
    """Schedules and deliveries come while the workers that fire and route them are killed at any moment."""
    rounds, names = 6, [f"s{number}" for number in range(12)]
    draft = SubscriptionDraft(source_type="schedule", source_key="s0", target=Run("research", args={"n": 0}))
    subscriptions = [store.triggers.subscribe(draft) for _ in range(5)]
    running = [begun(url) for _ in range(2)]
    try:
        for number in range(rounds):
            for name in names:
                work = holdfast.WorkDraft(session_id="reports", payloads=[number], kind="report")
                # Due since long ago: its latest tick fires at once, another one in each round.
                cron, tick_ms = f"{number} 3 * * *", 1_700_017_200_000
                due = Schedule(name, cron, "UTC", work, None, False, tick_ms, None, tick_ms - 1, None, 0, 0)
                store.schedules.remove(name)
                store.schedules.restore(due)
            victim = number % 2
            running[victim].kill()
            running[victim].wait(WAIT_S)
            running[victim] = begun(url)
            deadline_s = time.monotonic() + WAIT_S
            while not all(is_fired(store, name) for name in names):
                assert time.monotonic() < deadline_s, "not every schedule fired"
                time.sleep(0.05)
        deadline_s = time.monotonic() + WAIT_S
        while settled(store) != (len(names) * rounds, len(subscriptions) * rounds):
            assert time.monotonic() < deadline_s, "not everything was settled"
            time.sleep(0.1)
    finally:
        for process in running:
            process.kill()
            process.wait(WAIT_S)
    occurrences = list(holdfast.every(store.triggers.occurrences))
    assert len(occurrences) == len({(one.source_key, one.idempotency_key) for one in occurrences})
    assert len(occurrences) == store.maintenance.stats().settled_batches == len(names) * rounds
    runs = [one for one in holdfast.every(store.processes.list, status="any") if one.id != NAME]
    assert len(runs) == len(subscriptions) * rounds
    assert {one.status for one in runs} == {"completed"}
    assert len(store.triggers.undelivered()) == 0
    assert store.maintenance.verify().findings == ()


def is_fired(store: holdfast.BlockingStore, name: str) -> bool:
    schedule = store.schedules.get(name)
    return schedule is not None and schedule.last_tick_ms is not None


def settled(store: holdfast.BlockingStore) -> tuple[int, int]:
    """Count the settled jobs of ticks, and the completed runs."""
    jobs = [
        store.queue.find("reports", f"schedule:{one.source_key}:{one.idempotency_key}")
        for one in holdfast.every(store.triggers.occurrences)
    ]
    runs = [one for one in holdfast.every(store.processes.list, status="any") if one.status == "completed"]
    return sum(one is not None and one.state == "completed" for one in jobs), len(runs)


# Outages and damage.


def test_a_background_task_outlasts_an_outage_and_an_error_but_not_its_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Hurt(background_tasks.BackgroundTask):
        name = "trying"

        def __init__(self) -> None:
            self.answers: list[Any] = [
                True,
                holdfast.Unavailable("the database is away"),
                holdfast.Corrupt("schedules", "nightly", "is damaged"),
                False,
                StoreClosed(),
            ]

        async def act(self) -> bool:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return bool(answer)

        async def wait(self) -> None:
            raise holdfast.WaitTimeout("something to do", 1)

    monkeypatch.setattr(background_tasks, "AWAY_S", 0)
    monkeypatch.setattr(background_tasks, "PUT_OFF_S", 0)
    hurt = Hurt()
    with caplog.at_level(logging.WARNING, "holdfast"), pytest.raises(StoreClosed):
        asyncio.run(hurt.serve())
    assert hurt.answers == []
    assert [record.getMessage() for record in caplog.records] == [
        "trying cannot continue (Unavailable)",
        "trying cannot continue (Corrupt)",
    ]


def test_each_tick_that_starts_nothing_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        clock = ManualClock(0)
        async with holdfast.open("memory:", clock=clock) as store:
            await store.sessions.create("reports")
            await store.sessions.delete("reports")
            work = holdfast.WorkDraft(session_id="reports", payloads=[{}], kind="report")
            await store.schedules.put("nightly", "0 3 * * *", work=work)
            worker = Worker(store)
            worker.job("report")(lambda job: None)
            serving = asyncio.create_task(worker.serve())
            try:
                for tick in (1, 2):
                    clock.advance(DAY_MS)
                    await until(lambda tick=tick: len(caplog.records) >= tick)
            finally:
                worker.stop()
                await serving

    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        asyncio.run(main())
    logged = "schedule 'nightly' started nothing: see holdfast schedules list"
    assert [record.getMessage() for record in caplog.records] == [logged, logged]


# Triggered runs.


def triggered(store: holdfast.BlockingStore, *, key: str, payload: Any = None, schema: Any = None) -> None:
    draft = SubscriptionDraft(
        source_type="mail",
        source_key="inbox",
        target=Run("research", args={"depth": 1}),
        payload_schema={} if schema is None else schema,
        input_template={"question": EventPayload()},
        key="research",
    )
    store.triggers.subscribe(draft)
    store.triggers.emit("mail", "inbox", idempotency_key=key, payload=payload)


def test_a_delivery_starts_its_run_and_others_are_left_to_their_host(url: str, store: holdfast.BlockingStore) -> None:
    external = SubscriptionDraft(source_type="mail", source_key="inbox", target=External())
    store.triggers.subscribe(external)
    triggered(store, key="1", payload="why?")
    worker = Worker(url)
    asked: list[Any] = []
    worker.process("research")(lambda run, depth, question: asked.append((depth, question)))
    worker.run(until_idle=True)
    worker.run(until_idle=True)
    assert asked == [(1, "why?")]
    [left] = store.triggers.undelivered()
    assert left.subscription.draft.target == External()
    [occurrence] = store.triggers.occurrences()
    states = {one.process_id: one.state for one in store.triggers.deliveries(occurrence.occurrence_id)}
    assert sorted(states.values()) == ["reserved", "started"]


def test_a_payload_that_does_not_fit_fails_its_delivery_with_the_reason(
    url: str, store: holdfast.BlockingStore, caplog: pytest.LogCaptureFixture
) -> None:
    triggered(store, key="1", payload=7, schema={"type": "string"})
    triggered(store, key="2", payload="why?", schema={"type": "string"})
    worker = Worker(url)
    asked: list[Any] = []
    worker.process("research")(lambda run, depth, question: asked.append(question))
    with caplog.at_level(logging.WARNING, "holdfast"):
        worker.run(until_idle=True)
    assert asked == ["why?"]
    assert "a delivery failed (InvalidRequest)" in caplog.text
    assert len(store.triggers.undelivered()) == 0
    failures = [
        delivery.failure
        for one in store.triggers.occurrences()
        for delivery in store.triggers.deliveries(one.occurrence_id)
        if delivery.state == "failed"
    ]
    assert len(failures) == 1
    assert "payload" in str(failures[0])


def test_a_damaged_delivery_does_not_keep_others_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.router.AWAY_S", 0.01)
    path = tmp_path / "agent.db"
    with holdfast.open_blocking(path) as store:
        triggered(store, key="first")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM subscriptions")

    async def main() -> int:
        async with holdfast.open(path) as store:
            with pytest.raises(holdfast.Corrupt):
                await store.triggers.undelivered(runs_only=True)
            draft = SubscriptionDraft(source_type="mail", source_key="outbox", target=Run("research"), key="other")
            router = Router(store)
            serving = asyncio.create_task(router.serve())
            await store.triggers.subscribe(draft)
            for number in range(2):
                await store.triggers.emit("mail", "outbox", idempotency_key=f"mail-{number}")
                while len(await store.processes.list()) <= number:
                    await asyncio.sleep(0.01)
            serving.cancel()
            return len(await store.processes.list())

    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        assert asyncio.run(asyncio.wait_for(main(), WAIT_S)) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "passed over a damaged row of deliveries: run holdfast verify"
    ]


def test_routers_at_once_start_each_run_once(url: str, store: holdfast.BlockingStore) -> None:
    async def main() -> None:
        async with holdfast.open(url) as one, holdfast.open(url) as two:
            await asyncio.gather(*(Router(each).act() for each in (one, two, one, two)))

    for number in range(20):
        triggered(store, key=str(number), payload=number)
    asyncio.run(main())
    assert len(store.triggers.undelivered()) == 0
    assert len(list(holdfast.every(store.processes.list, status="any"))) == 20


# Housekeeping.


def test_housekeeping_is_done_by_one_worker_at_a_time_and_prunes_only_by_a_policy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> list[int]:
        clock = ManualClock()
        counts: list[int] = []
        async with holdfast.open("memory:", clock=clock) as store:
            session = await store.sessions.create("chat")
            for number in range(3):
                await session.append({"n": number})
            worker = Worker(store)
            worker.turn(lambda turn: None)
            async with worker._service._runner(asyncio.Event()) as runner:
                keep = holdfast.RetentionPolicy(keep_revisions=1)
                first = Housekeeping(runner, 3_600_000, None)
                second = Housekeeping(runner, 3_600_000, keep)
                assert [await first.act(), await second.act()] == [False, False]
                for one in (first, second):
                    clock.advance(3_600_000)
                    answers = await asyncio.gather(one.act(), Housekeeping(runner, 3_600_000, None).act())
                    assert answers.count(True) == 1
                    counts.append((await store.maintenance.stats()).revisions)
            process = await store.processes.get(NAME)
            assert process is not None
            assert (process.status, process.due_at_ms) == ("running", clock.now_ms() + 3_600_000)
        return counts

    with caplog.at_level(logging.INFO, "holdfast"):
        assert asyncio.run(main())[0] == 3
    assert "housekeeping pruned 0 rows" in caplog.text


def test_a_round_that_fails_shows_its_error_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with holdfast.open("memory:", clock=clock) as store:
            worker = Worker(store)
            worker.turn(lambda turn: None)
            async with worker._service._runner(asyncio.Event()) as runner:
                keeper = Housekeeping(runner, 60_000, None)
                await keeper.act()
                clock.advance(60_000)

                async def broken() -> None:
                    raise holdfast.Corrupt("blobs", "x", "is damaged")

                with monkeypatch.context() as patch:
                    patch.setattr(store.maintenance, "collect_garbage", broken)
                    assert await keeper.act() is True
                process = await store.processes.get(NAME)
                assert process is not None
                assert "is damaged" in str(process.last_error)
                clock.advance(60_000)
                assert await keeper.act() is True

    asyncio.run(main())


def test_a_round_that_is_cut_off_by_a_shutdown_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with holdfast.open("memory:") as store:
            worker = Worker(store, housekeeping_s=1)
            worker.turn(lambda turn: None)
            started = asyncio.Event()

            async def endless() -> None:
                started.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(store.maintenance, "collect_garbage", endless)
            serving = asyncio.create_task(worker.serve())
            await asyncio.wait_for(started.wait(), WAIT_S)
            worker.stop()
            await serving
            claim = await store.processes.claim_next(owner_id="other", kinds=[NAME])
            assert claim is not None
            assert claim.takeover is False

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"housekeeping_s": 0}, "housekeeping_s"),
        ({"housekeeping_s": "hourly"}, "housekeeping_s"),
        ({"prune": {}}, "prune"),
        ({"prune": holdfast.RetentionPolicy(keep_revisions=0)}, "prune.keep_revisions"),
    ],
)
def test_wrong_terms_of_housekeeping_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(holdfast.InvalidRequest) as info:
        Worker("memory:", **options)
    assert info.value.field == field
