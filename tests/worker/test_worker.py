"""A worker runs each piece of work once, settles it by what its handler did, and loses none of it."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import holdfast
from holdfast.worker import Failure, GiveUp, Job, Retry, Worker

WAIT_S = 30


def put(store: holdfast.BlockingStore, *payloads: Any, session_id: str = "chat", kind: str = "turn") -> list[str]:
    """Enqueue each payload as a batch. Return the ids."""
    drafts = [holdfast.WorkDraft(session_id=session_id, payloads=[one], kind=kind) for one in payloads]
    return [store.queue.enqueue(draft).batch_id for draft in drafts]


def got(store: holdfast.BlockingStore, batch_id: str, session_id: str = "chat") -> holdfast.WorkBatch:
    batch = store.queue.get(session_id, batch_id)
    assert batch is not None
    return batch


class Running:
    """A worker that runs in a thread until it is stopped."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._thread = threading.Thread(target=worker.run, daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.stop()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


# Turns.


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_turn_is_committed_and_its_work_settled(url: str, store: holdfast.BlockingStore, way: str) -> None:
    worker = Worker(url)

    def answer(turn: Any) -> None:
        turn.add(turn.input, f"answer {len(turn.messages)}")
        turn.state["turns"] = turn.state.get("turns", 0) + 1

    async def answer_async(turn: Any) -> None:
        answer(turn)

    worker.turn(answer_async if way == "async" else answer)
    ids = put(store, "one", "two")
    worker.run(until_idle=True)
    session = store.sessions.handle("chat")
    assert session.messages() == ["one", "answer 0", "two", "answer 2"]
    assert [(got(store, one).state, got(store, one).settled_revision) for one in ids] == [
        ("completed", 1),
        ("completed", 2),
    ]
    assert [entry.turn_id for entry in session.history()] == ids


@pytest.mark.parametrize("way", ["plain", "async"])
def test_a_turn_reads_and_writes_other_sessions_through_its_store(
    url: str, store: holdfast.BlockingStore, way: str
) -> None:
    worker = Worker(url, concurrency=1)

    def answer(turn: holdfast.blocking.Turn) -> None:
        turn.store.sessions.handle("notes").append("seen")
        turn.add(turn.store.sessions.handle("profile").messages()[0])

    async def answer_async(turn: holdfast.Turn) -> None:
        await turn.store.sessions.handle("notes").append("seen")
        turn.add((await turn.store.sessions.handle("profile").messages())[0])

    worker.turn(answer_async if way == "async" else answer)
    store.sessions.handle("profile").append("Ada")
    put(store, "who am I?")
    worker.run(until_idle=True)
    assert store.sessions.handle("chat").messages() == ["Ada"]
    assert store.sessions.handle("notes").messages() == ["seen"]
    with store.sessions.handle("chat").turn("t1") as turn:
        assert turn.store is None


