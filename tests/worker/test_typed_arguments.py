"""Arguments of handlers: decoded into the declared types, also below decorators, with None and with default values."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from tests.worker.tracing_decorators import asynchronously, plainly

import holdfast
from holdfast.processes import Completed, Failed
from holdfast.worker import BlockingRun, Failure, Retry, Run, Worker


@dataclasses.dataclass
class Question:
    text: str
    depth: int = 3


@dataclasses.dataclass
class Settings:
    depth: int = 3


DEFAULT = Question("usual")


def outcome_of(handler: Callable[..., Any], args: Any = None) -> Any:
    """Run a handler once, and return the outcome."""

    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)
            worker.process("ask", retry=Retry(1))(handler)
            run = await store.processes.start("ask", args)
            await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    return asyncio.run(main())


async def of_async(run: Run, question: Question) -> list[Any]:
    assert isinstance(run, Run)
    return [type(question).__name__, await run.step("text", str, question.text)]


def of_thread(run: BlockingRun, question: Question) -> list[Any]:
    assert isinstance(run, BlockingRun)
    return [type(question).__name__, run.step("text", str, question.text)]


class Asker:
    """A handler that is an object."""

    @plainly
    async def ask(self, run: Run, question: Question) -> list[Any]:
        return await of_async(run, question)

    async def __call__(self, run: Run, question: Question) -> list[Any]:
        return await of_async(run, question)


@pytest.mark.parametrize(
    "handler",
    [
        of_async,
        plainly(of_async),
        asynchronously(of_async),
        plainly(asynchronously(of_async)),
        functools.partial(of_async),
        plainly(of_thread),
        Asker().ask,
        Asker(),
    ],
    ids=["async", "plainly", "asynchronously", "both", "partial", "thread", "method", "object"],
)
@pytest.mark.parametrize("args", [{"text": "why"}, {"question": {"text": "why"}}], ids=["whole", "named"])
def test_a_decorated_handler_gets_its_types(handler: Any, args: Any) -> None:
    assert outcome_of(handler, args) == Completed(["Question", "why"])


async def optional(run: Run, question: Question | None) -> Any:
    return None if question is None else [type(question).__name__, question.text, question.depth]


async def defaulted(run: Run, question: Question | None = DEFAULT) -> Any:
    return None if question is None else [type(question).__name__, question.text, question.depth]


class State(TypedDict):
    asked: int


async def keyed(run: Run, state: State) -> Any:
    return state


async def by_name(run: Run, *, question: Question | None) -> Any:
    return await optional(run, question)


async def with_more(run: Run, question: Question, often: int = 2) -> Any:
    return [question.text, often]


async def with_defaults(run: Run, settings: Settings) -> Any:
    return [type(settings).__name__, settings.depth]


async def named_like_a_field(run: Run, text: Question) -> Any:
    return [type(text).__name__, text.text, text.depth]


async def many(run: Run, *questions: Question) -> Any:
    return [question.text for question in questions]


async def anything(*given: Any) -> Any:
    return list(given[1:])


async def keywords(run: Run, **named: Question) -> Any:
    return sorted(named)


async def counted(
    run: Run,
    number: int,
    words: list[str] | None = None,
    mood: Literal["good", "bad"] = "good",
    limit: int = None,  # type: ignore[assignment]  # noqa: RUF013 - as users write it
) -> Any:
    return [number, words, mood, limit]


@pytest.mark.parametrize(
    ("handler", "args", "expected"),
    [
        (optional, {"text": "why"}, ["Question", "why", 3]),
        (optional, {"question": {"text": "why", "depth": 5}}, ["Question", "why", 5]),
        (optional, {"question": None}, None),
        (optional, None, None),
        (defaulted, {"text": "why"}, ["Question", "why", 3]),
        (defaulted, {"question": None}, None),
        (defaulted, None, ["Question", "usual", 3]),
        (by_name, {"text": "why"}, ["Question", "why", 3]),
        (by_name, None, None),
        (with_more, {"text": "why"}, ["why", 2]),
        (with_more, {"question": {"text": "why"}, "often": 7}, ["why", 7]),
        (named_like_a_field, {"text": "why", "depth": 5}, ["Question", "why", 5]),
        (named_like_a_field, {"text": {"text": "why"}}, ["Question", "why", 3]),
        (with_defaults, None, ["Settings", 3]),
        (with_defaults, {}, ["Settings", 3]),
        (with_defaults, {"depth": 7}, ["Settings", 7]),
        (many, None, []),
        (many, {"text": "why"}, ["why"]),
        (anything, 7, [7]),
        (keywords, {"text": "why"}, ["text"]),
        (counted, 7, [7, None, "good", None]),
        (counted, {"number": 7, "words": ["a"], "mood": "bad", "limit": None}, [7, ["a"], "bad", None]),
    ],
)
def test_none_and_default_values_are_arguments(handler: Any, args: Any, expected: Any) -> None:
    assert outcome_of(handler, args) == Completed(expected)


@pytest.mark.parametrize(
    ("handler", "args", "says"),
    [
        (of_async, None, "missing required field `text`"),
        (optional, {"text": 7}, "Expected `str`, got `int`"),
        (with_more, {"text": "why", "often": 7}, "missing a required argument: 'question'"),
        (named_like_a_field, {"text": "why", "other": 1}, "unexpected keyword argument 'other'"),
        (lambda run, question: 1, None, "missing a required argument: 'question'"),
        (counted, "seven", "number: expected int, got str"),
        (counted, {"number": None}, "number: expected int, got NoneType"),
        (counted, {"number": 7, "words": ["a", 8]}, "words: expected str, got int at [1]"),
        (counted, {"number": 7, "mood": "sad"}, "mood: expected typing.Literal['good', 'bad'], got str"),
        (keyed, {"state": {"asked": "a"}}, "state: expected int, got str at ['asked']"),
        (keyed, {"state": {}}, "state: expected State, got no 'asked'"),
    ],
    ids=["none", "type", "mixed", "no field", "untyped", "plain", "no value", "inside", "literal", "key", "no key"],
)
def test_arguments_that_do_not_fit_are_named_and_none_is_lost(handler: Any, args: Any, says: str) -> None:
    outcome = outcome_of(handler, args)
    assert isinstance(outcome, Failed)
    assert "args: do not fit" in outcome.message
    assert says in outcome.message


@pytest.mark.parametrize("way", ["child", "continued", "turn"])
def test_arguments_are_checked_where_a_run_is_started_by_a_worker_with_its_handler(way: str) -> None:
    """The starter fails by name, and no run is started that could only fail."""

    async def parent(run: Run, number: int) -> None:
        if way == "continued":
            run.continue_as_new({"number": "seven"})
        await run.start("counted", {"number": "seven"})

    async def answer(turn: holdfast.Turn) -> None:
        turn.start("counted", {"number": "seven"})

    async def main() -> None:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)
            failures: list[Failure] = []
            worker.on_failure(failures.append)
            worker.turn(retry=Retry(1))(answer)
            worker.process("counted")(counted)
            worker.process("parent", retry=Retry(1))(parent)
            if way == "turn":
                session = await store.sessions.create("chat")
                await session.enqueue("hi")
            else:
                await store.processes.start("parent", {"number": 7}, id="p")
            await worker.serve(until_idle=True)
            [failure] = failures
            kind = "parent" if way == "continued" else "counted"
            assert f"args: of a run of '{kind}' do not fit the types that" in str(failure.error)
            assert "number: expected int, got str" in str(failure.error)
            ids = [one.id async for one in holdfast.every(store.processes.list, status="any")]
            assert ids == ([] if way == "turn" else ["p"])

    asyncio.run(main())


class Point(msgspec.Struct):
    x: int


class Place(Point):
    name: str = ""


async def takes_point(run: Run, point: Point) -> int:
    return point.x


async def takes_points(run: Run, *, points: list[Point]) -> int:
    return len(points)


@pytest.mark.parametrize(
    ("handler", "args", "lost_at"),
    [
        (takes_point, Place(1, "here"), ""),
        (takes_point, {"point": Place(1, "here")}, ""),
        (takes_points, {"points": [Point(1), Place(1, "here")]}, " at [1]"),
        (takes_points, {"points": [Point(1)]}, None),
        (takes_point, {"point": Point(1)}, None),
    ],
)
def test_arguments_of_a_derived_class_are_refused_where_their_fields_would_be_lost(
    handler: Any, args: Any, lost_at: str | None
) -> None:
    handlers = Worker("memory:")
    handlers.process("placed")(handler)
    if lost_at is None:
        handlers.handlers.check_start("placed", "1", args)
        return
    with pytest.raises(holdfast.InvalidRequest) as refused:
        handlers.handlers.check_start("placed", "1", args)
    assert refused.value.problem.endswith(f"a Place{lost_at} has further fields, which would be lost: declare Place")


class Step(pydantic.BaseModel):
    name: str


class TimedStep(Step):
    seconds: int


class Plan(pydantic.BaseModel):
    steps: list[Step]


def test_a_model_that_would_lose_fields_of_a_derived_one_is_refused() -> None:
    plan = Plan(steps=[Step(name="read"), TimedStep(name="wait", seconds=7)])
    problem = "a TimedStep at steps[1] has further fields, which would be lost: declare TimedStep"
    with holdfast.open_blocking("memory:") as store:
        with pytest.raises(holdfast.InvalidRequest) as alone:
            store.processes.start("ask", plan)
        assert (alone.value.field, alone.value.problem) == ("args", problem)
        starts = [holdfast.processes.RunDraft("ask", {"plan": plan})]
        with pytest.raises(holdfast.InvalidRequest) as in_a_turn:
            store.sessions.create("chat").commit(holdfast.Commit(starts=starts))
        assert (in_a_turn.value.field, in_a_turn.value.problem) == ("starts[0].args", problem)
        run = store.processes.start("ask", Plan(steps=[Step(name="read")]), id="kept")
        assert run.receipt.created
