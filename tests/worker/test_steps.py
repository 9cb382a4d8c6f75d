"""Steps that are tried again, typed, large or too many; and runs that continue as new ones."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import functools
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import open_transaction
from holdfast.store import events as store_events
from holdfast.testing.clock import ManualClock
from holdfast.worker import BlockingRun, GiveUp, JournalFull, Retry, Run, SignalsLeft, StepFailed, Worker, journal

WAIT_MS = 30_000


class Note(msgspec.Struct, frozen=True):
    text: str
    pages: tuple[int, ...] = ()


@dataclasses.dataclass
class Plan:
    question: str
    at: datetime.datetime
    notes: list[Note]


AT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def make_plan(question: str) -> Plan:
    return Plan(question, AT, [Note("a", (1, 2))])


def outcome_of(store: holdfast.BlockingStore, id: str = "r1") -> Any:
    process = store.processes.get(id)
    assert process is not None
    return process.outcome


def run_once(url: str, store: holdfast.BlockingStore, handler: Callable[..., Any], args: Any = None) -> Any:
    """Start a run, work until nothing is left to do, and return its outcome."""
    worker = Worker(url)
    worker.process("any", retry=Retry(2, backoff_s=0))(handler)
    store.processes.start("any", args, id="r1")
    worker.run(until_idle=True)
    return outcome_of(store)


# Retries.


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_step_is_tried_again_and_its_attempts_are_recorded(url: str, store: holdfast.BlockingStore, way: str) -> None:
    calls: list[int] = []

    def flaky() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise OSError(f"no answer {len(calls)}")
        return "done"

    async def handler_async(run: Run) -> str:
        return await run.step("call", flaky, retry=Retry(3, backoff_s=0))

    def handler(run: BlockingRun) -> str:
        return run.step("call", flaky, retry=Retry(3, backoff_s=0))

    assert run_once(url, store, handler_async if way == "async" else handler) == holdfast.processes.Completed("done")
    steps: list[Any] = [event.payload for event in store.events.after("r1", type="step")]
    assert [(one.get("error"), one["attempt"]) for one in steps] == [
        ("OSError: no answer 1", 1),
        ("OSError: no answer 2", 2),
        (None, 3),
    ]


def test_the_last_failure_of_a_step_is_raised_again_and_not_called_again(
    url: str, store: holdfast.BlockingStore
) -> None:
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        raise OSError("no answer")

    async def handler(run: Run) -> Any:
        try:
            await run.step("call", broken, retry=Retry(2, backoff_s=0))
        except StepFailed as failed:
            if run.attempt == 1:
                raise ValueError("crash") from failed
            return [failed.name, failed.attempts, failed.error]

    assert run_once(url, store, handler) == holdfast.processes.Completed(["call", 2, "OSError: no answer"])
    assert len(calls) == 2


def test_a_step_that_gives_up_is_not_tried_again(url: str, store: holdfast.BlockingStore) -> None:
    calls: list[int] = []

    def hopeless() -> None:
        calls.append(1)
        raise GiveUp("no such page")

    async def handler(run: Run) -> None:
        await run.step("call", hopeless, retry=Retry(5, backoff_s=0))

    assert isinstance(run_once(url, store, handler), holdfast.processes.Failed)
    assert len(calls) == 1


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_long_back_off_holds_no_worker_and_outlasts_a_crash(way: str) -> None:
    clock = ManualClock()
    calls: list[int] = []

    def flaky() -> int:
        calls.append(clock.now_ms())
        if len(calls) == 1:
            raise OSError
        return len(calls)

    async def handler_async(run: Run) -> int:
        return await run.step("call", flaky, retry=Retry(2, backoff_s=3600, jitter=0))

    def handler(run: BlockingRun) -> int:
        return run.step("call", flaky, retry=Retry(2, backoff_s=3600, jitter=0))

    async def main() -> tuple[bool, Any]:
        async with holdfast.open("memory:", clock=clock) as store:
            worker = Worker(store)
            worker.process("any")(handler_async if way == "async" else handler)
            run = await store.processes.start("any", id="r1")
            await worker.serve(until_idle=True)
            clock.advance(3_599_999)
            await worker.serve(until_idle=True)
            process = await store.processes.get("r1")
            assert process is not None
            clock.advance(1)
            await worker.serve(until_idle=True)
            return process.suspended, await run.result(timeout_ms=WAIT_MS)

    assert asyncio.run(main()) == (True, 2)
    assert calls[1] - calls[0] == 3_600_000


# Typed values.


@pytest.mark.parametrize("way", ["async", "thread"])
def test_typed_values_come_back_as_the_declared_types_at_each_attempt(
    url: str, store: holdfast.BlockingStore, way: str
) -> None:
    seen: list[Plan] = []

    async def handler_async(run: Run, note: Note, plan: Plan) -> Plan:
        seen.append(await run.step("plan", make_plan, note.text))
        assert plan == make_plan("b")
        if run.attempt == 1:
            raise OSError
        return seen[-1]

    def handler(run: BlockingRun, note: Note, plan: Plan) -> Plan:
        seen.append(run.step("plan", make_plan, note.text))
        assert plan == make_plan("b")
        if run.attempt == 1:
            raise OSError
        return seen[-1]

    args = {"note": Note("why?"), "plan": make_plan("b")}
    run_once(url, store, handler_async if way == "async" else handler, args)
    assert seen == [make_plan("why?")] * 2
    assert store.processes.handle("r1").result(Plan) == make_plan("why?")
    assert store.processes.handle("r1").result()["notes"] == [{"text": "a", "pages": [1, 2]}]


def test_one_typed_argument_is_the_whole_of_the_arguments(url: str, store: holdfast.BlockingStore) -> None:
    async def handler(run: Run, note: Note) -> str:
        return note.text

    assert run_once(url, store, handler, Note("why?")) == holdfast.processes.Completed("why?")


def test_arguments_of_another_shape_are_named(url: str, store: holdfast.BlockingStore) -> None:
    async def handler(run: Run, note: Note) -> str:
        return note.text

    outcome = run_once(url, store, handler, {"note": {"text": 7}})
    assert isinstance(outcome, holdfast.processes.Failed)
    assert "do not fit the types" in outcome.message
    assert "$.text" in outcome.message


def test_a_typed_result_without_a_declared_type_is_refused_by_name(url: str, store: holdfast.BlockingStore) -> None:
    async def handler(run: Run) -> None:
        await run.step("note", lambda: Note("a"))

    outcome = run_once(url, store, handler)
    assert isinstance(outcome, holdfast.processes.Failed)
    assert "run.step('note'): returned a value that cannot be stored" in outcome.message
    assert "declare the type" in outcome.message


def test_a_child_gives_a_typed_result(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("parent")
    async def parent(run: Run) -> list[Any]:
        child = await run.start("child", Note("why?"))
        return [(await child.result(Note)).text]

    @worker.process("child")
    def child(run: BlockingRun, note: Note) -> Note:
        return Note(note.text.upper())

    store.processes.start("parent", id="r1")
    worker.run(until_idle=True)
    assert outcome_of(store) == holdfast.processes.Completed(["WHY?"])


# Large results, and journals that are full.


@pytest.fixture
def narrow(url: str) -> tuple[str, holdfast.Limits]:
    return url, holdfast.Limits(document_bytes=10_000, artifact_bytes=4_000)


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_result_over_the_limit_is_kept_and_its_step_not_repeated(
    narrow: tuple[str, holdfast.Limits], way: str
) -> None:
    calls: list[int] = []

    def large() -> list[str]:
        calls.append(1)
        return ["x" * 1_000] * 20

    async def handler_async(run: Run) -> list[str]:
        found = await run.step("large", large)
        if run.attempt == 1:
            raise OSError
        return found

    def handler(run: BlockingRun) -> list[str]:
        found = run.step("large", large)
        if run.attempt == 1:
            raise OSError
        return found

    async def parent(run: Run) -> int:
        child = await run.start("child")
        return len(await child.result())

    async def main() -> tuple[Any, Any]:
        async with holdfast.open(narrow[0], limits=narrow[1]) as store:
            worker = Worker(store)
            worker.process("child", retry=Retry(2, backoff_s=0))(handler_async if way == "async" else handler)
            worker.process("parent")(parent)
            run = await store.processes.start("parent", id="r1")
            await worker.serve(until_idle=True)
            child = store.processes.handle("r1/child:1")
            return await run.result(timeout_ms=WAIT_MS), await child.result(timeout_ms=WAIT_MS)

    assert asyncio.run(main()) == (20, ["x" * 1_000] * 20)
    assert calls == [1]


def test_large_results_go_with_their_run_and_never_before(narrow: tuple[str, holdfast.Limits]) -> None:
    """A parent that still runs keeps the result of a child that was pruned."""

    async def child(run: Run) -> list[str]:
        return await run.step("large", lambda: ["x" * 1_000] * 20)

    async def parent(run: Run) -> int:
        found = await (await run.start("child")).result()
        await run.signal("go-on")
        return len(found)

    async def main() -> tuple[Any, ...]:
        async with holdfast.open(narrow[0], limits=narrow[1]) as store:
            worker = Worker(store)
            worker.process("child")(child)
            worker.process("parent")(parent)
            run = await store.processes.start("parent", id="r1")
            await worker.serve(until_idle=True)
            ended = holdfast.RetentionPolicy(terminal_processes_older_than_ms=0)
            pruned = await store.maintenance.prune(ended)
            child_gone = await store.maintenance.collect_garbage()
            await run.signal("go-on")
            await worker.serve(until_idle=True)
            result = await run.result(timeout_ms=WAIT_MS)
            await store.maintenance.prune(ended)
            await store.maintenance.collect_garbage()
            return pruned.processes, child_gone.deleted_results > 0, result, len(await store.artifacts.list())

    assert asyncio.run(main()) == (1, True, 20, 0)


def test_a_full_journal_refuses_a_step_before_its_call_and_names_the_way_out(
    url: str, store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_EVENTS", 3)
    calls: list[int] = []
    reported: list[str] = []

    async def handler(run: Run, first: int = 0) -> Any:
        assert run.journal.most_events == 3
        for number in range(first, 5):
            try:
                await run.step(f"step-{number}", calls.append, number)
            except JournalFull as full:
                reported.append(f"{full.process_id}: {full}")
                run.continue_as_new({"first": number})
        return "done"

    run_once(url, store, handler)
    assert store.processes.handle("r1").result(timeout_ms=WAIT_MS) == "done"
    assert calls == [0, 1, 2, 3, 4]
    assert [one[:25] for one in reported] == ["r1: run 'r1', step 'step-"]
    assert "run.continue_as_new(args)" in reported[0]


@pytest.mark.parametrize("way", ["now", "uuid", "sleep", "start", "progress"])
def test_a_full_journal_takes_no_record_of_any_kind(
    url: str, store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(journal, "MOST_EVENTS", 1)

    async def handler(run: Run) -> None:
        await run.step("one", int)
        args = {"sleep": [0], "start": ["kid"], "progress": [1]}.get(way, [])
        await getattr(run, way)(*args)

    outcome = run_once(url, store, handler)
    assert isinstance(outcome, holdfast.processes.Failed)
    assert "JournalFull" in outcome.message
    assert [one.id for one in store.processes.list(status="any") if one.id.startswith("r1/")] == []


@pytest.mark.parametrize(("declared", "most"), [(None, 4), ({"go": int}, 8)])
def test_signals_that_wait_leave_room_for_taking_them_and_for_steps(
    url: str, store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch, declared: Any, most: int
) -> None:
    """Senders cannot end a run. Of the seven signals, four wait."""
    monkeypatch.setattr(journal, "MOST_EVENTS", most)
    worker = Worker(url)

    @worker.process("research", signals=declared, retry=Retry(1))
    async def handler(run: Run) -> Any:
        taken = [await run.signal("go") for _ in range(3)]
        return await run.step("sum", sum, taken)

    run = store.processes.start("research")
    for _ in range(7):
        run.signal("go", 1)
    worker.run(until_idle=True)
    assert run.result(timeout_ms=0) == 3


def test_a_journal_of_too_many_bytes_is_full(
    url: str, store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_BYTES", 1_000)

    async def handler(run: Run) -> None:
        await run.step("one", lambda: "x" * 1_000)
        await run.step("two", int)

    outcome = run_once(url, store, handler)
    assert isinstance(outcome, holdfast.processes.Failed)
    assert "JournalFull: run 'r1', step 'two': the journal has" in outcome.message


@pytest.mark.parametrize("retry", [Retry(2, backoff_s=0), None])
def test_a_result_that_is_not_of_its_declared_type_is_an_attempt_that_failed(
    url: str, store: holdfast.BlockingStore, retry: Retry | None
) -> None:
    answers: list[Any] = [Note(5), Note("good")]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    def ask() -> Note:
        answer: Note = answers.pop(0)
        return answer

    async def handler(run: Run) -> str:
        return (await run.step("ask", ask, retry=retry)).text

    assert run_once(url, store, handler) == holdfast.processes.Completed("good")
    assert answers == []


def test_keys_of_steps_and_ids_of_runs_never_meet(url: str, store: holdfast.BlockingStore) -> None:
    keys: list[str] = []

    async def handler(run: Run, steps: list[str]) -> None:
        keys.extend(run.key(step) for step in steps)

    store.processes.start("any", {"steps": ["c", "c%2F"]}, id="r1/b")
    run_once(url, store, handler, {"steps": ["b/c", "b%2Fc", "plain"]})
    assert len(set(keys)) == 5
    assert "r1/plain" in keys
    ids: list[str] = []
    sessions = [store.sessions.create("a"), store.sessions.create("a/b")]
    for session, turn_id in ((sessions[0], "b/c"), (sessions[1], "c"), (sessions[0], "b%2Fc")):
        with session.turn(turn_id) as turn:
            ids.append(turn.start("none"))
    assert len(set(ids)) == 3


def test_a_signal_named_child_is_the_senders_and_never_the_workers(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("any", retry=Retry(1))
    async def parent(run: Run) -> Any:
        result = await (await run.start("kid")).result()
        return [result, await run.signal("child")]

    @worker.process("kid")
    async def kid(run: Run) -> str:
        return "the kid's"

    store.processes.start("any", id="r1")
    worker.run(until_idle=True)
    assert outcome_of(store) is None
    store.events.signal("r1", "child", "the sender's")
    worker.run(until_idle=True)
    assert outcome_of(store) == holdfast.processes.Completed(["the kid's", "the sender's"])


@pytest.mark.parametrize("name", ["", " ", 5, "a.b", "holdfast-child"])
def test_a_run_waits_for_no_signal_that_cannot_be_sent(url: str, store: holdfast.BlockingStore, name: Any) -> None:
    async def handler(run: Run) -> None:
        await run.signal(name, timeout_s=0)

    outcome = run_once(url, store, handler)
    assert isinstance(outcome, holdfast.processes.Failed)
    assert "InvalidRequest: run.signal: needs a name" in outcome.message


# Runs that continue.


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_run_continues_as_new_ones_and_its_result_is_the_last_ones(
    url: str, store: holdfast.BlockingStore, way: str
) -> None:
    async def handler_async(run: Run, count: int) -> Any:
        await run.step("work", int)
        if count < 3:
            run.continue_as_new({"count": count + 1})
        return [run.id, count]

    def handler(run: BlockingRun, count: int) -> Any:
        run.step("work", int)
        if count < 3:
            run.continue_as_new({"count": count + 1})
        return [run.id, count]

    run_once(url, store, handler_async if way == "async" else handler, {"count": 1})
    run = store.processes.handle("r1")
    assert (run.newest_id(), run.result(timeout_ms=WAIT_MS)) == ("r1~3", ["r1~3", 3])
    followed = [(event.type, event.cursor) for event in run.follow()]
    assert followed == [
        ("step", "1@r1"),
        ("run.continued", "2@r1"),
        ("step", "1@r1~2"),
        ("run.continued", "2@r1~2"),
        ("step", "1@r1~3"),
        ("process.completed", "2@r1~3"),
    ]
    assert [event.cursor for event in run.follow("2@r1~2")] == ["1@r1~3", "2@r1~3"]
    assert store.maintenance.verify().findings == ()


def test_signals_that_were_not_taken_continue_with_the_run(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("any")
    async def handler(run: Run, taken: list[Any]) -> Any:
        taken = [*taken, await run.signal("news")]
        if len(taken) < 3:
            run.continue_as_new({"taken": taken})
        return taken

    store.processes.start("any", {"taken": []}, id="r1")
    for number in range(2):
        store.events.signal("r1", "news", number)
    worker.run(until_idle=True)
    run = store.processes.handle("r1")
    run.signal("news", 2)
    worker.run(until_idle=True)
    assert run.result(timeout_ms=WAIT_MS) == [0, 1, 2]


@pytest.mark.parametrize("comes", ["before", "at the last moment"])
def test_a_run_carries_over_a_limited_number_of_signals_and_names_the_limit(
    url: str, store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    monkeypatch.setattr(journal, "MOST_CARRIED", 2)
    reported: list[Any] = []

    async def handler(run: Run, taken: int = 0) -> Any:
        if taken:
            return [taken, [await run.signal("news") for _ in range(2)]]
        if comes == "at the last moment" and not reported:
            reported.append("sent")
            await run.store.events.signal(run.id, "news", 3, replay_key="n3")
        try:
            run.continue_as_new({"taken": -1})
        except SignalsLeft as error:
            reported.extend([str(error), error.left])
            reported.append(await run.signal("news"))
            run.continue_as_new({"taken": 1})

    store.processes.start("any", id="r1")
    for number in (1, 2, 3)[: 3 if comes == "before" else 2]:
        store.events.signal("r1", "news", number)
    run_once(url, store, handler)
    assert store.processes.handle("r1").result(timeout_ms=WAIT_MS) == [1, [2, 3]]
    assert "3 of 'news'" in reported[-3]
    assert reported[-2:] == [{"news": 3}, 1]


class SlowAppends:
    """A database in which each event takes so many seconds, by the clock that limits transactions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.passed_s = 0.0
        append, append_many = store_events.Events._append, store_events.Events.append_many

        async def slow(*args: Any, **named: Any) -> Any:
            self.passed_s += seconds
            return await append(*args, **named)

        async def slow_many(*args: Any, **named: Any) -> Any:
            self.passed_s += seconds * len(args[2])
            return await append_many(*args, **named)

        monkeypatch.setattr(store_events.Events, "_append", slow)
        monkeypatch.setattr(store_events.Events, "append_many", slow_many)
        monkeypatch.setattr(open_transaction, "time", self)

    def monotonic(self) -> float:
        return time.monotonic() + self.passed_s