def test_a_session_has_one_turn_at_a_time_and_sessions_run_side_by_side(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = Worker(url, concurrency=4)
    meeting = threading.Barrier(2)
    inside: set[str] = set()
    overlaps: list[str] = []

    @worker.turn
    def answer(turn: holdfast.blocking.Turn) -> None:
        if turn.session_id in inside:
            overlaps.append(turn.session_id)
        inside.add(turn.session_id)
        if turn.input == "meet":
            meeting.wait(WAIT_S)
        inside.discard(turn.session_id)
        turn.add(turn.input)

    for session_id in ("a", "b"):
        put(store, "meet", *range(4), session_id=session_id)
    worker.run(until_idle=True)
    assert overlaps == []
    assert [store.sessions.handle(one).messages() for one in ("a", "b")] == [["meet", 0, 1, 2, 3]] * 2


def test_messages_that_come_meanwhile_join_the_turn(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.turn
    async def answer(turn: holdfast.Turn) -> None:
        await asyncio.to_thread(put, store, "late")
        assert await turn.more() == ["late"]
        turn.add(turn.inputs)

    put(store, "early")
    worker.run(until_idle=True)
    assert store.sessions.handle("chat").messages() == [["early", "late"]]
    assert len(store.queue.list("chat")) == 0


@pytest.mark.parametrize("way", ["async", "threads"])
def test_tasks_of_a_turn_may_ask_for_more_at_the_same_time(url: str, store: holdfast.BlockingStore, way: str) -> None:
    worker = Worker(url)
    payloads = ["one", "two", "three"]

    async def answer(turn: holdfast.Turn) -> None:
        joined = await asyncio.gather(*(turn.more() for _ in range(4)))
        turn.add(sorted(text for part in joined for text in part))

    def answer_in_threads(turn: holdfast.blocking.Turn) -> None:
        with ThreadPoolExecutor(4) as threads:
            joined = list(threads.map(lambda _: turn.more(), range(4)))
        turn.add(sorted(text for part in joined for text in part))

    handler: Callable[[Any], Any] = answer if way == "async" else answer_in_threads
    worker.turn(retry=Retry(1))(handler)
    ids = put(store, *payloads)
    worker.run(until_idle=True)
    assert [got(store, one).state for one in ids] == ["completed"] * 3
    assert store.sessions.handle("chat").messages() == [sorted(payloads[1:])]


def test_a_claim_that_a_handler_widened_by_itself_is_not_taken_for_lost(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = Worker(url, lease_s=60)
    failures: list[Failure] = []
    worker.on_failure(failures.append)

    @worker.turn(retry=Retry(1))
    async def answer(turn: holdfast.Turn) -> None:
        assert turn.claim is not None
        await turn.store.queue.claim("chat", owner_id=turn.claim.owner_id, holding=turn.claim)
        turn.add("said")

    put(store, "one", "two")
    worker.run(until_idle=True)
    assert "was widened" in str(failures[0].error)
    assert worker.tally.lost == 0


def test_a_turn_that_was_committed_before_is_settled_and_not_run_again(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    calls: list[str] = []
    worker.turn(lambda turn: calls.append(turn.turn_id))
    [batch_id] = put(store, "one")
    with store.sessions.handle("chat").turn(batch_id) as turn:
        turn.add("by hand")
    worker.run(until_idle=True)
    assert (calls, got(store, batch_id).state) == ([], "completed")


# Jobs.


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_job_is_settled_without_a_revision(url: str, store: holdfast.BlockingStore, way: str) -> None:
    worker = Worker(url, concurrency=3)
    seen: list[Any] = []

    def send(job: Job) -> None:
        seen.append((job.kind, job.session_id, job.payload, job.attempt))

    async def send_async(job: Job) -> None:
        send(job)

    worker.job("mail")(send_async if way == "async" else send)
    put(store, "not for us", session_id="mail")
    ids = put(store, *range(20), session_id="post", kind="mail")
    worker.run(until_idle=True)
    assert sorted(seen) == [("mail", "post", number, 1) for number in range(20)]
    assert {got(store, one, "post").state for one in ids} == {"completed"}
    assert store.sessions.handle("post").load() is None
    assert len(store.queue.list("mail")) == 1


def test_a_failing_job_is_tried_again_and_then_a_dead_letter(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    attempts: list[int] = []

    @worker.job("mail", retry=Retry(3, backoff_s=0))
    async def send(job: Job) -> None:
        attempts.append(job.attempt)
        raise ValueError(f"no answer to {job.payload}")

    [batch_id] = put(store, "ada", kind="mail")
    worker.run(until_idle=True)
    batch = got(store, batch_id)
    assert (attempts, batch.state, batch.last_error) == ([1, 2, 3], "dead", "ValueError: no answer to ada")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def cancel_itself(_: Job) -> None:
    raise asyncio.CancelledError


async def await_a_cancelled_task(_: Job) -> None:
    inner = asyncio.create_task(asyncio.sleep(WAIT_S))
    inner.cancel()
    await inner


def raising(error: BaseException) -> Callable[[Job], None]:
    def send(job: Job) -> None:
        raise error

    return send


FAILING: dict[str, tuple[Callable[[Job], Any], str]] = {
    "cancels itself": (cancel_itself, "CancelledError"),
    "awaits what was cancelled": (await_a_cancelled_task, "CancelledError"),
    "ends the program": (raising(SystemExit(3)), "SystemExit: 3"),
    "stops an iteration": (raising(StopIteration()), "RuntimeError: the function raised StopIteration"),
    "closes a generator": (raising(GeneratorExit()), "RuntimeError: the function raised GeneratorExit"),
    "cannot be printed": (raising(Unprintable()), "Unprintable"),
    "loses another claim": (raising(holdfast.ClaimLost("other", "claim:1")), "ClaimLost: claim 'claim:1'"),
}


@pytest.mark.parametrize("name", FAILING)
def test_any_error_of_a_handler_is_one_failed_attempt(url: str, store: holdfast.BlockingStore, name: str) -> None:
    worker = Worker(url)
    function, said = FAILING[name]
    calls: list[int] = []

    async def send(job: Job) -> None:
        calls.append(job.attempt)
        await function(job)

    def send_in_thread(job: Job) -> None:
        calls.append(job.attempt)
        function(job)

    is_async = asyncio.iscoroutinefunction(function)
    worker.job("mail", retry=Retry(2, backoff_s=0))(send if is_async else send_in_thread)
    [batch_id] = put(store, "ada", kind="mail")
    worker.run(until_idle=True)
    batch = got(store, batch_id)
    assert (calls, batch.state) == ([1, 2], "dead")
    assert (batch.last_error or "").startswith(said)


def test_a_failed_turn_that_others_joined_is_one_failed_attempt(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    calls: list[list[str]] = []

    @worker.turn(retry=Retry(2, backoff_s=0))
    async def answer(turn: holdfast.Turn) -> None:
        if turn.input == "early" and not calls:
            await asyncio.to_thread(put, store, "late", "later")
            assert await turn.more() == ["late", "later"]
        calls.append(turn.inputs)
        raise ValueError

    put(store, "early")
    worker.run(until_idle=True)
    assert calls[0] == ["early", "late", "later"]
    assert sorted(batch.state for batch in store.queue.dead_letters()) == ["dead"] * 3


def test_work_whose_workers_died_at_every_attempt_is_a_dead_letter(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    calls: list[int] = []
    worker.job("mail", retry=Retry(2))(lambda job: calls.append(job.attempt))
    [batch_id] = put(store, "ada", kind="mail")
    for _ in range(2):
        claim = store.queue.claim_next(owner_id="dies", ttl_ms=1)
        while claim is not None and store.now_ms() < claim.expires_at_ms:
            time.sleep(0.001)
    worker.run(until_idle=True)
    assert (calls, got(store, batch_id).state) == ([], "dead")
    assert "survived" in (got(store, batch_id).last_error or "")


def test_a_plain_function_may_return_a_coroutine(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    seen: list[Any] = []

    async def send(payload: Any) -> None:
        seen.append(payload)

    worker.job("mail")(lambda job: send(job.payload))
    put(store, "ada", kind="mail")
    worker.run(until_idle=True)
    assert seen == ["ada"]


@pytest.mark.parametrize("shape", ["turn", "job", "process"])
def test_a_plain_function_whose_coroutine_blocks_fails_and_says_how_to_declare_it(
    url: str, store: holdfast.BlockingStore, shape: str
) -> None:
    """It would block the event loop that it waits for, and the worker would never end."""
    worker = Worker(url)
    failed: queue.SimpleQueue[Failure] = queue.SimpleQueue()
    worker.on_failure(failed.put)
    once = Retry(1)

    async def answer(turn: Any) -> None:
        await turn.more()

    async def send(job: Any) -> None:
        await job.store.now_ms()

    async def research(run: Any) -> None:
        await run.step("plan", len, "abc")

    def plainly(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(given: Any) -> Any:
            return function(given)

        return call

    worker.turn(plainly(answer), retry=once)
    worker.job("mail", retry=once)(plainly(send))
    worker.process("research", retry=once)(plainly(research))
    if shape == "process":
        store.processes.start("research")
    else:
        put(store, "ada", kind={"turn": "turn", "job": "mail"}[shape])
    with Running(worker):
        error = failed.get(timeout=WAIT_S).error
    assert isinstance(error, holdfast.InvalidRequest)
    assert "declare the handler async def" in str(error)


def test_a_job_that_is_done_is_settled_when_the_database_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.running.AWAY_S", 0.0)

    async def main() -> tuple[int, str]:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)
            calls: list[Any] = []
            worker.job("mail", retry=Retry(1))(calls.append)
            draft = holdfast.WorkDraft(session_id="post", payloads=[1], kind="mail")
            batch_id = (await store.queue.enqueue(draft)).batch_id

            async def away(*_: Any, **__: Any) -> Any:
                raise holdfast.Unavailable("the database is away", outcome="unknown")

            monkeypatch.setattr(store.queue, "complete_and_claim_next", away)
            await worker.serve(until_idle=True)
            batch = await store.queue.get("post", batch_id)
            assert batch is not None
            return len(calls), batch.state

    assert asyncio.run(main()) == (1, "completed")


def test_a_retry_waits_for_its_back_off(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.job("mail", retry=Retry(3, backoff_s=3600, jitter=0))
    async def send(job: Job) -> None:
        raise OSError

    [batch_id] = put(store, "ada", kind="mail")
    worker.run(until_idle=True)
    batch = got(store, batch_id)
    assert (batch.state, batch.attempts) == ("pending", 1)
    assert 3_500_000 < batch.retry_at_ms - store.now_ms() <= 3_600_000


def test_giving_up_makes_a_dead_letter_at_once(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.turn(retry=Retry(5))
    def answer(turn: holdfast.blocking.Turn) -> None:
        turn.add("lost")
        raise GiveUp("no such customer")

    [batch_id] = put(store, "hi")
    worker.run(until_idle=True)
    assert (got(store, batch_id).state, got(store, batch_id).attempts) == ("dead", 1)
    assert store.sessions.handle("chat").messages() == []


def test_a_call_that_takes_too_long_fails(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.turn(timeout_s=0.05, retry=Retry(1))
    async def answer(turn: holdfast.Turn) -> None:
        await asyncio.sleep(WAIT_S)

    [batch_id] = put(store, "hi")
    worker.run(until_idle=True)
    assert got(store, batch_id).state == "dead"
    assert "longer than 0.05 s" in (got(store, batch_id).last_error or "")


def test_a_function_in_a_thread_that_takes_too_long_is_cancelled_and_waited_for(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = Worker(url)
    found = threading.Event()

    @worker.job("slow", timeout_s=0.05, retry=Retry(1))
    def slow(job: Job) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not job.cancelled and time.monotonic() < deadline_s:
            time.sleep(0.001)
        found.set()

    [batch_id] = put(store, "x", kind="slow")
    worker.run(until_idle=True)
    assert found.is_set()
    assert got(store, batch_id).state == "dead"


@pytest.mark.parametrize("shape", ["turn", "job"])
def test_a_call_that_takes_too_long_fails_even_if_it_swallows_the_cancel(
    url: str, store: holdfast.BlockingStore, shape: str
) -> None:
    worker = Worker(url)

    async def answer(given: Any) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(WAIT_S)
        if shape == "turn":
            given.add("half an answer")

    limits: dict[str, Any] = {"timeout_s": 0.05, "retry": Retry(1)}
    (worker.turn(kind="slow", **limits) if shape == "turn" else worker.job("slow", **limits))(answer)
    [batch_id] = put(store, "hi", kind="slow")
    worker.run(until_idle=True)
    assert got(store, batch_id).state == "dead"
    assert "longer than 0.05 s" in (got(store, batch_id).last_error or "")
    assert store.sessions.handle("chat").messages() == []


def test_a_claim_of_that_id_in_another_session_is_not_taken_for_the_workers_own(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = Worker(url)

    @worker.job("bridge", retry=Retry(1))
    def bridge(job: Job) -> None:
        raise holdfast.ClaimLost("elsewhere", job.claim.claim_id)  # of a claim that it holds in another store

    [batch_id] = put(store, "x", kind="bridge")
    worker.run(until_idle=True)
    assert got(store, batch_id).state == "dead"


def test_a_handlers_thread_that_outlives_its_worker_gets_a_typed_error(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    kept: list[Any] = []

    @worker.job("keep")
    def keep(job: Job) -> None:
        kept.append(job.store)

    put(store, "x", kind="keep")
    worker.run(until_idle=True)
    with pytest.raises(holdfast.errors.StoreClosed):
        kept[0].queue.list("chat")


def test_values_that_json_cannot_hold_fail_the_turn_by_name(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.turn(retry=Retry(1))
    def answer(turn: holdfast.blocking.Turn) -> None:
        turn.add({"at": object()})

    [batch_id] = put(store, "hi")
    worker.run(until_idle=True)
    batch = got(store, batch_id)
    assert batch.state == "dead"
    assert batch.last_error is not None
    assert batch.last_error.startswith("InvalidRequest: turn.add[0]")


# Claims.


def test_a_handler_that_blocks_the_event_loop_keeps_its_claim(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url, lease_s=0.5)
    calls: list[int] = []

    @worker.job("block")
    async def block(job: Job) -> None:
        calls.append(job.attempt)
        time.sleep(1.5)  # on purpose

    [batch_id] = put(store, "x", kind="block")
    worker.run(until_idle=True)
    assert (calls, got(store, batch_id).state, got(store, batch_id).attempts) == ([1], "completed", 1)


def test_a_handler_is_cancelled_when_its_claim_is_lost(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url, lease_s=0.5)
    begun, ended = threading.Event(), threading.Event()

    @worker.turn
    async def answer(turn: holdfast.Turn) -> None:
        turn.add("of a lost claim")
        begun.set()
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            ended.set()

    put(store, "hi")
    with Running(worker):
        assert begun.wait(WAIT_S)
        store.sessions.delete("chat")
        assert ended.wait(WAIT_S)
    assert store.sessions.create("chat").messages() == []


# Shutdown.


def test_a_stopped_worker_finishes_what_runs(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url, concurrency=1)
    begun, go_on = threading.Event(), threading.Event()

    @worker.job("slow")
    def slow(job: Job) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)

    first, second = put(store, 1, 2, kind="slow")
    with Running(worker):
        assert begun.wait(WAIT_S)
        worker.stop()
        go_on.set()
    assert got(store, first).state == "completed"
    assert (got(store, second).state, got(store, second).attempts) == ("pending", 0)


def test_work_that_outlasts_the_grace_is_given_back_without_an_attempt(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url, grace_s=0)
    begun = threading.Event()

    @worker.turn
    async def answer(turn: holdfast.Turn) -> None:
        begun.set()
        await asyncio.sleep(WAIT_S)

    [batch_id] = put(store, "hi")
    with Running(worker):
        assert begun.wait(WAIT_S)
    batch = got(store, batch_id)
    assert (batch.state, batch.attempts, batch.last_error) == ("pending", 0, None)


def test_work_that_a_shutdown_gives_back_keeps_its_place(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url, grace_s=0)
    begun = threading.Event()

    @worker.turn
    async def answer(turn: holdfast.Turn) -> None:
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(WAIT_S)
        turn.add(turn.input)

    put(store, "first", "second")
    with Running(worker):
        assert begun.wait(WAIT_S)
    worker.run(until_idle=True)
    assert store.sessions.handle("chat").messages() == ["first", "second"]


@pytest.mark.parametrize("method", ["claim_next", "complete_and_claim_next"])
def test_a_claim_that_comes_during_the_shutdown_is_given_back(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    async def main() -> list[tuple[str, int]]:
        async with holdfast.open("memory:") as store:
            worker = Worker(store, concurrency=1, grace_s=0)
            worker.job("mail")(lambda job: None)
            ids = [
                (await store.queue.enqueue(holdfast.WorkDraft(session_id="post", payloads=[n], kind="mail"))).batch_id
                for n in range(2)
            ]
            taken, stopped = asyncio.Event(), asyncio.Event()
            inner = getattr(store.queue, method)

            async def slow(*args: Any, **options: Any) -> Any:
                answer = await inner(*args, **options)
                taken.set()
                await stopped.wait()
                return answer

            monkeypatch.setattr(store.queue, method, slow)
            serving = asyncio.create_task(worker.serve())
            await taken.wait()
            worker.stop()
            for _ in range(100):  # steps of the loop, in which the worker cancels its calls
                await asyncio.sleep(0)
            stopped.set()
            await asyncio.wait_for(serving, WAIT_S)
            batches = [await store.queue.get("post", one) for one in ids]
            return [(batch.state, batch.attempts) for batch in batches if batch is not None]

    first = ("pending", 0) if method == "claim_next" else ("completed", 1)
    assert asyncio.run(main()) == [first, ("pending", 0)]


def test_an_idle_worker_wakes_for_new_work(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    worker.turn(lambda turn: turn.add(turn.input))
    with Running(worker):
        for number in range(3):
            [batch_id] = put(store, number)
            assert store.queue.wait_settled("chat", batch_id, timeout_ms=WAIT_S * 1000).state == "completed"
    assert store.sessions.handle("chat").messages() == [0, 1, 2]


# A store of the caller's.


def test_a_worker_runs_on_an_open_store() -> None:
    async def main() -> list[Any]:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)

            @worker.turn
            def answer(turn: holdfast.blocking.Turn) -> None:
                turn.add(turn.input)

            await store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["hi"]))
            await worker.serve(until_idle=True)
            return await store.sessions.handle("chat").messages()

    assert asyncio.run(main()) == ["hi"]


# Mistakes.


def generator(turn: object) -> Any:
    yield turn


async def asynchronous(failure: object) -> None: ...


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Worker("memory:", concurrency=0), "concurrency"),
        pytest.param(lambda: Worker("memory:", concurrency=1.5), "concurrency", id="not whole"),  # type: ignore[arg-type]
        (lambda: Worker("memory:", options=5), "options"),  # type: ignore[arg-type]
        (lambda: Worker("memory:", lease_s=0), "lease_s"),
        (lambda: Worker("memory:", grace_s=-1), "grace_s"),
        (lambda: Worker("memory:").job("")(print), "kind"),
        pytest.param(lambda: Worker("memory:").job("turn")(print), "kind", id="kind of messages"),
        (lambda: Worker("memory:").job("mail", timeout_s=0)(print), "timeout_s"),
        (lambda: Worker("memory:").job("mail", retry=3)(print), "retry"),  # type: ignore[arg-type]
        (lambda: Worker("memory:").turn(generator), "handler"),
        pytest.param(lambda: Worker("memory:").turn(42), "handler", id="not a function"),  # type: ignore[type-var]
        (lambda: Worker("memory:").run(), "worker"),
        *[
            pytest.param(
                lambda kind=kind, shape=shape: getattr(Worker("memory:"), shape)(kind), "kind", id=f"{shape} {of}"
            )
            for shape in ("job", "process")
            for of, kind in {"without a kind": print, "too long": "x" * 600, "with NUL": "a\0b", "blank": " "}.items()
        ],
        *[
            pytest.param(lambda name=name: Worker("memory:", name=name), "name", id=f"name {of}")
            for of, name in {"empty": "", "too long": "x" * 100, "with NUL": "a\0b", "not text": 5}.items()
        ],
        *[
            pytest.param(lambda name=name: Worker("memory:").job("mail", **{name: 2**70}), name, id=f"huge {name}")
            for name in ("at_once", "per_key")
        ],
        (lambda: Worker("memory:").process("research", version="a\0b"), "version"),
        (lambda: Worker("memory:").on_failure(asynchronous), "listener"),
    ],
)
def test_a_mistake_is_refused_by_name(make: Callable[[], object], field: str) -> None:
    with pytest.raises(holdfast.InvalidRequest) as info:
        make()
    assert info.value.field == field


@pytest.mark.parametrize("shape", ["job", "process"])
def test_a_decorator_without_its_kind_says_how_to_write_it(shape: str) -> None:
    """It registered nothing, and took the function for the kind."""

    def send_mail(given: object) -> None: ...

    with pytest.raises(holdfast.InvalidRequest, match=f"@worker.{shape}.'send-mail'."):
        getattr(Worker("memory:"), shape)(send_mail)


def test_a_running_worker_takes_no_further_handlers_and_schedules() -> None:
    """It would not serve them. Once it has ended, they can be added for its next run."""

    async def main() -> list[str]:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)
            refused: list[str] = []
            ways: list[Callable[[], object]] = [
                lambda: worker.turn(print),
                lambda: worker.job("late")(print),
                lambda: worker.process("late")(print),
                lambda: worker.every("0 3 * * *", "mail"),
            ]

            @worker.job("mail")
            async def send(job: Job) -> None:
                for way in ways:
                    try:
                        way()
                    except holdfast.InvalidRequest as error:
                        refused.append(error.field)

            await store.queue.enqueue(holdfast.WorkDraft(session_id="post", payloads=[1], kind="mail"))
            await worker.serve(until_idle=True)
            for way in ways:
                way()
            return refused

    assert asyncio.run(main()) == ["worker"] * 4


def test_a_worker_does_not_run_inside_of_an_event_loop() -> None:
    worker = Worker("memory:")
    worker.turn(print)

    async def main() -> None:
        worker.run()

    with pytest.raises(holdfast.InvalidRequest, match="await worker"):
        asyncio.run(main())


def test_a_kind_has_one_handler() -> None:
    worker = Worker("memory:")
    worker.turn(kind="chat")(print)
    with pytest.raises(holdfast.InvalidRequest, match="print"):
        worker.job("chat")(print)
    assert repr(worker) == "Worker(chat)"


# Limits.


def test_limits_of_a_handler_hold_over_several_workers(url: str, store: holdfast.BlockingStore) -> None:
    guard = threading.Lock()
    running: list[str] = []
    most: dict[str, int] = {"all": 0, "ada": 0, "bob": 0}
    done = threading.Event()
    ended: list[str] = []

    def send(job: Job) -> None:
        key = job.batch.key or ""
        with guard:
            running.append(key)
            most["all"] = max(most["all"], len(running))
            most[key] = max(most[key], running.count(key))
        time.sleep(0.02)
        with guard:
            running.remove(key)
            ended.append(key)
            if len(ended) == 24:
                done.set()

    workers = [Worker(url, concurrency=6) for _ in range(2)]
    for worker in workers:
        worker.job("mail", at_once=3, per_key=2)(send)
    for number in range(24):
        key = "ada" if number % 3 else "bob"
        store.queue.enqueue(holdfast.WorkDraft(session_id=f"s{number}", payloads=[1], kind="mail", key=key))
    with Running(workers[0]), Running(workers[1]):
        assert done.wait(WAIT_S)
    assert most["all"] <= 3
    assert max(most["ada"], most["bob"]) <= 2
    assert [(one.kind, one.at_once, one.per_key) for one in store.queue.limits()] == [("mail", 3, 2)]


@pytest.mark.parametrize(("field", "limits"), [("at_once", {"at_once": 0}), ("per_key", {"per_key": -1})])
def test_a_limit_of_zero_is_refused_where_it_is_written(url: str, field: str, limits: dict[str, int]) -> None:
    for register in (lambda: Worker(url).job("mail", **limits), lambda: Worker(url).turn(**limits)):
        with pytest.raises(holdfast.InvalidRequest, match="pause") as info:
            register()
        assert info.value.field == field
    with pytest.raises(holdfast.InvalidRequest):
        Worker(url).job("mail", **{field: True})


def test_a_worker_without_limits_leaves_those_that_are_stored(url: str, store: holdfast.BlockingStore) -> None:
    declared = store.queue.set_limit("mail", at_once=1)
    worker = Worker(url)
    worker.job("mail")(lambda job: None)
    worker.run(until_idle=True)
    assert list(store.queue.limits()) == [declared]


def test_a_message_that_joins_the_last_attempt_of_another_has_its_own_attempts(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = Worker(url)
    chat = store.sessions.create("chat")

    @worker.turn(retry=Retry(2, backoff_s=0, jitter=0))
    def answer(turn: holdfast.blocking.Turn) -> None:
        assert turn.claim is not None
        if turn.input == "first" and turn.claim.batches[0].attempts == 2:
            chat.enqueue("second")
            turn.more()
        if turn.input == "first":
            raise ValueError("no")
        turn.add(turn.inputs)

    chat.enqueue("first")
    worker.run(until_idle=True)
    dead = [(batch.items[0].payload, batch.attempts) for batch in store.queue.dead_letters()]
    assert (dead, chat.messages()) == ([("first", 2)], [["second"]])


def test_a_turn_that_another_write_overtook_is_run_again_without_an_attempt(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = Worker(url)
    chat = store.sessions.create("chat")
    seen: list[tuple[int, int]] = []

    @worker.turn(retry=Retry(1))
    def answer(turn: holdfast.blocking.Turn) -> None:
        assert turn.claim is not None
        seen.append((turn.claim.batches[0].attempts, len(turn.messages)))
        if len(seen) < 3:
            chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(payload="note")])))
        turn.add("answer")

    chat.enqueue("hello")
    worker.run(until_idle=True)
    assert seen == [(1, 0), (1, 1), (1, 2)]
    assert (worker.tally.done, worker.tally.failed, worker.tally.dead) == (1, 0, 0)
    assert chat.messages() == ["note", "note", "answer"]


def test_a_turn_that_is_always_overtaken_fails_with_advice(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    chat = store.sessions.create("chat")
    calls: list[object] = []

    @worker.turn(retry=Retry(2, backoff_s=0, jitter=0))
    def answer(turn: holdfast.blocking.Turn) -> None:
        calls.append(turn.input)
        chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(payload="note")])))
        turn.add("answer")

    chat.enqueue("hello")
    worker.run(until_idle=True)
    [dead] = store.queue.dead_letters()
    assert (len(calls), dead.attempts) == (8, 2)
    assert "session.enqueue" in (dead.last_error or "")
    assert "redo the call" not in (dead.last_error or "")


def test_a_handler_cannot_drop_the_claim_that_its_turn_settles(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    async def answer(turn: Any) -> None:
        turn.claim = None

    worker.turn(retry=Retry(1))(answer)
    batch = store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["hi"]))
    worker.run(until_idle=True)
    found = store.queue.get("chat", batch.batch_id)
    assert found is not None
    assert found.state == "dead"
    assert "AttributeError" in str(found.last_error)
