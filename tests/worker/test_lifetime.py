"""A worker starts, stops and reports: no request to stop gets lost, and no failure stays unseen."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import LeaseLost
from holdfast.testing.clock import ManualClock
from holdfast.worker import BlockingRun, Failure, Job, Retry, Run, Worker, unhandled
from holdfast.worker.calls import StepThreads
from holdfast.worker.claim_renewal import ClaimRenewer, Held
from holdfast.worker.housekeeping import NAME

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


def test_failures_are_reported_and_counted(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    reported: list[Failure] = []

    @worker.on_failure
    def broken(failure: Failure) -> None:
        raise RuntimeError

    worker.on_failure(reported.append)

    @worker.job("mail", retry=Retry(2, backoff_s=0))
    def send(job: Job) -> None:
        if job.payload == "bad":
            raise ValueError("no such address")

    bad, _ = put(store, "bad", "good", kind="mail")
    worker.run(until_idle=True)
    assert repr(worker.tally) == "1 done, 1 failed, 1 dead"
    assert [(one.id, one.attempt, one.is_last) for one in reported] == [(bad, 1, False), (bad, 2, True)]
    assert str(reported[0]) == f"job 'mail' {bad!r} of session 'chat' failed at attempt 1, tried again in 0 s"
    assert "ValueError: no such address" in reported[1].trace()
    assert "test_lifetime.py" in reported[1].trace()


def test_a_listener_that_ends_the_program_leaves_the_failure_stored(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    stored: dict[str, str] = {}
    [batch_id] = put(store, "hi", session_id="mail", kind="mail")
    run = store.processes.start("watch").process

    @worker.job("mail", retry=Retry(1))
    def send(job: Job) -> None:
        raise ValueError("job")

    @worker.process("watch", retry=Retry(1))
    def watch(run: BlockingRun) -> None:
        raise ValueError("run")

    @worker.on_failure
    def look(failure: Failure) -> None:
        """Find what a program would leave that ends here."""
        batch = store.queue.get("mail", batch_id)
        assert batch is not None
        stored[failure.shape] = str(batch.last_error) if failure.shape == "job" else store.processes.get(run.id).status

    worker.run(until_idle=True)
    assert stored == {"job": "ValueError: job", "process": "failed"}


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


def test_an_unknown_kind_behind_many_processes_is_warned_of(
    url: str, store: holdfast.BlockingStore, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(60):
        store.processes.register(holdfast.ProcessRegistration(f"a{number}", holdfast.processes.External()))
    store.processes.start("research", id="z")
    worker = Worker(url)
    worker.job("mail")(lambda job: None)
    worker.run(until_idle=True)
    assert "kind 'research' has 1 runs of version '1' that wait and no handler here" in caplog.text


def test_looks_for_unknown_kinds_continue_where_the_last_one_ended(
    url: str, store: holdfast.BlockingStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MOST_PROCESSES", 6), ("PROCESSES_PER_PAGE", 4), ("MOST_SESSIONS", 2), ("LOOK_EVERY_S", 0.01)):
        monkeypatch.setattr(unhandled, name, value)
    for number in range(20):
        store.processes.register(holdfast.ProcessRegistration(f"a{number}", holdfast.processes.External()))
    store.processes.start("research", id="z")
    store.workers.heartbeat(holdfast.workers.WorkerInfo("other", host="h", pid=7, kinds=("known",)), ttl_ms=60_000)
    for number in range(5):
        put(store, 1, session_id=f"a{number}", kind="known")
    put(store, 1, session_id="z", kind="fax")
    worker = Worker(url)
    worker.job("mail")(lambda job: None)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    deadline_s = time.monotonic() + WAIT_S
    try:
        for kind in ("research", "fax"):
            while caplog.text.count(f"kind '{kind}' has 1 ") < 2:
                assert time.monotonic() < deadline_s, f"{kind} is found in each round"
                time.sleep(0.01)
    finally:
        worker.stop()
        thread.join(WAIT_S)
    assert "kind 'known'" not in caplog.text


def test_a_run_of_a_version_without_a_handler_is_warned_of_and_explained(
    url: str, store: holdfast.BlockingStore, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url)
    worker.process("research", version="2")(lambda run: 1)
    worker.process("research", version="3")(lambda run: 1)
    store.processes.start("research", id="r1")
    worker.run(until_idle=True)
    assert "has 1 runs of version '1' that wait and no handler here: handled here are 2, 3" in caplog.text
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    deadline_s = time.monotonic() + WAIT_S
    while not store.workers.list():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    [cause] = store.maintenance.explain_process("r1").causes
    worker.stop()
    thread.join(WAIT_S)
    assert (cause.name, cause.standing) == ("no-worker", "stuck")
    assert "it is of version '1', and of its kind the live workers handle only '2', '3'" in cause.problem


def test_kinds_of_other_live_workers_and_housekeeping_are_not_warned_of(
    url: str, store: holdfast.BlockingStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, 1, kind="fax")
    store.processes.start("research", id="r1")
    store.processes.start("research", id="r2", version="2")
    store.processes.start(NAME, id=NAME)
    other = holdfast.workers.WorkerInfo(
        "other", host="elsewhere", pid=7, kinds=("fax", "research"), versions={"research": ("2",)}
    )
    store.workers.heartbeat(other, ttl_ms=60_000)
    worker = Worker(url)
    worker.job("mail")(lambda job: None)
    with caplog.at_level(logging.WARNING, logger="holdfast.worker"):
        worker.run(until_idle=True)
    said = "kind 'research' has 1 runs of version '1' that wait and no handler here: add one, or run its worker"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_the_newest_version_is_found_by_its_numbers() -> None:
    worker = Worker("agent.db")
    for version in ("10", "9", "v2", "1.10", "1.9"):
        worker.process("research", version=version)(lambda run: 1)
    worker.process("other")(lambda run: 1)
    assert worker.handlers.versions("research") == ["1.9", "1.10", "9", "10", "v2"]
    assert worker.handlers.all_versions() == {"other": ("1",), "research": ("1.9", "1.10", "9", "10", "v2")}


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


def test_the_command_does_not_say_that_it_runs_before_its_store_is_open(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.replace('"agent.db"', '"postgresql://127.0.0.1:1/agents"'))
    ended = command(tmp_path, "app:worker")
    assert ended.returncode == 3
    assert "is running" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr


def test_a_listener_is_called_at_each_start_once_the_worker_is_listed(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    worker.job("mail")(lambda job: None)
    listed: list[int] = []
    worker.on_start(lambda: listed.append(len(store.workers.list())))
    for _ in range(2):
        worker.run(until_idle=True)
    assert listed == [1, 1]
    with pytest.raises(holdfast.InvalidRequest, match="listener"):
        worker.on_start(7)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("place", "content", "says"),
    [
        ("app", APP, "write MODULE:NAME"),
        ("apq:worker", APP, "there is no module 'apq' here"),
        ("app:walker", APP, "module 'app' has no 'walker': name app:worker"),
        ("app:number", APP, "app:number is of type int, not a holdfast.Worker: name app:worker"),
        ("app:worker", "number = 7", "module 'app' has no 'worker': give your holdfast.Worker a name in it"),
        ("app:worker", "import json\n1 / 0\n", "app.py:2: ZeroDivisionError: division by zero: fix it"),
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


@worker.process("pay", recovery="owner_bound")
async def pay(run: holdfast.worker.Run) -> None:
    await stay()


worker.run()
"""


