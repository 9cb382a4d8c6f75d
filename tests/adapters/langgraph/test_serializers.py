"""The serialiser by default: LangGraph's format, and no type that was not allowed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import ormsgpack
import pytest
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Send

import holdfast
from holdfast.adapters.langgraph import StrictSerializer, messages

THEIRS = JsonPlusSerializer(allowed_msgpack_modules=None)


class Colour(Enum):
    RED = "red"


@dataclass
class Plan:
    colour: object


class Own(HumanMessage):
    mood: str = "calm"


CALLS: list[Any] = [{"name": "add", "args": {"a": 1}, "id": "c1"}, {"name": "sub", "args": {}, "id": None}]
USAGE: Any = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "input_token_details": {"cache_read": 1}}
BLOCKS: list[Any] = [{"type": "text", "text": "hi"}, "and", {"type": "image", "url": "x", "n": [1, 2.5, None, True]}]

MESSAGES: dict[str, Any] = {
    "human": HumanMessage("hi"),
    "named": HumanMessage("hi", id="1", name="ada", additional_kwargs={"a": {"b": [1]}}),
    "blocks": HumanMessage(BLOCKS),
    "standard blocks": HumanMessage(content_blocks=[{"type": "text", "text": "hi"}]),
    "extra": HumanMessage("hi", mood="calm", content_kind=3),
    "extra blocks": HumanMessage.model_construct(content="hi", content_blocks=[{"type": "text", "text": "ho"}]),
    "surrogate": HumanMessage("a\ud800b"),
    "ai": AIMessage("ok", response_metadata={"model": "m"}, usage_metadata=USAGE, id="2"),
    "calls": AIMessage("", tool_calls=CALLS),
    "invalid calls": AIMessage("", invalid_tool_calls=[{"name": "f", "args": "{", "id": "x", "error": "no"}]),
    "old calls": AIMessage(
        "", additional_kwargs={"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}}]}
    ),
    "system": SystemMessage("be good"),
    "tool": ToolMessage("3", tool_call_id="c1", artifact={"raw": [1, 2]}, status="error"),
    "tool that gave a tuple": ToolMessage(("a", "b"), tool_call_id="c1"),
    "artifact of bytes": ToolMessage("3", tool_call_id="c1", artifact=b"\x00\xff"),
    "artifact of a set": ToolMessage("3", tool_call_id="c1", artifact={1}),
    "artifact of a date": ToolMessage("3", tool_call_id="c1", artifact=datetime(2026, 1, 2, tzinfo=UTC)),
    "artifact with a message": ToolMessage("3", tool_call_id="c1", artifact={"of": HumanMessage("hi")}),
    "half a message": HumanMessage.model_construct(content="hi"),
    "numbers as keys": HumanMessage("hi", additional_kwargs={1: "a"}),
    "chunk": AIMessageChunk("part"),
    "chat": ChatMessage("hi", role="user"),
    "function": FunctionMessage("3", name="f"),
    "remove": RemoveMessage("1"),
}
VALUES: dict[str, Any] = {
    "messages": [HumanMessage("hi"), AIMessage("ok"), [SystemMessage("x")], {"m": HumanMessage("y")}],
    "snapshot": _DeltaSnapshot([HumanMessage("hi")]),
    "send": Send("node", {"messages": [HumanMessage("hi")]}),
    "document": Document("text", metadata={"page": 1}),
    "common types": [UUID(int=5), Decimal("1.5"), {1, 2}, datetime(2026, 1, 2, tzinfo=UTC), (1, 2), b"x", 2**63],
    "error": ValueError("no"),
}


@pytest.fixture(autouse=True)
def _unproven() -> Iterator[None]:
    """Let each test meet the first message of each class."""
    known = messages._written, messages._read
    before = [dict(one) for one in known]
    for one in known:
        one.clear()
    yield
    for one, kept in zip(known, before, strict=True):
        one.clear()
        one.update(kept)


@pytest.mark.parametrize("value", {**MESSAGES, **VALUES}.values(), ids={**MESSAGES, **VALUES})
def test_a_value_has_the_bytes_and_the_content_that_langgraph_gives_it(value: Any) -> None:
    ours = StrictSerializer()
    # The second one is of a class that has been met.
    for several in (value, [value, value]):
        typed = THEIRS.dumps_typed(several)
        assert ours.dumps_typed(several) == typed
        expected, found = THEIRS.loads_typed(typed), ours.loads_typed(typed)
        assert repr(found) == repr(expected)
        assert found == expected
        assert type(found) is type(expected)


def test_messages_that_were_loaded_can_be_changed_apart() -> None:
    ours = StrictSerializer()
    typed = ours.dumps_typed([HumanMessage("hi"), HumanMessage("hi")])
    first, second = ours.loads_typed(typed)
    first.content = "changed"
    first.additional_kwargs["a"] = 1
    assert (second.content, second.additional_kwargs, ours.loads_typed(typed)[0].content) == ("hi", {}, "hi")


def test_a_class_that_one_way_writes_differently_is_left_to_langgraph(monkeypatch: pytest.MonkeyPatch) -> None:
    def dumped(message: BaseMessage, **_options: Any) -> Any:
        return {"content": message.content, "type": "human", "name": "from model_dump"}

    monkeypatch.setattr(HumanMessage, "model_dump", dumped)
    value = [HumanMessage("a"), HumanMessage("b"), AIMessage("c")]
    typed = StrictSerializer().dumps_typed(value)
    assert typed == THEIRS.dumps_typed(value)
    assert [one.name for one in StrictSerializer().loads_typed(typed)] == ["from model_dump"] * 2 + [None]


def test_a_class_that_one_way_reads_differently_is_left_to_langgraph(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = THEIRS.dumps_typed([HumanMessage("a"), HumanMessage("b")])
    plain: Any = HumanMessage.__init__

    def init(self: HumanMessage, **fields: Any) -> None:
        plain(self, **{**fields, "name": "from the constructor"})

    monkeypatch.setattr(HumanMessage, "__init__", init)
    assert [one.name for one in StrictSerializer().loads_typed(typed)] == ["from the constructor"] * 2


def test_without_the_parts_of_langgraph_it_needs_everything_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_msgpack_default", None)
    value = [HumanMessage("a"), {"b": 1}]
    assert StrictSerializer().dumps_typed(value) == THEIRS.dumps_typed(value)


# ---------------------------------------------------------------------------- types that are not allowed


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        {"a": [Colour.RED]},
        {Colour.RED},
        Plan(Colour.RED),
        [Plan([{"b": Plan({Colour.RED})}])],
        AIMessage("x", additional_kwargs={"c": Colour.RED}),
        ToolMessage("x", tool_call_id="1", artifact=[Colour.RED]),
        Send("node", {"c": Colour.RED}),
        _DeltaSnapshot([Colour.RED]),
    ],
    ids=repr,
)
def test_a_type_that_is_not_allowed_is_refused_wherever_it_stands(value: Any) -> None:
    typed = THEIRS.dumps_typed(value)
    serializer = StrictSerializer(allow=[Plan])
    with pytest.raises(holdfast.InvalidRequest, match=r"of the type .*\.Colour, which is not loaded unless you allow"):
        serializer.loads_typed(typed)
    # Nothing of the refusal is left for the next value.
    with pytest.raises(ValueError, match="Reserved") as damaged:
        serializer.loads_typed(("msgpack", b"\xc1"))
    assert not isinstance(damaged.value, holdfast.InvalidRequest)
    assert repr(StrictSerializer(allow=[Plan, Colour]).loads_typed(typed)) == repr(value)


def test_a_class_of_your_own_that_extends_a_message_is_your_own_type() -> None:
    typed = StrictSerializer().dumps_typed([HumanMessage("hi"), Own("ho")])
    assert typed == THEIRS.dumps_typed([HumanMessage("hi"), Own("ho")])
    with pytest.raises(holdfast.InvalidRequest, match=r"of the type .*\.Own, which"):
        StrictSerializer().loads_typed(typed)
    assert StrictSerializer(allow=[Own]).loads_typed(typed) == [HumanMessage("hi"), Own("ho")]


def test_deeply_nested_hostile_types_are_refused_in_reasonable_time() -> None:
    data = ormsgpack.packb(["os", "system", "true"])
    for _ in range(200):
        data = ormsgpack.packb(["builtins", "set", [ormsgpack.Ext(0, data)]])
    hostile = ormsgpack.packb(ormsgpack.Ext(0, data))
    with pytest.raises(holdfast.InvalidRequest, match=r"os\.system"):
        StrictSerializer().loads_typed(("msgpack", hostile))


ARRAY = ormsgpack.packb(ormsgpack.Ext(6, ormsgpack.packb(("<f8", (2, 1), "C", b"\x00" * 16))))


def test_an_array_of_numpy_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def frombuffer(buffer: bytes, dtype: str) -> Any:
        return SimpleNamespace(reshape=lambda shape, order: (len(buffer), dtype, tuple(shape), order))

    numpy: Any = SimpleNamespace(frombuffer=frombuffer, dtype=str, __spec__=object())
    monkeypatch.setitem(sys.modules, "numpy", numpy)
    assert StrictSerializer().loads_typed(("msgpack", ARRAY)) == (16, "<f8", (2, 1), "C")


def test_an_array_of_numpy_is_refused_where_numpy_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(holdfast.InvalidRequest, match="array of numpy, which is not installed: install numpy"):
        StrictSerializer().loads_typed(("msgpack", ARRAY))
