"""A worker starts, stops and reports: nothing that it is told gets lost, and nothing that fails stays unseen."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.worker import Failure, Job, Retry, Worker

WAIT_S = 30


def put(store: holdfast.BlockingStore, *payloads: Any, session_id: str = "chat", kind: str = "turn") -> list[str]:
    drafts = [holdfast.WorkDraft(session_id=session_id, payloads=[one], kind=kind) for one in payloads]
    return [store.queue.enqueue(draft).batch_id for draft in drafts]


def test_a_stop_before_the_run_ends_the_run_at_once(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    calls: list[Any] = []
    worker.job("mail")(calls.append)
    put(store, 1, kind="mail")
    worker.stop()
    running = threading.Thread(target=worker.run, daemon=True)
    running.start()
    running.join(WAIT_S)
    assert not running.is_alive()
    assert calls == []
    worker.run(until_idle=True)
    assert len(calls) == 1, "a stop ends one run"


def test_a_run_until_idle_waits_for_work_that_a_running_call_makes(url: str, store: holdfast.BlockingStore) -> None:
    """The last look for work must come after the last call has ended."""
    worker = Worker(url, concurrency=2)
    seen: list[int] = []

    @worker.job("chain")
    def chain(job: Job) -> None:
        seen.append(job.payload)
        if job.payload < 5:
            job.store.queue.enqueue(
                holdfast.WorkDraft(session_id=f"s{job.payload}", payloads=[job.payload + 1], kind="chain")
            )

    @worker.turn
    def answer(turn: holdfast.blocking.Turn) -> None:
        turn.enqueue(holdfast.WorkDraft(session_id="s", payloads=[0], kind="chain"))

    put(store, "go")
    worker.run(until_idle=True)
    assert seen == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_job_has_the_workers_store(url: str, store: holdfast.BlockingStore, way: str) -> None:
    worker = Worker(url)

    async def note_async(job: Job) -> None:
        await job.store.sessions.handle("notes").append(job.payload)

    def note(job: Job) -> None:
        job.store.sessions.handle("notes").append(job.payload)
        job.store.close()
        job.store.sessions.handle("notes").append("still open")

    worker.job("note")(note_async if way == "async" else note)
    put(store, "seen", kind="note")
    worker.run(until_idle=True)
    expected = ["seen"] if way == "async" else ["seen", "still open"]
    assert store.sessions.handle("notes").messages() == expected


def test_failures_are_told_and_counted(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    told: list[Failure] = []

    @worker.on_failure
    def broken(failure: Failure) -> None:
        raise RuntimeError

    worker.on_failure(told.append)

    @worker.job("mail", retry=Retry(2, backoff_s=0))
    def send(job: Job) -> None:
        if job.payload == "bad":
            raise ValueError("no such address")

    bad, _ = put(store, "bad", "good", kind="mail")
    worker.run(until_idle=True)
    assert repr(worker.tally) == "1 done, 1 failed, 1 dead"
    assert [(one.id, one.attempt, one.is_last) for one in told] == [(bad, 1, False), (bad, 2, True)]
    assert str(told[0]) == f"job 'mail' {bad!r} of session 'chat' failed at attempt 1, tried again in 0 s"
    assert "ValueError: no such address" in told[1].trace()
    assert "test_lifetime.py" in told[1].trace()


def test_ready_work_without_a_handler_is_warned_of(
    url: str, store: holdfast.BlockingStore, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url)
    worker.job("mail")(lambda job: None)
    put(store, 1, 2, kind="fax")
    put(store, 3, session_id="other", kind="fax")
    put(store, 4, session_id="post", kind="mail")
    with caplog.at_level(logging.WARNING, logger="holdfast.worker"):
        worker.run(until_idle=True)
    assert [record.getMessage() for record in caplog.records] == [
        "kind 'fax' has 3 ready batches and no handler here: add one, or run its worker"
    ]


def test_a_store_that_a_worker_cannot_use_is_refused_when_it_is_made() -> None:
    with (
        holdfast.open_blocking("memory:") as store,
        pytest.raises(holdfast.InvalidRequest, match=r"holdfast\.open") as info,
    ):
        Worker(store)  # type: ignore[arg-type]
    assert info.value.field == "store"
    with pytest.raises(holdfast.InvalidRequest, match="int"):
        Worker(7)  # type: ignore[arg-type]


def test_a_cancelled_wait_for_more_messages_loses_none(url: str) -> None:
    async def main() -> tuple[int, list[Any], int]:
        async with holdfast.open(url) as store:
            queue = store.queue
            await queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["one"]))
            claim = await queue.claim_next(owner_id="w1", exclusive=True)
            async with store.sessions.handle("chat").turn(claim=claim) as turn:
                await queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["two"]))
                widen, widened, go_on = turn._widen, asyncio.Event(), asyncio.Event()

                async def slow(held: holdfast.WorkClaim) -> holdfast.WorkClaim | None:
                    wider = await widen(held)
                    widened.set()
                    await go_on.wait()
                    return wider

                turn._widen = slow
                more = asyncio.create_task(turn.more())
                await widened.wait()
                more.cancel()
                await asyncio.sleep(0)
                more.cancel()
                await asyncio.sleep(0)
                go_on.set()
                with pytest.raises(asyncio.CancelledError):
                    await more
                turn.add(turn.inputs)
            left = len(await queue.list("chat"))
            return len(turn.inputs), await store.sessions.handle("chat").messages(), left

    assert asyncio.run(main()) == (2, [["one", "two"]], 0)


# The command line.

APP = """
import holdfast
worker = holdfast.Worker("agent.db")
number = 7