async def continue_slowly(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Any:
    """Continue a run with 600 signals, and return the outcome."""
    async with holdfast.open("memory:") as store:
        worker = Worker(store)

        @worker.process("any", retry=Retry(1))
        async def handler(run: Run, is_first: bool = True) -> Any:
            if is_first:
                run.continue_as_new({"is_first": False})
            return [await run.signal("news") for _ in range(600)]

        run = await store.processes.start("any", id="r1")
        for number in range(600):
            await run.signal("news", number)
        SlowAppends(monkeypatch, seconds)
        monkeypatch.setattr("holdfast.worker.running.AWAY_S", 0.0)
        async with asyncio.timeout(WAIT_MS / 1000):
            await worker.serve(until_idle=True)
        return await run.outcome(timeout_ms=0)


def test_many_signals_are_carried_over_by_a_slow_database(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = asyncio.run(continue_slowly(monkeypatch, 0.01))
    assert outcome == holdfast.processes.Completed(list(range(600)))


def test_a_transaction_that_expires_each_time_fails_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = asyncio.run(continue_slowly(monkeypatch, 1))
    assert isinstance(outcome, holdfast.processes.Failed)
    assert "TransactionExpired" in outcome.message


def test_a_parent_and_a_session_get_the_end_of_the_last_run_only(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("parent")
    async def parent(run: Run) -> Any:
        return await (await run.start("child", {"count": 1}, id="c")).result()

    @worker.process("child")
    def child(run: BlockingRun, count: int) -> int:
        if count < 3:
            run.continue_as_new({"count": count + 1})
        return count

    ended: list[Any] = []

    @worker.turn
    def answer(turn: holdfast.blocking.Turn) -> None:
        ended.append(turn.ended)

    with store.sessions.create("chat").turn("t") as turn:
        turn.start("child", {"count": 2}, id="d")
    store.processes.start("parent", id="r1")
    worker.run(until_idle=True)
    assert outcome_of(store) == holdfast.processes.Completed(3)
    assert ended == [holdfast.processes.RunEnded("d", holdfast.processes.Completed(3), "d~2")]


def test_a_cancel_reaches_the_run_that_continues(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)

    @worker.process("parent")
    async def parent(run: Run) -> Any:
        return await (await run.start("child", {"count": 1}, id="c")).result()

    @worker.process("child")
    async def child(run: Run, count: int) -> Any:
        if count < 2:
            run.continue_as_new({"count": count + 1})
        return await run.signal("never")

    store.processes.start("parent", id="r1")
    worker.run(until_idle=True)
    store.processes.handle("r1").cancel(reason="enough")
    worker.run(until_idle=True)
    assert [type(outcome_of(store, id)) for id in ("r1", "c~2")] == [
        holdfast.processes.Cancelled,
        holdfast.processes.Cancelled,
    ]


def test_a_run_that_was_asked_to_cancel_does_not_continue(url: str, store: holdfast.BlockingStore) -> None:
    async def handler(run: Run) -> None:
        await run.store.events.request_cancel(run.id, reason="enough")
        run.continue_as_new()

    assert run_once(url, store, handler) == holdfast.processes.Cancelled("enough")
    assert store.processes.get("r1~2") is None


def test_a_branch_continues_the_run_once_the_others_have_ended(url: str, store: holdfast.BlockingStore) -> None:
    seen: list[str] = []

    async def handler(run: Run, is_first: bool = True) -> list[str]:
        seen.append(run.id)
        continues = asyncio.Event()

        async def slow() -> None:
            await continues.wait()
            await asyncio.sleep(0.05)  # the other branch has ended long before
            seen.append(f"effect of {run.id}")

        async def go_on() -> None:
            continues.set()
            run.continue_as_new({"is_first": False})

        if is_first:
            await run.gather(run.step("slow", slow), go_on(), run.signal("never"))
        return seen

    run_once(url, store, handler)
    assert store.processes.handle("r1").result(timeout_ms=WAIT_MS) == ["r1", "effect of r1", "r1~2"]


@pytest.mark.parametrize("why", ["no document", "id taken", "too large"])
def test_a_run_that_cannot_continue_fails_with_the_cause(url: str, store: holdfast.BlockingStore, why: str) -> None:
    args = {"no document": object(), "id taken": 1, "too large": "x" * (store.limits.document_bytes + 1)}[why]

    async def handler(run: Run) -> None:
        run.continue_as_new({"args": args})

    if why == "id taken":
        store.processes.start("other", id="r1~2")
    outcome = run_once(url, store, handler)
    assert isinstance(outcome, holdfast.processes.Failed)
    assert ("RegistrationConflict" if why == "id taken" else "InvalidRequest") in outcome.message


# Handles.


@pytest.mark.parametrize("wrong", ["x", -5, True])
def test_a_wrong_timeout_of_a_handle_is_named(store: holdfast.BlockingStore, wrong: Any) -> None:
    run = store.processes.start("any", id="r1")
    for call in (run.result, run.outcome):
        with pytest.raises(holdfast.InvalidRequest, match="timeout_ms"):
            call(timeout_ms=wrong)


def test_a_handle_waits_no_longer_than_given_and_names_a_failed_run(store: holdfast.BlockingStore) -> None:
    run = store.processes.start("any", id="r1")
    began_s = time.monotonic()
    with pytest.raises(holdfast.WaitTimeout):
        run.result(timeout_ms=10)
    assert time.monotonic() - began_s < 10
    store.processes.complete("r1", holdfast.processes.Failed("no such topic"))
    with pytest.raises(holdfast.processes.RunFailed, match="'r1' ended as failed: no such topic") as info:
        run.result()
    assert info.value.outcome == holdfast.processes.Failed("no such topic")
    with pytest.raises(holdfast.AlreadyTerminal):
        run.signal("approve")
    with pytest.raises(holdfast.InvalidRequest, match="was not started by this handle"):
        _ = store.processes.handle("r1").created
    with pytest.raises(holdfast.UnknownProcess):
        store.processes.handle("r2").result(timeout_ms=0)
    for wrong in ("", "x@r1", "1", "1@"):
        with pytest.raises(holdfast.InvalidRequest, match="after: must be the cursor"):
            list(run.follow(wrong))


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_step_passes_named_arguments_of_any_name(url: str, store: holdfast.BlockingStore, way: str) -> None:
    def greet(**named: Any) -> Any:
        return named

    given: Any = {"name": "ada", "function": "f", "self": "me", "args": [1]}

    async def handler_async(run: Run) -> Any:
        return await run.step("greet", functools.partial(greet, retry=3), **given)

    def handler(run: BlockingRun) -> Any:
        return run.step("greet", functools.partial(greet, retry=3), **given)

    outcome = run_once(url, store, handler_async if way == "async" else handler)
    assert outcome == holdfast.processes.Completed({**given, "retry": 3})


def test_a_result_of_another_type_is_named(store: holdfast.BlockingStore) -> None:
    run = store.processes.start("any", id="r1")
    store.processes.complete("r1", holdfast.processes.Completed({"txt": 1}))
    with pytest.raises(holdfast.InvalidRequest, match="result of run 'r1' is no"):
        run.result(Note)
