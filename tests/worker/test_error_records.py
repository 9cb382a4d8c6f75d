"""Errors of steps: a handler that catches one catches an equal one whenever it runs again."""

from __future__ import annotations

import asyncio
import datetime
import http
import json
import subprocess
import sys
import types
import urllib.error
from collections.abc import Callable
from typing import Any

import msgspec
import pydantic
import pytest

import holdfast
from holdfast.processes import Completed, Failed
from holdfast.worker import BlockingRun, GiveUp, Retry, Run, StepFailed, Worker, replay
from holdfast.worker.error_records import error_of, recorded_error


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Deep(Exception):
    pass


class Faulty(Exception):
    def __str__(self) -> str:
        raise RuntimeError("in __str__")


class NoSuchPage(GiveUp):
    def __init__(self, at: datetime.date) -> None:
        super().__init__("no such page")
        self.at = at


class Model(pydantic.BaseModel):
    count: int


def raised_by(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("no error")


def noted() -> Exception:
    error = ValueError("no")
    error.add_note("at noon")
    return error


WHOLE: list[Exception] = [
    raised_by(lambda: {}["k"]),
    raised_by(lambda: {}[("a", 1, b"x")]),
    raised_by(lambda: open("/there is no such file")),  # noqa: PTH123, SIM115 - the error of it
    raised_by(lambda: subprocess.run(["false"], check=True)),
    raised_by(lambda: json.loads("{")),
    raised_by(b"\xff".decode),
    raised_by("\ud800".encode),
    raised_by(lambda: Model.model_validate({"count": "many"})),
    raised_by(lambda: (1).nothing),  # type: ignore[attr-defined]
    ApiError(404, "not there"),
    ExceptionGroup("two", [ValueError("a"), ExceptionGroup("one", [ApiError(404, "not there")])]),
    StopAsyncIteration("x"),
    ValueError("caf\udce9"),
    ValueError("a\0b", 1.5, None, True, [{"a": (1,)}]),
    noted(),
    holdfast.InvalidRequest("field", "is wrong", limit=7),
    holdfast.AlreadyTerminal("r1", "completed"),
    holdfast.LeaseLost("process 'r1'"),
    GiveUp("no"),
]
IN_PARTS: list[Exception] = [
    urllib.error.HTTPError("http://x", 404, "nope", {}, None),  # type: ignore[arg-type]
    ValueError(object()),
    ValueError(http.HTTPStatus.NOT_FOUND),
    ValueError(float("nan")),
    ValueError(2**70),
    Faulty(),
    type("Local", (Exception,), {})("x"),
    ValueError("x" * 5_000, 1),
]


def named(errors: list[Exception]) -> list[Any]:
    return [pytest.param(error, id=f"{number}-{type(error).__name__}") for number, error in enumerate(errors)]


def facts_of(error: BaseException) -> Any:
    """Return all that a handler sees of an error."""
    named = ("errno", "filename", "status", "returncode", "cmd", "start", "reason", "doc", "field", "limit", "name")
    return (
        type(error),
        str(error),
        repr(error),
        getattr(error, "__notes__", None),
        error.__cause__,
        [getattr(error, name, None) for name in named],
        [facts_of(one) for one in getattr(error, "exceptions", ())],
    )


@pytest.mark.parametrize("error", named(WHOLE))
def test_an_error_comes_back_equal(error: Exception) -> None:
    document = recorded_error(error, 4_096, 60)
    assert document is not None
    again = error_of(msgspec.json.decode(msgspec.json.encode(document)))
    assert facts_of(again) == facts_of(error)


@pytest.mark.parametrize("error", named(IN_PARTS))
def test_an_error_that_no_document_holds_whole_has_no_record(error: Exception) -> None:
    assert recorded_error(error, 4_096, 60) is None


def test_an_error_that_is_too_deep_has_no_record() -> None:
    value: Any = "core"
    for _ in range(10):
        value = [value]
    assert recorded_error(Deep(value), 4_096, 60) is not None
    assert recorded_error(Deep(value), 4_096, 10) is None
    for _ in range(10):
        value = [value]
    assert recorded_error(Deep(value), 4_096, 60) is None


@pytest.mark.parametrize("error", named([*WHOLE, *IN_PARTS]))
def test_a_handler_catches_the_same_error_again(error: Exception) -> None:
    caught: list[Any] = []

    def fail() -> None:
        raise error

    async def main() -> Any:
        async with holdfast.open("memory:", limits=holdfast.Limits(document_bytes=8_192)) as store:
            worker = Worker(store)

            @worker.process("agent", retry=Retry(1))
            async def agent(run: Run) -> str:
                try:
                    await run.step("risky", fail)
                except Exception as raised:
                    caught.append(facts_of(raised))
                    await run.step("report", len, caught[-1][1])
                await run.signal("go")
                return "continued"

            run = await store.processes.start("agent", id="r1")
            await worker.serve(until_idle=True)
            await run.signal("go")
            await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    assert asyncio.run(main()) == Completed("continued")
    first, second = caught
    assert first == second
    assert first[0] is (StepFailed if error in IN_PARTS else type(error))


def test_a_caught_error_is_caught_again_by_a_plain_handler(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    caught: list[Any] = []
    errors: list[Exception] = [ApiError(404, "not there"), ValueError(object()), ValueError("caf\udce9 \0")]

    def fail(number: int) -> None:
        raise errors[number]

    @worker.process("agent", retry=Retry(1))
    def agent(run: BlockingRun) -> str:
        for number in range(len(errors)):
            try:
                run.step(f"risky/{number}", fail, number)
            except Exception as raised:
                caught.append(facts_of(raised))
        run.signal("go")
        return "continued"

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    run.signal("go")
    worker.run(until_idle=True)
    assert run.outcome(timeout_ms=0) == Completed("continued")
    assert caught[:3] == caught[3:]
    assert [one[0] for one in caught[:3]] == [ApiError, StepFailed, ValueError]
    assert replay(store, worker, "r1").ok


ODD_TEXTS = ["\udce9\0" * 5_000, "é" * 5_000, "\x01" * 5_000, "x" * 20_000]


@pytest.mark.parametrize("number", range(len(ODD_TEXTS)))
def test_a_text_that_cannot_be_stored_is_cleaned_and_cut(number: int) -> None:
    caught: list[str] = []

    def fail() -> None:
        raise ValueError(ODD_TEXTS[number])

    async def main() -> Any:
        limits = holdfast.Limits(document_bytes=4_096, text_bytes=1_024)
        async with holdfast.open("memory:", limits=limits) as store:
            worker = Worker(store)

            @worker.process("catches", retry=Retry(1))
            async def catches(run: Run) -> str:
                try:
                    await run.step("risky", fail)
                except ValueError as error:
                    caught.append(str(error))
                await run.signal("go")
                return "continued"

            @worker.process("fails", retry=Retry(2, backoff_s=0))
            async def fails(run: Run) -> None:
                await run.step("risky", fail)

            @worker.process("gives up", retry=Retry(1))
            async def gives_up(run: Run) -> None:
                await run.step("risky", fail, retry=Retry(2, backoff_s=0))

            runs = [await store.processes.start(kind, id=kind) for kind in ("catches", "fails", "gives up")]
            await worker.serve(until_idle=True)
            await runs[0].signal("go")
            await worker.serve(until_idle=True)
            return [await run.outcome(timeout_ms=0) for run in runs]

    outcomes = asyncio.run(main())
    assert outcomes[0] == Completed("continued")
    assert caught[0] == caught[1]
    assert [type(one) for one in outcomes[1:]] == [Failed, Failed]
    for one in outcomes[1:]:
        assert "ValueError: " in one.message
        assert 200 < len(one.message.encode()) <= 1_024


def outcome_of_failing(error: Exception, *, attempts: int) -> tuple[Any, int]:
    """Return the outcome of a run whose step raises an error that nothing catches, and the calls of the step."""
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise error

    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)

            @worker.process("agent", retry=Retry(attempts, backoff_s=0))
            async def agent(run: Run) -> None:
                await run.step("risky", fail)

            run = await store.processes.start("agent", id="r1")
            await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    return asyncio.run(main()), len(calls)


def test_an_error_that_gives_up_does_so_whatever_it_holds() -> None:
    outcome, calls = outcome_of_failing(NoSuchPage(datetime.date(2024, 1, 1)), attempts=3)
    assert isinstance(outcome, Failed)
    assert (calls, "no such page" in outcome.message) == (1, True)


def test_a_failed_step_names_the_class_of_its_error() -> None:
    outcome, calls = outcome_of_failing(ValueError(http.HTTPStatus.NOT_FOUND), attempts=2)
    assert isinstance(outcome, Failed)
    assert calls == 2
    assert outcome.message == "StepFailed: run 'r1', step 'risky' failed 2 times: ValueError: 404"


def test_a_run_is_held_if_the_class_of_a_caught_error_is_not_loaded(url: str, store: holdfast.BlockingStore) -> None:
    module = types.ModuleType("an_application_of_today")
    gone: Any = type("Gone", (Exception,), {"__module__": module.__name__})
    module.Gone = gone  # type: ignore[attr-defined]
    worker = Worker(url)

    @worker.process("agent", retry=Retry(1))
    def agent(run: BlockingRun) -> str:
        def fail() -> None:
            raise gone("away")

        try:
            run.step("primary", fail)
        except gone:
            run.signal("go")
        return "continued"

    run = store.processes.start("agent", id="r1")
    sys.modules[module.__name__] = module
    try:
        worker.run(until_idle=True)
        del sys.modules[module.__name__]
        run.signal("go")
        worker.run(until_idle=True)
        held = store.processes.get("r1")
        assert held is not None
        assert held.is_held
        assert "an_application_of_today.Gone, which this program has not imported" in str(held.last_error)
    finally:
        sys.modules.pop(module.__name__, None)


@pytest.mark.parametrize("then", ["child", "progress", "end", "continue"])
def test_a_caught_error_is_recorded_before_what_comes_of_it(url: str, store: holdfast.BlockingStore, then: str) -> None:
    worker = Worker(url)

    def fail() -> None:
        raise ConnectionError("away")

    @worker.process("child")
    def child(run: BlockingRun) -> str:
        return "of the child"

    @worker.process("agent", retry=Retry(1))
    def agent(run: BlockingRun, again: bool = False) -> Any:
        if again:
            return "continued"
        started = run.start("child")
        run.signal("go")
        try:
            return run.step("primary", fail)
        except ConnectionError:
            if then == "child":
                return started.result()
            if then == "progress":
                run.progress("fallback")
            if then == "continue":
                run.continue_as_new({"again": True})
        return "fallback"

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    run.signal("go")
    worker.run(until_idle=True)
    assert isinstance(run.outcome(timeout_ms=0), Completed)
    events = list(store.events.after("r1"))
    names: list[Any] = [event.payload["name"] if event.type == "step" else event.type for event in events]  # type: ignore[call-overload, index]
    follows = {
        "child": "~result:r1/child:1",
        "progress": "progress",
        "end": "process.completed",
        "continue": "run.continued",
    }
    assert names[names.index("~retried:primary:1") + 1] == follows[then]
    assert replay(store, worker, "r1").ok