@worker.job("mail", retry=holdfast.Retry(2, backoff_s=0))
def send(job):
    if job.payload == "bad":
        raise ValueError("no such address")
"""


def command(folder: Path, place: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "worker", place, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_the_command_shows_failures_warnings_and_counts(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with holdfast.open_blocking(tmp_path / "agent.db") as store:
        put(store, "bad", "good", kind="mail")
        put(store, "x", session_id="other", kind="fax")
    ended = command(tmp_path, "app:worker", "--until-idle")
    assert (ended.returncode, ended.stdout) == (0, "")
    lines = ended.stderr.splitlines()
    assert lines[0].startswith("Worker(mail) is running")
    assert lines[-1] == "ended: 1 done, 1 failed, 1 dead"
    assert "    ValueError: no such address" in lines
    assert any("raise ValueError" in line for line in lines)
    assert any(line.startswith("warning: kind 'fax' has 1 ready") for line in lines)


@pytest.mark.parametrize(
    ("place", "content", "says"),
    [
        ("app", APP, "write MODULE:NAME"),
        ("apq:worker", APP, "there is no module 'apq' here"),
        ("app:walker", APP, "module 'app' has no 'walker': name app:worker"),
        ("app:number", APP, "app:number is of type int, not a holdfast.Worker: name app:worker"),
        ("app:worker", "number = 7", "module 'app' has no 'worker': give your holdfast.Worker a name in it"),
        ("app:worker", "import json\n1 / 0\n", "app.py:2: ZeroDivisionError: division by zero: mend it"),
        ("app:worker", "def broken(:\n", "app.py:1: SyntaxError"),
        ("app:worker", "import no_such_library\n", "app.py:1: No module named 'no_such_library': install it"),
    ],
)
def test_a_worker_that_cannot_be_imported_is_one_line_with_the_next_step(
    tmp_path: Path, place: str, content: str, says: str
) -> None:
    (tmp_path / "app.py").write_text(content)
    ended = command(tmp_path, place)
    assert ended.returncode != 0
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


STUBBORN = """
import asyncio, sys, holdfast

worker = holdfast.Worker(sys.argv[1], grace_s=0.5)


async def stay() -> None:
    print("begun", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass


@worker.turn
async def answer(turn: holdfast.Turn) -> None:
    await stay()


@worker.process("watch")
async def watch(run: holdfast.worker.Run) -> None:
    await stay()


worker.run()
"""


def test_handlers_that_swallow_a_cancel_do_not_keep_the_worker_from_ending(
    url: str, store: holdfast.BlockingStore
) -> None:
    [batch_id] = put(store, "hi")
    store.processes.start("watch", id="watch-1")
    with subprocess.Popen([sys.executable, "-c", STUBBORN, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == ["begun\n", "begun\n"]
        process.terminate()
        try:
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
    batch = store.queue.get("chat", batch_id)
    assert batch is not None
    assert (batch.state, batch.attempts) == ("pending", 0), "its work is given back"
    assert store.leases.holder(holdfast.leases.OnProcess("watch-1")) is None
    assert list(store.workers.list()) == []
