"""Results are of the types that functions declare: documents, dataclasses and models of pydantic."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NewType, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
import typing_extensions

import holdfast
from holdfast import typed_values
from holdfast.processes import Completed, Failed
from holdfast.worker import BlockingRun, Retry, Run, Worker


class Source(pydantic.BaseModel):
    url: pydantic.HttpUrl
    seen: datetime.date


class Report(pydantic.BaseModel):
    title: str = pydantic.Field(min_length=2)
    sources: list[Source] = []


@dataclasses.dataclass
class Plan:
    question: str


class State(TypedDict):
    asked: int


class LaterState(typing_extensions.TypedDict, total=False):
    asked: typing_extensions.Required[int]
    states: list[State]


class SoonState(TypedDict):
    asked: typing_extensions.NotRequired[int]


class Planned(TypedDict):
    plan: Plan
    later: list[Planned]


class Unknown(TypedDict):
    asked: NotThere  # type: ignore[name-defined]  # noqa: F821 - as one for type checkers only


T = TypeVar("T")
Number = NewType("Number", int)
PlanOfDay = NewType("PlanOfDay", Plan)


REPORT = Report(title="Tea", sources=[Source(url="https://example.org/", seen=datetime.date(2026, 1, 2))])  # type: ignore[arg-type]


def outcome_of(*handlers: Callable[..., Any], args: Any = None) -> Any:
    """Run the first handler, and the others as children named after their functions; return its outcome."""

    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)
            for handler in handlers:
                worker.process(handler.__name__, retry=Retry(1))(handler)
            run = await store.processes.start(handlers[0].__name__, args)
            await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    return asyncio.run(main())


def write(title: str) -> Report:
    return REPORT.model_copy(update={"title": title})


def test_models_of_pydantic_go_through_steps_arguments_children_and_results() -> None:
    async def parent(run: Run, report: Report) -> Report:
        assert report == REPORT
        written = await run.step("write", write, "Rain")
        child = await run.start("child", {"report": written})
        return await child.result(Report)

    def child(run: BlockingRun, report: Report) -> Report:
        return report.model_copy(update={"title": report.title + "!"})

    document = {"title": "Rain!", "sources": [{"url": "https://example.org/", "seen": "2026-01-02"}]}
    assert outcome_of(parent, child, args={"report": REPORT}) == Completed(document)


class Priced(pydantic.BaseModel, extra="forbid"):
    net: int = pydantic.Field(alias="netPrice")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def gross(self) -> int:
        return self.net * 2


def test_a_model_with_aliases_and_computed_fields_is_a_result() -> None:
    def price() -> Priced:
        return Priced(netPrice=3)

    async def parent(run: Run) -> int:
        return (await run.step("price", price)).gross

    assert outcome_of(parent) == Completed(6)


class LongReport(Report):
    pages: int


def test_an_object_of_a_derived_class_is_not_cut() -> None:
    async def cut(run: Run) -> Report:
        return LongReport(title="Rain", sources=[], pages=7)

    outcome = outcome_of(cut)
    assert isinstance(outcome, Failed)
    assert "a LongReport has further fields, which would be lost: declare LongReport" in outcome.message


class Base(msgspec.Struct):
    name: str


class Derived(Base):
    size: int


class Renamed(Base):
    """A derived class without further fields."""


@dataclasses.dataclass(frozen=True)
class Tag:
    name: str


@dataclasses.dataclass(frozen=True)
class ColorTag(Tag):
    color: str


@dataclasses.dataclass
class ByteStore:
    boxes: list[Base]


class Library(pydantic.BaseModel):
    reports: dict[str, Report]


@pytest.mark.parametrize(
    ("value", "declared", "lost"),
    [
        ([Base("a"), Derived("b", 7)], list[Base], "a Derived at [1]"),
        ((Base("a"), Derived("b", 7)), tuple[Base, Base], "a Derived at [1]"),
        ({"x": Derived("b", 7)}, dict[str, Base], "a Derived at ['x']"),
        ({"x": [Derived("b", 7)]}, dict[str, list[Base]] | None, "a Derived at ['x'][0]"),
        ({ColorTag("a", "red")}, set[Tag], "a ColorTag has further fields"),
        (ByteStore([Base("a"), Derived("b", 7)]), ByteStore, "a Derived at boxes[1]"),
        (Library(reports={"r": LongReport(title="Rain", pages=7)}), Library, "a LongReport at reports['r']"),
        ([LongReport(title="Rain", pages=7)], list[Report], "a LongReport at [0]"),
        (Derived("b", 7), Base, "a Derived has further fields"),
        ([Derived("b", 7)], list[Derived], None),
        ([Renamed("b")], list[Base], None),
        ({Tag("a")}, set[Tag], None),
        ([ColorTag("a", "red")], list[Any], None),
    ],
)
def test_an_object_of_a_derived_class_in_a_container_is_not_cut(value: Any, declared: Any, lost: str | None) -> None:
    async def cut(run: Run) -> Any:
        return value

    cut.__annotations__["return"] = declared
    outcome = outcome_of(cut)
    if lost is None:
        assert isinstance(outcome, Completed)
    else:
        assert isinstance(outcome, Failed)
        assert lost in outcome.message
        assert "which would be lost: declare" in outcome.message


def test_a_document_that_a_model_refuses_is_named() -> None:
    async def parent(run: Run, report: Report) -> Report:
        return report

    outcome = outcome_of(parent, args={"report": {"title": "T"}})
    assert isinstance(outcome, Failed)
    assert "do not fit the types that" in outcome.message
    assert "at least 2 characters" in outcome.message


class Approve(pydantic.BaseModel):
    by: str


class Reject(pydantic.BaseModel):
    by: str
    reason: str


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


class Signed(pydantic.BaseModel):
    by: str


class Key(pydantic.BaseModel):
    value: pydantic.SecretStr
    more: list[pydantic.SecretStr] = []


class Box(msgspec.Struct, Generic[T]):
    held: T


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Approve | Reject, Reject(by="ada", reason="late")),
        (Approve | Reject, Approve(by="ada")),
        (Approve | str, "no"),
        (Approve | Reject | None, None),
        (Approve | Reject | None, Approve(by="ada")),
        (list[Approve | Reject], [Approve(by="ada"), Reject(by="bob", reason="late")]),
        (dict[str, list[Cat | Dog | None]], {"pets": [Dog(), None, Cat()]}),
        (tuple[Cat | Dog, ...], (Dog(), Cat())),
        (Annotated[Cat | Dog, pydantic.Field(discriminator="kind")], Dog()),
        (list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]], [Dog(), Cat()]),
        (Box[Cat | Dog], Box(Dog())),
    ],
)
def test_unions_with_models_come_back(declared: Any, value: Any) -> None:
    assert typed_values.is_readable(declared)
    document = typed_values.result_document(value, declared)
    assert typed_values.decoded(document, declared) == value


def test_a_signal_of_a_union_of_models_is_taken_or_rejected() -> None:
    async def main() -> Any:
        async with holdfast.open("memory:") as store:
            worker = Worker(store)

            @worker.process("agent", signals={"answer": Approve | Reject}, retry=Retry(1))
            async def agent(run: Run) -> str:
                return type(await run.signal("answer")).__name__

            run = await store.processes.start("agent")
            await run.signal("answer", {"by": 7})
            await run.signal("answer", {"by": "ada", "reason": "late"})
            await worker.serve(until_idle=True)
            return await run.outcome(timeout_ms=0)

    assert asyncio.run(main()) == Completed("Reject")


@pytest.mark.parametrize(
    ("declared", "value", "says"),
    [
        (Approve | Signed, Signed(by="ada"), "a Signed would come back as a Approve: give each a field that tells"),
        (list[Approve | Signed], [Signed(by="ada")], r"a Signed at \[0\] would come back as a Approve"),
        (Key, Key(value=pydantic.SecretStr("s")), "a SecretStr at value is stored as asterisks"),
        (Key, Key(value=pydantic.SecretStr(""), more=[pydantic.SecretStr("s")]), r"a SecretStr at more\[0\] is stored"),
    ],
)
def test_a_model_that_would_come_back_as_another_one_is_refused(declared: Any, value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        typed_values.result_document(value, declared)


def test_a_secret_in_arguments_is_refused() -> None:
    with holdfast.open_blocking("memory:") as store, pytest.raises(holdfast.InvalidRequest, match="as asterisks"):
        store.processes.start("agent", Key(value=pydantic.SecretStr("s")))


def test_a_union_that_pydantic_does_not_read_is_refused_before_the_call() -> None:
    class Point(msgspec.Struct):
        x: int

    def choose() -> Any:
        raise AssertionError

    choose.__annotations__["return"] = Cat | Point

    def stepping(run: BlockingRun) -> None:
        run.step("choose", choose)

    assert not typed_values.is_readable(Cat | Point)
    outcome = outcome_of(stepping)
    assert isinstance(outcome, Failed)
    assert "run.step('choose'): declares to return" in outcome.message
    assert "cannot be read back" in outcome.message


class Bytes(pydantic.BaseModel):
    data: bytes


class Link(msgspec.Struct):
    to: Any = None


def no_text() -> Bytes:
    return Bytes(data=b"\xff")


def no_end() -> Link:
    link = Link()
    link.to = link
    return link


@pytest.mark.parametrize(
    ("function", "says"), [(no_text, "Bytes: a Bytes has no form as a document: "), (no_end, "Link: ")]
)
def test_a_typed_result_that_has_no_form_is_refused_by_name(function: Any, says: str) -> None:
    outcome = outcome_of(lambda run: run.step("make", function))
    assert isinstance(outcome, Failed)
    assert f"InvalidRequest: run.step('make'): returned a value that is not a valid {says}" in outcome.message


def of_int() -> int:
    return "text"  # type: ignore[return-value]


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_handler_or_step_that_returns_another_type_fails_by_name(way: str) -> None:
    async def handler(run: Run) -> int:
        return "text"  # type: ignore[return-value]

    def stepping(run: BlockingRun) -> None:
        run.step("count", of_int)

    outcome = outcome_of(handler if way == "async" else stepping)
    assert isinstance(outcome, Failed)
    place = "handler" if way == "async" else "run.step('count')"
    assert place in outcome.message
    assert "returned a value that is not a valid int: expected int, got str" in outcome.message


@pytest.mark.parametrize(
    ("declared", "right", "wrong"),
    [
        (int, True, "1"),
        (float, 1, "1"),
        (str, "a", None),
        (None, None, 0),
        (list[int], [1, 2], [1, "2"]),
        (dict[str, list[int]], {"a": [1]}, {"a": [None]}),
        (int | None, None, "a"),
        (Literal["a", "b"], "a", "c"),
        (list, [object()], {}),
        (dict, {"a": 1}, []),
        (Any, "a", ...),
        (Callable[[], int], "a", ...),
        (Literal[1], 1, True),
        (Number, 1, "a"),
        (Annotated[int, "times"], 1, "a"),
        (Sequence[int], [1], ["a"]),
        (Mapping[str, int], {"a": 1}, {"a": "b"}),
        (State, {"asked": 1, "more": 2}, {"asked": "a"}),
        (list[State], [{"asked": 1}], [{}]),
        (State | None, {"asked": 1}, []),
        (LaterState, {"asked": 1}, {"states": []}),
        (LaterState, {"asked": 1, "states": [{"asked": 1}]}, {"asked": 1, "states": [{"asked": "a"}]}),
        (SoonState, {}, {"asked": "a"}),
        (Unknown, {"asked": "a"}, ...),
    ],
)
def test_a_result_that_fits_is_taken_and_any_other_refused(declared: Any, right: Any, wrong: Any) -> None:
    def function() -> Any: ...

    function.__annotations__["return"] = declared
    found = typed_values.result_type(function)
    assert typed_values.result_document(right, found) is right
    if wrong is not ...:
        with pytest.raises(TypeError, match="expected"):
            typed_values.result_document(wrong, found)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="aliases that name themselves need Python 3.12")
def test_an_alias_that_names_itself_is_followed_once() -> None:
    names: dict[str, Any] = {}
    exec("type Json = dict[str, Json] | list[Json] | str | None", names)
    assert typed_values.result_document({"a": ["b", None]}, names["Json"]) == {"a": ["b", None]}
    with pytest.raises(TypeError, match="expected"):
        typed_values.result_document({"a": [1.5]}, names["Json"])


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Planned, {"plan": Plan("why"), "later": [{"plan": Plan("how"), "later": []}]}),
        (list[Planned], [{"plan": Plan("why"), "later": []}]),
        (PlanOfDay, Plan("why")),
        (Annotated[Plan, "of the day"], Plan("why")),
        (Annotated[int, msgspec.Meta(ge=0)], 7),
    ],
)
def test_objects_below_keys_and_other_names_of_types_come_back(declared: Any, value: Any) -> None:
    document = typed_values.result_document(value, declared)
    assert typed_values.is_typed(declared)
    assert typed_values.decoded(msgspec.json.decode(msgspec.json.encode(document)), declared) == value


def test_bounds_of_a_type_hold() -> None:
    with pytest.raises(msgspec.ValidationError, match=">= 0"):
        typed_values.result_document(-1, Annotated[int, msgspec.Meta(ge=0)])


def test_a_key_that_would_be_lost_is_refused() -> None:
    value = [{"plan": Plan("why"), "later": [], "more": 1}]
    with pytest.raises(TypeError, match=r"a dict at \[0\] has keys that its type does not declare.*: more$"):
        typed_values.result_document(value, list[Planned])


def test_the_keys_of_a_declared_dictionary_keep_their_type() -> None:
    document = typed_values.result_document({1: 2}, dict[int, int])
    assert (document, typed_values.decoded(document, dict[int, int])) == ({"1": 2}, {1: 2})


def test_a_child_result_of_another_type_is_an_error_that_names_the_child() -> None:
    async def parent(run: Run) -> None:
        child = await run.start("child", id="c1")
        await child.result(Plan)

    async def child(run: Run) -> int:
        return 7

    outcome = outcome_of(parent, child)
    assert isinstance(outcome, Failed)
    assert outcome.message.startswith("InvalidRequest: declared: the result of child run 'c1' is not a valid Plan")


@pytest.mark.parametrize(
    ("value", "helps"), [(Plan("a"), True), (datetime.date(2026, 1, 1), True), (object(), False), (float("nan"), False)]
)
def test_the_advice_to_declare_a_type_is_given_only_if_it_helps(value: Any, helps: bool) -> None:
    async def parent(run: Run) -> None:
        await run.step("s", lambda: value)

    outcome = outcome_of(parent)
    assert isinstance(outcome, Failed)
    assert "returned a value that cannot be stored" in outcome.message
    assert ("declare the type" in outcome.message) is helps


def test_a_turn_starts_a_run_with_typed_arguments() -> None:
    with holdfast.open_blocking("memory:") as store:
        with store.sessions.create("chat").turn("t") as turn:
            ids = [turn.start("any", args) for args in (Plan("a"), {"report": REPORT})]
        found = [store.processes.get(id) for id in ids]
        args = [one.input.args for one in found if one and isinstance(one.input, holdfast.processes.Run)]
    assert args == [{"question": "a"}, {"report": REPORT.model_dump(mode="json")}]


# Waits in tasks of the handler's own.


async def _with_gather(run: Run) -> None:
    await asyncio.gather(run.sleep(60), asyncio.sleep(0))


async def _with_group(run: Run) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(run.signal("go"))  # pyright: ignore[reportUnknownArgumentType]


async def _with_task(run: Run) -> None:
    child = await run.start("missing", detached=True)
    await asyncio.create_task(child.result())


@pytest.mark.parametrize("handler", [_with_gather, _with_group, _with_task])
def test_a_wait_in_a_task_that_the_run_does_not_know_names_run_gather(handler: Callable[..., Any]) -> None:
    outcome = outcome_of(handler)
    assert isinstance(outcome, Failed)
    assert "run.gather" in outcome.message


def test_steps_may_run_in_tasks_of_the_handler() -> None:
    async def handler(run: Run) -> list[int]:
        return await asyncio.gather(*(run.step(f"s{number}", abs, number) for number in (-1, 2)))

    assert outcome_of(handler) == Completed([1, 2])
