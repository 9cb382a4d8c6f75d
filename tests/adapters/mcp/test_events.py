"""A `HoldfastEventStore` replays what came after an event, in order and from any process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp.server.streamable_http import EventMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

import holdfast
from holdfast.adapters.mcp import HoldfastEventStore


def run(url: str, body: Callable[[HoldfastEventStore], Awaitable[None]]) -> None:
    async def whole() -> None:
        events = HoldfastEventStore(url)
        try:
            await body(events)
        finally:
            await events.aclose()

    asyncio.run(whole())


async def replayed(events: HoldfastEventStore, after: str) -> tuple[str | None, list[EventMessage]]:
    seen: list[EventMessage] = []

    async def send(event: EventMessage) -> None:
        seen.append(event)

    return await events.replay_events_after(after, send), seen


MESSAGES: list[JSONRPCMessage] = [
    JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params={"name": "weather", "arguments": {"city": None}}),
    JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params={"progress": 0.5}),
    JSONRPCResponse(jsonrpc="2.0", id="a", result={"content": [{"type": "text", "text": "21"}]}),
    JSONRPCError(jsonrpc="2.0", id=2, error=ErrorData(code=-32600, message="no", data={"why": [1]})),
]


def test_events_after_an_id_are_replayed_in_order(url: str) -> None:
    async def body(events: HoldfastEventStore) -> None:
        first = await events.store_event("s.1", None)
        ids = [await events.store_event("s.1", message) for message in MESSAGES]
        await events.store_event("other", MESSAGES[0])
        assert len({first, *ids}) == 5
        assert await replayed(events, first) == (
            "s.1",
            [EventMessage(message, event_id) for message, event_id in zip(MESSAGES, ids, strict=True)],
        )
        stream, seen = await replayed(events, ids[1])
        assert (stream, [one.event_id for one in seen]) == ("s.1", ids[2:])
        assert await replayed(events, ids[-1]) == ("s.1", [])

    run(url, body)


@pytest.mark.parametrize(
    "event_id",
    [
        *("", "s", "s.1", "nobody.1.a", "s.x.a", "s.0.a", "s.1.a", "s.2.a", "s.9.a", "s.-1.a", "s.1.A", ".1.a"),
        *("s.\u0661.a", "\ud800.1.a", "a\0.1.a", f"{'x' * 600}.1.a", f"s.{'9' * 40}.a"),
    ],
)
def test_an_id_that_is_unknown_replays_nothing(url: str, event_id: str) -> None:
    async def body(events: HoldfastEventStore) -> None:
        await events.store_event("s", None)
        assert await replayed(events, event_id) == (None, [])

    run(url, body)


def test_scopes_and_forgotten_streams_stay_apart(url: str) -> None:
    async def body(events: HoldfastEventStore) -> None:
        store = await events._source.store()
        other = HoldfastEventStore(store, scope="other")
        first = await events.store_event("1", None)
        await events.store_event("1", MESSAGES[1])
        assert await replayed(other, first) == (None, [])
        await events.forget("1")
        assert await replayed(events, first) == (None, [])
        again = [await events.store_event("1", message) for message in (None, *MESSAGES)]
        assert again[0] != first
        assert await replayed(events, first) == (None, [])
        assert [one.event_id for one in (await replayed(events, again[0]))[1]] == again[1:]

    run(url, body)


def test_no_name_of_a_stream_leads_into_another_scope(url: str) -> None:
    async def body(events: HoldfastEventStore) -> None:
        store = await events._source.store()
        inner, outer = HoldfastEventStore(store, scope="a/b"), HoldfastEventStore(store, scope="a")
        first = await inner.store_event("c", None)
        await inner.store_event("c", MESSAGES[1])
        assert await replayed(outer, f"b/{first}") == (None, [])
        await outer.forget("b/c")
        assert len((await replayed(inner, first))[1]) == 1

    run(url, body)


def test_a_stream_without_a_name_is_replayed(url: str) -> None:
    async def body(events: HoldfastEventStore) -> None:
        first = await events.store_event("", None)
        second = await events.store_event("", MESSAGES[1])
        assert await replayed(events, first) == ("", [EventMessage(MESSAGES[1], second)])

    run(url, body)


def test_writers_at_once_get_an_id_each(url: str) -> None:
    async def body(events: HoldfastEventStore) -> None:
        first = await events.store_event("1", None)
        ids = await asyncio.gather(*(events.store_event("1", MESSAGES[1]) for _ in range(8)))
        assert len(set(ids)) == 8
        assert len((await replayed(events, first))[1]) == 8

    run(url, body)


@pytest.mark.parametrize("value", ["\ud800", 2**64, float("nan"), b"\xff"], ids=["text", "integer", "nan", "bytes"])
def test_a_message_that_json_cannot_hold_is_refused(url: str, value: Any) -> None:
    async def body(events: HoldfastEventStore) -> None:
        bad = JSONRPCNotification(jsonrpc="2.0", method="m", params={"value": value})
        with pytest.raises(holdfast.InvalidRequest, match=r"^message: "):
            await events.store_event("1", bad)

    run(url, body)


def test_events_of_a_newer_adapter_are_refused(url: str) -> None:
    async def body(events: HoldfastEventStore) -> None:
        first = await events.store_event("1", None)
        store = await events._source.store()
        newer = holdfast.Append([holdfast.Node(kind="mcp.message.2")])
        await store.sessions.handle("mcp/default/1").commit(holdfast.Commit(graph=newer))
        with pytest.raises(holdfast.Incompatible, match="newer adapter"):
            await replayed(events, first)

    run(url, body)


def test_a_damaged_event_is_damage_and_a_wrong_stream_is_named(url: str) -> None:
    async def body(events: HoldfastEventStore) -> None:
        first = await events.store_event("1", None)
        store = await events._source.store()
        graph = holdfast.Append([holdfast.Node(kind="mcp.message", payload={"secret": 1})])
        await store.sessions.handle("mcp/default/1").commit(holdfast.Commit(graph=graph))
        with pytest.raises(holdfast.errors.Corrupt) as damage:
            await replayed(events, first)
        assert "secret" not in str(damage.value)
        with pytest.raises(holdfast.InvalidRequest, match=r"^stream_id: "):
            await events.store_event("x" * 600, None)

    run(url, body)