def test_handlers_that_swallow_a_cancel_do_not_keep_the_worker_from_ending(
    url: str, store: holdfast.BlockingStore
) -> None:
    [batch_id] = put(store, "hi")
    store.processes.start("watch", id="watch-1")
    store.processes.start("pay", id="pay-1")
    with subprocess.Popen([sys.executable, "-c", STUBBORN, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["begun\n"] * 3
        process.terminate()
        try:
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
    batch = store.queue.get("chat", batch_id)
    assert batch is not None
    assert (batch.state, batch.attempts) == ("pending", 0), "its work is given back"
    assert store.leases.holder(holdfast.leases.OnProcess("watch-1")) is None
    assert store.leases.holder(holdfast.leases.OnProcess("pay-1")) is not None, "a takeover abandons it"
    assert list(store.workers.list()) == []


BLOCKED = """
import sys, threading, holdfast

worker = holdfast.Worker(sys.argv[1], grace_s=0, concurrency=40)
together = threading.Barrier(40, action=lambda: print("begun", flush=True))


def block():
    together.wait()
    threading.Event().wait()


@worker.process("watch")
async def watch(run):
    await run.step("block", block)


worker.run()
"""


FORKING = """
import os, signal, sys, holdfast

worker = holdfast.Worker(sys.argv[1], concurrency=1)

@worker.job("fork")
def fork(job):
    ready, reported = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(reported, b"x")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    print("ended by", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    if job.payload == 3:
        worker.stop()

with holdfast.open_blocking(sys.argv[1]) as store:
    for number in (1, 2, 3):
        store.sessions.handle(f"s{number}").enqueue(number, kind="fork")
worker.run()
print(worker.tally)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_signal_to_a_forked_child_of_a_handler_is_not_the_workers(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FORKING)
    command = [sys.executable, "-W", "ignore", str(program), str(tmp_path / "agent.db")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert ended.stdout.splitlines() == ["ended by -15"] * 3 + ["3 done, 0 failed, 0 dead"], ended.stderr


def test_the_signal_handlers_of_the_program_are_its_own_again_after_a_run() -> None:
    def own(*_: object) -> None: ...

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, own) for number in numbers}
    try:
        worker = Worker("memory:")
        worker.job("mail")(lambda job: None)
        worker.run(until_idle=True)
        assert [signal.getsignal(number) for number in numbers] == [own, own]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_plain_steps_that_block_run_at_once_and_do_not_keep_the_worker_from_ending(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'agent.db'}"
    with holdfast.open_blocking(url) as store:
        ids = [f"watch-{number}" for number in range(40)]
        for id in ids:
            store.processes.start("watch", id=id)
        with subprocess.Popen([sys.executable, "-c", BLOCKED, url], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                watchdog = threading.Timer(WAIT_S, process.kill)
                watchdog.start()
                assert process.stdout.readline() == "begun\n", "as many steps run as the worker makes calls"
                watchdog.cancel()
                process.terminate()
                assert process.wait(WAIT_S) == 0
            finally:
                process.kill()
        assert [store.leases.holder(holdfast.leases.OnProcess(id)) for id in ids] == [None] * 40


def test_a_step_that_waits_for_a_thread_and_is_cancelled_is_not_called() -> None:
    async def main() -> list[str]:
        threads, gate, calls = StepThreads(1), threading.Event(), list[str]()
        call = threads.noting([])

        def first() -> None:
            gate.wait(WAIT_S)
            calls.append("first")

        async def start(function: Callable[..., None], *args: str) -> None:
            await call(function, *args)

        tasks = [asyncio.create_task(start(first)), asyncio.create_task(start(calls.append, "second"))]
        await asyncio.sleep(0)
        tasks[1].cancel()
        gate.set()
        await tasks[0]
        await call(calls.append, "third")
        threads.close()
        return calls

    assert asyncio.run(main()) == ["first", "third"]


@pytest.mark.parametrize(
    ("way", "reason"),
    [("plain", "in a thread, which cannot be stopped"), ("async", "because it swallows CancelledError")],
)
@pytest.mark.parametrize("shape", ["turn", "job", "process"])
def test_a_handler_over_its_time_limit_is_reported_while_it_runs(
    url: str, store: holdfast.BlockingStore, shape: str, way: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url, lease_s=1)
    goes_on = threading.Event()

    def block(given: Any) -> None:
        goes_on.wait(WAIT_S)

    async def swallow(given: Any) -> None:
        while not goes_on.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    hang: Callable[[Any], Any] = block if way == "plain" else swallow
    if shape == "process":
        worker.process("hang", timeout_s=0.1, retry=Retry(1))(hang)
        work_id = store.processes.start("hang", id="r1").process.id
    else:
        register = worker.turn(kind="hang", timeout_s=0.1) if shape == "turn" else worker.job("hang", timeout_s=0.1)
        register(hang)
        work_id = store.sessions.create("chat").enqueue(1, kind="hang").batch_id
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    deadline_s = time.monotonic() + WAIT_S
    try:
        while not any(one.overdue for one in store.workers.list()):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        explain = store.maintenance.explain_process if shape == "process" else store.maintenance.explain_session
        [cause, *_] = explain("r1" if shape == "process" else "chat").causes
    finally:
        goes_on.set()
        worker.stop()
        thread.join(WAIT_S)
    assert (cause.name, cause.subject_id) == ("over-its-time-limit", work_id)
    assert f"runs longer than its 0.1 s {reason}: {work_id} waits" in caplog.text


@pytest.mark.parametrize("way", ["time limit", "error beside it"])
def test_a_step_in_a_thread_has_returned_before_the_next_attempt_calls_it(
    url: str, store: holdfast.BlockingStore, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url)
    lock, running, calls, most = threading.Lock(), 0, 0, 0

    def slow() -> None:
        nonlocal running, calls, most
        with lock:
            running, calls = running + 1, calls + 1
            most = max(most, running)
            is_first = calls == 1
        if is_first:
            time.sleep(0.6)
        with lock:
            running -= 1

    @worker.process("agent", timeout_s=0.2 if way == "time limit" else None, retry=Retry(2, backoff_s=0))
    async def agent(run: Run) -> None:
        if way == "time limit":
            await run.step("slow", slow)
        else:
            async with asyncio.timeout(0.2 if run.attempt == 1 else WAIT_S):
                await run.step("slow", slow)

    store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    assert store.processes.handle("r1").outcome() == holdfast.processes.Completed()
    assert (calls, most) == (2, 1)
    assert ("runs longer than its 0.2 s in a thread, which cannot be stopped" in caplog.text) == (way == "time limit")


def test_a_run_that_is_cancelled_does_not_wait_for_its_step_in_a_thread(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = Worker(url)
    begun, goes_on = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        goes_on.wait(WAIT_S)

    @worker.process("agent")
    async def agent(run: Run) -> None:
        await run.step("block", block)

    handle = store.processes.start("agent", id="r1")
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        assert begun.wait(WAIT_S)
        store.events.request_cancel("r1", reason="enough")
        assert handle.outcome(timeout_ms=int(1000 * WAIT_S)) == holdfast.processes.Cancelled("enough")
        assert not goes_on.is_set()
    finally:
        goes_on.set()
        worker.stop()
        thread.join(WAIT_S)


def test_limits_that_are_left_out_are_warned_of(
    url: str, store: holdfast.BlockingStore, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url)
    worker.process("research")(lambda run: 1)
    worker.job("mail")(lambda job: None)
    worker.job("post", at_once=2)(lambda job: None)
    store.queue.set_limit("research", at_once=1)
    store.queue.set_limit("mail", at_once=1)
    store.queue.pause("other")
    worker.run(until_idle=True)
    assert [record.getMessage() for record in caplog.records if "limit" in record.getMessage()] == [
        "kind 'mail' keeps a stored limit that no handler here declares: see holdfast queue limits",
        "kind 'research' keeps a stored limit that no handler here declares: see holdfast queue limits",
    ]


def test_a_limit_that_is_left_out_beside_another_is_kept_and_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[holdfast.queue.KindLimit]:
        async with holdfast.open("memory:") as store:
            await store.queue.set_limit("mail", per_key=1)
            await store.queue.set_limit("post", at_once=5, per_key=3)
            worker = Worker(store)
            worker.job("mail", at_once=10)(lambda job: None)
            worker.job("post", at_once=2, per_key=1)(lambda job: None)
            await worker.serve(until_idle=True)
            return list(await store.queue.limits())

    stored = asyncio.run(main())
    assert [(one.kind, one.at_once, one.per_key) for one in stored] == [("mail", 10, 1), ("post", 2, 1)]
    assert [record.getMessage() for record in caplog.records if "limit" in record.getMessage()] == [
        "kind 'mail' keeps a stored limit that no handler here declares: see holdfast queue limits",
    ]


def test_a_worker_that_starts_keeps_a_limit_that_is_set_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[holdfast.queue.KindLimit]:
        async with holdfast.open("memory:") as store:
            await store.queue.set_limit("mail", per_key=1)
            set_limit = store.queue.set_limit

            async def outrun(kind: str, **limits: Any) -> holdfast.queue.KindLimit:
                await set_limit("mail", per_key=7)
                return await set_limit(kind, **limits)

            monkeypatch.setattr(store.queue, "set_limit", outrun)
            worker = Worker(store)
            worker.job("mail", at_once=10)(lambda job: None)
            await worker.serve(until_idle=True)
            return list(await store.queue.limits())

    [stored] = asyncio.run(main())
    assert (stored.at_once, stored.per_key) == (10, 7)


def test_runs_of_a_paused_kind_wait_for_the_resume(
    url: str, store: holdfast.BlockingStore, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url)
    worker.process("research")(lambda run: 1)
    run = store.processes.start("research")
    store.queue.pause("research")
    worker.run(until_idle=True)
    assert (worker.tally.done, caplog.text) == (0, "")
    store.queue.resume("research")
    worker.run(until_idle=True)
    assert run.result(timeout_ms=0) == 1


def test_a_store_that_no_other_program_reaches_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker("memory:")
    worker.job("mail")(lambda job: None)
    worker.run(until_idle=True)
    assert "the store 'memory:' is this worker's alone" in caplog.text


def test_no_more_runs_of_a_kind_are_called_at_once_than_its_limit(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url, concurrency=8)
    running, most = 0, 0
    two_run = asyncio.Barrier(2)

    async def research(run: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await two_run.wait()
        await asyncio.sleep(0.01)
        running -= 1

    worker.process("research", at_once=2)(research)
    worker.process("research", version="2", at_once=2)(research)
    runs = [store.processes.start("research", version=str(1 + number % 2)) for number in range(8)]
    worker.run(until_idle=True)
    assert [run.result(timeout_ms=0) for run in runs] == [None] * 8
    assert most == 2
    assert [(one.kind, one.at_once) for one in store.queue.limits()] == [("research", 2)]


def test_two_limits_of_one_kind_are_refused(url: str) -> None:
    worker = Worker(url)
    worker.process("research", at_once=2)(lambda run: 1)
    with pytest.raises(holdfast.InvalidRequest, match=r"at_once: is 3, but .* says 2 for 'research'"):
        worker.process("research", version="2", at_once=3)(lambda run: 1)
    worker.process("research", version="3")(lambda run: 1)


@pytest.mark.parametrize("way", ["async", "thread", "after a failure"])
def test_a_worker_that_was_stopped_calls_no_step_before_its_watchdog_sees_the_loss(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process continues with an answer that was on its way: another worker may have the run by then."""
    clock = ManualClock()
    calls: list[str] = []
    refused: list[int] = []
    is_stopped = threading.Event()
    monkeypatch.setattr(ClaimRenewer, "give_up_overdue", lambda _: None)  # the watchdog comes too late
    monkeypatch.setattr(Held, "is_over", lambda *_: is_stopped.is_set())

    def look(name: str) -> str:
        calls.append(name)
        if name == "first" and len(calls) == 1:
            is_stopped.set()
            if way == "after a failure":
                raise OSError("no answer")
        return name

    def refuse(attempt: int) -> None:
        refused.append(attempt)
        is_stopped.clear()

    async def handler(run: Run) -> list[str]:
        try:
            first = await run.step("first", look, "first", retry=Retry(2, backoff_s=0))
            return [first, await run.step("second", look, "second")]
        except LeaseLost:
            refuse(run.attempt)
            raise

    def plain(run: BlockingRun) -> list[str]:
        try:
            return [run.step("first", look, "first"), run.step("second", look, "second")]
        except LeaseLost:
            refuse(run.attempt)
            raise

    async def main() -> None:
        async with holdfast.open("memory:", clock=clock) as store:
            worker = Worker(store)
            worker.process("research")(plain if way == "thread" else handler)
            run = await store.processes.start("research")
            await worker.serve(until_idle=True)
            assert (calls, refused) == (["first"], [1])
            clock.advance(60_000)
            await worker.serve(until_idle=True)
            assert await run.result(timeout_ms=0) == ["first", "second"]
            assert calls == (["first", "first", "second"] if way == "after a failure" else ["first", "second"])

    asyncio.run(main())
