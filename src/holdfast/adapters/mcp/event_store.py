"""Events of MCP's streams. A stream is a session, and an event one commit: its number is the revision.

So the events after an id are the newest nodes of the path, and a replay reads them and no others. An id ends with the
random name of its event, so that no client can guess one, and none of a forgotten stream fits a new one of that name.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter
from pydantic_core import PydanticSerializationError

import holdfast
from holdfast.adapters.sharing import (
    Place,
    Source,
    naming,
    new_name,
    reading,
    require_kinds,
    require_numbers,
    settled,
)
from holdfast.sessions import ActivePath

FAMILY: Final = "mcp"
MESSAGE: Final = "mcp.message"
"""The kind of a node whose payload is one message, or null for the event that begins a stream."""

ONCE: Final = "once"
"""The fingerprint of an event, whose turn id is never used again."""
ID: Final = re.compile(r"(?P<stream>.*)\.(?P<number>[0-9]{1,18})\.(?P<name>[a-z2-7]+)", re.DOTALL)
"""The form of an event's id."""


class HoldfastEventStore(EventStore):
    """Events of MCP's streams, so that a client that reconnects gets those that it missed, from any process.

    `store` is the URL or path of a store, or a store that you opened with `await holdfast.open(url)`, to be closed by
    you. MCP names a stream by the id of its request, which other clients use, too: give each group of clients that must
    not see each other's events a `scope` of its own.

    >>> import asyncio
    >>> from holdfast.adapters.mcp import HoldfastEventStore
    >>> async def main():
    ...     store = HoldfastEventStore("agent.db")
    ...     first = await store.store_event("1", None)
    ...     seen = []
    ...
    ...     async def send(event):
    ...         seen.append(event)
    ...
    ...     stream = await store.replay_events_after(first, send)
    ...     await store.aclose()
    ...     return stream, seen
    >>> asyncio.run(main())
    ('1', [])
    """

    def __init__(self, store: Place = "memory:", *, scope: str = "default") -> None:
        self._source = Source(store)
        self._scope = scope

    async def aclose(self) -> None:
        """Stop using the store, and close it if this was the last user of its URL."""
        await self._source.aclose()

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Store an event and return its id: the stream, the number of the event in it, and a random name."""
        store = await self._source.store()
        name = new_name()
        node = holdfast.Node(name, kind=MESSAGE, payload=None if message is None else _payload_of(message))
        commit = holdfast.Commit(turn_id=name, fingerprint=ONCE, graph=holdfast.Append([node]))
        with naming("message", is_one=True, session_id="stream_id"):
            return await settled(self._commit(store, stream_id, commit))

    async def _commit(self, store: holdfast.Store, stream_id: StreamId, commit: holdfast.Commit) -> EventId:
        key = self._key(stream_id)
        try:
            receipt = await store.sessions.handle(key).commit(commit)
        except holdfast.errors.SessionDeleted:
            receipt = await (await store.sessions.create(key)).commit(commit)
        return _event_id(stream_id, receipt.revision, receipt.leaf)

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        """Send the events after an id, oldest first. Return their stream, None if the id is unknown."""
        found = ID.fullmatch(last_event_id)
        if found is None:
            return None
        stream_id, number, name = found["stream"], int(found["number"]), found["name"]
        key = self._key(stream_id)
        store = await self._source.store()
        try:
            session = store.sessions.handle(key)
            head = await session.load(ActivePath(last=0))
            missed = -1 if head is None else head.revision - number
            if head is None or missed < 0:
                return None
            # With the event of the id, which must be the one that the client has seen.
            view = await session.load(ActivePath(last=missed + 1), at=head.revision)
        except (holdfast.NotFound, holdfast.InvalidRequest):
            # A client chose the id, which need not even be one that a stream can have.
            return None
        nodes = () if view is None else view.graph.nodes
        if not nodes or nodes[0].id != name:
            return None
        require_kinds(key, nodes, FAMILY, [MESSAGE])
        for index, node in enumerate(nodes[1:], 1):
            # The event that began a stream carries no message.
            if node.payload is not None:
                with reading(key):
                    message = jsonrpc_message_adapter.validate_json(msgspec.json.encode(node.payload))
                await send_callback(EventMessage(message, _event_id(stream_id, number + index, node.id)))
        return stream_id

    async def forget(self, stream_id: StreamId) -> None:
        """Erase a stream with its events, once no client will resume it."""
        store = await self._source.store()
        await settled(store.sessions.delete(self._key(stream_id)))

    def _key(self, stream_id: StreamId) -> str:
        # The stream is a client's text. No slash of the scope may look like the end of another scope.
        scope = self._scope.replace("%", "%25").replace("/", "%2F")
        return f"{FAMILY}/{scope}/{stream_id}"


def _event_id(stream_id: StreamId, number: int, name: str | None) -> EventId:
    return f"{stream_id}.{number}.{name}"


def _payload_of(message: JSONRPCMessage) -> Any:
    require_numbers("message", message.model_dump(by_alias=True, exclude_none=True))
    try:
        return message.model_dump(mode="json", by_alias=True, exclude_none=True)
    except (PydanticSerializationError, ValueError) as error:
        raise holdfast.InvalidRequest("message", f"is not a JSON value: {error}") from error
