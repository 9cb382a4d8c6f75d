"""A `HoldfastConversationStore` answers like Pydantic AI's in-memory store, and keeps conversations whole."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic_ai import DeferredToolRequests
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationStore, InMemoryConversationStore
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RunUsage

import holdfast
from holdfast.adapters.pydantic_ai import HoldfastConversationStore
from holdfast.adapters.pydantic_ai.conversations import MESSAGE, RECORD

NAMES = ["a", "b", "c"]
SCOPES = [None, "ada", "bob"]


def said(text: str) -> ModelMessage:
    return ModelRequest.user_text_prompt(text)


def run(url: str, body: Callable[[HoldfastConversationStore], Awaitable[None]]) -> None:
    async def whole() -> None:
        store = HoldfastConversationStore(url)
        try:
            await body(store)
        finally:
            await store.aclose()

    asyncio.run(whole())


class Side:
    """One of two stores that get the same calls, with the conversations that a program holds on to."""

    def __init__(self, store: ConversationStore) -> None:
        self.store = store
        self.held: dict[str, Conversation] = {}

    async def call(self, step: tuple[Any, ...]) -> Any:
        try:
            return await self._call(*step)
        except (ConversationConflict, UserError) as error:
            return type(error).__name__, str(error)

    async def _call(self, what: str, name: str, scope: str | None, number: int, message: ModelMessage) -> Any:  # noqa: PLR0912
        store = self.store
        match what:
            case "new":
                self.held[name] = Conversation(
                    conversation_id=name, messages=[message], usage=RunUsage(requests=number)
                )
                return len(await store.save(self.held[name], scope=scope))
            case "load":
                found = await store.load(name, scope=scope)
                if found is not None:
                    self.held[name] = found
                return None if found is None else (found.messages, found.usage)
            case "window":
                entries = await store.load_entries(name, limit=number)
                return None if entries is None else [entry.message for entry in entries]
            case "add" if name in self.held:
                held = self.held[name]
                held.messages.append(message)
                held.usage.requests += number
                return len(await store.save(held))
            case "rewrite" if name in self.held:
                held = self.held[name]
                held.messages[:] = [*held.messages[: number % (len(held.messages) + 1)], message]
                held.new_message_index = None
                return len(await store.save(held))
            case "fork":
                forked = await store.fork(name, at=number % 3 or None, new_conversation_id=f"{name}{number % 4}")
                return forked.messages
            case "branch" if name in self.held:
                self.held[name] = await store.branch(name, at=number % 3, expected_revision=self.held[name].revision)
                return self.held[name].messages
            case "back" if name in self.held:
                record = await store.read_record(name)
                if record is None or not record.branches:
                    return None
                tip = record.branches[number % len(record.branches)]
                self.held[name] = await store.branch(name, from_entry=tip, expected_revision=self.held[name].revision)
                return self.held[name].messages
            case "delete":
                return await store.delete(name, scope=scope)
            case "list":
                records = await store.list_conversations(scope=scope)
                return {(one.conversation_id, one.scope, one.forked_from, len(one.branches)) for one in records}
            case _:
                return None


STEPS = ["new", "load", "load", "window", "add", "add", "add", "rewrite", "fork", "branch", "back", "delete", "list"]


@pytest.mark.parametrize("seed", range(6))
def test_random_calls_are_answered_as_by_the_framework(url: str, seed: int) -> None:
    chance = random.Random(seed)
    names = [*NAMES, *(f"{name}{number}" for name in NAMES for number in range(4))]

    async def body(store: HoldfastConversationStore) -> None:
        ours, theirs = Side(store), Side(InMemoryConversationStore())
        for number in range(80):
            name = chance.choice(NAMES if chance.random() < 0.7 else names)
            what = (chance.choice(STEPS), name, chance.choice(SCOPES) if chance.random() < 0.3 else None, number)
            step = (*what, said(f"message {number}"))
            assert await ours.call(step) == await theirs.call(step), step[:4]

    run(url, body)


def test_messages_come_back_equal(url: str) -> None:
    messages: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart(["look", BinaryContent(b"\x00\xff", media_type="application/pdf")])]),
        ModelResponse(parts=[TextPart("hm"), ToolCallPart("look", {"at": [1, {"deep": None}]}, tool_call_id="c1")]),
        ModelRequest(parts=[ToolReturnPart("look", {"seen": "bird"}, tool_call_id="c1")]),
    ]

    async def body(store: HoldfastConversationStore) -> None:
        conversation = Conversation(conversation_id="a", messages=messages, usage=RunUsage(input_tokens=5))
        entries = await store.save(conversation)
        found = await store.load("a")
        assert found is not None
        assert (found.messages, found.usage, found.revision) == (messages, conversation.usage, conversation.revision)
        fresh = HoldfastConversationStore(await store._source.store())
        assert await fresh.read_entry(entries[1].id) == entries[1]
        with pytest.raises(LookupError):
            await fresh.read_entry("nobody")

    run(url, body)


def test_the_newest_conversations_are_listed_first(url: str) -> None:
    async def body(store: HoldfastConversationStore) -> None:
        for number in range(6):
            await store.save(Conversation(conversation_id=f"c{number}", messages=[said("hi")]), scope="ada")
        found = await store.load("c2")
        assert found is not None
        found.messages.append(said("more"))
        await store.save(found)
        listed = await store.list_conversations(scope="ada", limit=3)
        assert [one.conversation_id for one in listed] == ["c2", "c5", "c4"]
        assert await store.list_conversations(scope="bob") == []

    run(url, body)


def test_of_two_writers_the_second_gets_a_conflict_and_nothing_is_lost(url: str) -> None:
    async def body(store: HoldfastConversationStore) -> None:
        await store.save(Conversation(conversation_id="a", messages=[said("hi")]))

        async def writer(number: int) -> bool:
            conversation = await store.load("a")
            assert conversation is not None
            conversation.messages.append(said(f"from {number}"))
            try:
                await store.save(conversation)
            except ConversationConflict:
                return False
            return True

        kept = await asyncio.gather(*map(writer, range(8)))
        found = await store.load("a")
        assert found is not None
        assert len(found.messages) == 1 + sum(kept)
        assert any(kept)

    run(url, body)


@pytest.mark.parametrize(
    ("value", "problem"),
    [("\ud800", "surrogate"), (2**64, "more than 64 bits"), (float("nan"), "NaN"), (object(), "unknown type")],
    ids=["text", "integer", "nan", "object"],
)
def test_a_value_that_json_cannot_hold_is_refused_and_nothing_is_stored(url: str, value: Any, problem: str) -> None:
    bad = ModelResponse(parts=[ToolCallPart("tool", {"value": value}, tool_call_id="c")])

    async def body(store: HoldfastConversationStore) -> None:
        with pytest.raises(holdfast.InvalidRequest, match=rf"^messages\[1\]: .*{problem}"):
            await store.save(Conversation(conversation_id="a", messages=[said("hi"), bad]))
        assert await store.load("a") is None

    run(url, body)


@pytest.mark.parametrize(
    ("value", "problem"),
    [("\ud800", "surrogate"), (2**64, "more than 64 bits"), (float("nan"), "NaN"), (object(), "unknown type")],
    ids=["text", "integer", "nan", "object"],
)
def test_a_waiting_call_that_json_cannot_hold_is_refused_and_nothing_is_stored(
    url: str, value: Any, problem: str
) -> None:
    waiting = DeferredToolRequests(calls=[ToolCallPart("tool", {"value": value}, tool_call_id="c")])

    async def body(store: HoldfastConversationStore) -> None:
        with pytest.raises(holdfast.InvalidRequest, match=rf"^deferred_tool_requests: .*{problem}"):
            await store.save(Conversation(conversation_id="a", messages=[said("hi")], deferred_tool_requests=waiting))
        assert await store.load("a") is None

    run(url, body)


def test_a_newer_format_and_a_foreign_session_are_refused(url: str) -> None:
    async def body(store: HoldfastConversationStore) -> None:
        inner = await store._source.store()
        await store.save(Conversation(conversation_id="a", messages=[said("hi")]))
        newer = holdfast.Checkpoint(others={RECORD: {"format_version": 2}})
        await inner.sessions.handle("a").commit(holdfast.Commit(checkpoint=newer))
        with pytest.raises(holdfast.Incompatible, match="has the format 2, and this adapter knows 1: upgrade"):
            await store.load("a")
        await inner.sessions.handle("b").append("hi")
        with pytest.raises(holdfast.InvalidRequest, match="is not a conversation of pydantic-ai: use another id"):
            await store.load("b")
        assert MESSAGE == "pydantic-ai.message"

    run(url, body)


@pytest.mark.parametrize("record", [[1], {"format_version": 1}, 7], ids=["list", "empty", "number"])
def test_a_damaged_conversation_is_damage(url: str, record: Any) -> None:
    async def body(store: HoldfastConversationStore) -> None:
        inner = await store._source.store()
        await store.save(Conversation(conversation_id="a", messages=[said("hi")]))
        view = await inner.sessions.handle("a").load()
        assert view is not None
        assert view.checkpoint is not None
        kept: Any = view.checkpoint.others[RECORD]
        evil = holdfast.Node("evil", kind=MESSAGE, payload={"kind": "request", "parts": [{"part_kind": "secret"}]})
        head = holdfast.Checkpoint(others={RECORD: {**kept, "head_id": "evil"}})
        await inner.sessions.handle("a").commit(holdfast.Commit(graph=holdfast.Append([evil]), checkpoint=head))
        with pytest.raises(holdfast.errors.Corrupt) as damage:
            await store.load("a")
        assert "secret" not in str(damage.value)
        await inner.sessions.handle("a").commit(
            holdfast.Commit(checkpoint=holdfast.Checkpoint(others={RECORD: record}))
        )
        with pytest.raises(holdfast.errors.Corrupt):
            await store.load("a")

    run(url, body)


def test_a_wrong_id_is_refused_by_its_name(url: str) -> None:
    async def body(store: HoldfastConversationStore) -> None:
        for name in (" ", "x" * 600, "a\0b"):
            with pytest.raises(holdfast.InvalidRequest, match=r"^conversation_id: "):
                await store.save(Conversation(conversation_id=name, messages=[said("hi")]))

    run(url, body)
