"""Conversations of Pydantic AI. A conversation is a session, an entry is a node, the record is the checkpoint.

A save is one commit. A fork shares nodes with its source, and a branch moves the head.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, cast

import msgspec
from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_core import PydanticSerializationError

import holdfast
from holdfast.adapters.sharing import Place, Source, naming, reading, require_kinds, require_numbers, settled
from holdfast.sessions import ActivePath, Child, SessionSummary, SessionView, Unchanged

FAMILY: Final = "pydantic-ai"
MESSAGE: Final = "pydantic-ai.message"
"""The kind of a node whose payload is one message."""
RECORD: Final = "pydantic-ai.record"
"""The checkpoint component of a conversation's record."""
FORMAT: Final = 1
OPEN_CALLS: Final = "deferred_tool_requests"
"""The field of a conversation that holds tool calls that wait."""
OWNER: Final = "pydantic-ai"
"""The owner of a session without a scope; with one, it follows after a slash."""
MOST_PLACES = 10_000
PAGE = 1_000

_RECORDS: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)


class HoldfastConversationStore(ConversationStore):
    """Conversations of Pydantic AI, each a session of Holdfast.

    `store` is the URL or path of a store, or a store that you opened with `await holdfast.open(url)`, to be closed by
    you. Deleting a conversation erases its messages, except for those that a fork shares.

    >>> import asyncio
    >>> from pydantic_ai.conversation import Conversation
    >>> from pydantic_ai.messages import ModelRequest
    >>> from holdfast.adapters.pydantic_ai import HoldfastConversationStore
    >>> async def main():
    ...     store = HoldfastConversationStore("agent.db")
    ...     await store.save(Conversation(conversation_id="chat-1", messages=[ModelRequest.user_text_prompt("hi")]))
    ...     found = await store.load("chat-1")
    ...     await store.aclose()
    ...     return len(found.messages)
    >>> asyncio.run(main())
    1
    """

    def __init__(self, store: Place = "memory:") -> None:
        self._source = Source(store)
        # An entry is asked for by its id alone. This says which session has it; a miss costs a search.
        self._places: OrderedDict[str, str] = OrderedDict()

    async def aclose(self) -> None:
        """Stop using the store, and close it if this was the last user of its URL."""
        await self._source.aclose()

    # ------------------------------------------------------------------------ records

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None."""
        view = await self._view(await self._source.store(), conversation_id)
        return None if view is None else self._record_of(conversation_id, view)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records, those saved last first. Reads the summaries of all, and the sessions of the first."""
        store = await self._source.store()
        found: list[SessionSummary] = []
        after: str | None = None
        while True:
            page = await store.sessions.list(
                owner=_owner(scope) if scope is not None else None, after=after, limit=PAGE
            )
            found.extend(one for one in page if one.owner == OWNER or (one.owner or "").startswith(f"{OWNER}/"))
            after = page.next
            if after is None:
                break
        found.sort(key=lambda one: one.changed_at_ms, reverse=True)
        records: list[ConversationRecord] = []
        for one in found:
            # Several may have changed in one millisecond: the records show which was saved last.
            if limit is not None and len(records) >= limit and one.changed_at_ms < found[limit - 1].changed_at_ms:
                break
            view = await self._view(store, one.session_id)
            if view is not None:
                records.append(self._record_of(one.session_id, view))
        records.sort(key=lambda record: record.updated_at, reverse=True)
        return records[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries in one commit."""
        with naming("messages", record=OPEN_CALLS):
            await settled(self._write(record, new_entries, expected_revision))

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Erase a conversation. Messages that a fork shares stay."""
        await settled(self._delete(conversation_id, expected_revision))

    # ------------------------------------------------------------------------ entries

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return one entry."""
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to one, in one read."""
        if head_id is None or limit == 0:
            return []
        store = await self._source.store()
        session_id = await self._place_of(store, head_id)
        view = await store.sessions.handle(session_id).load(ActivePath(leaf=head_id, last=limit))
        nodes = () if view is None else view.graph.nodes
        if not nodes:
            raise LookupError(f"there is no entry {head_id!r}")
        require_kinds(session_id, nodes, FAMILY, [MESSAGE])
        with reading(session_id):
            messages = _messages(nodes)
        return [
            ConversationEntry(id=node.id, parent_id=node.parent, message=message)
            for node, message in zip(nodes, messages, strict=True)
        ]

    async def _place_of(self, store: holdfast.Store, entry_id: str) -> str:
        """Return a session that has the entry: the one that it was seen in, or the first that is found."""
        seen = self._places.get(entry_id)
        if seen is not None and await self._has(store, seen, entry_id):
            return seen
        after: str | None = None
        while True:
            page = await store.sessions.list(after=after, limit=PAGE)
            for one in page:
                if (
                    one.owner is not None
                    and one.owner.startswith(OWNER)
                    and await self._has(store, one.session_id, entry_id)
                ):
                    self._see(entry_id, one.session_id)
                    return one.session_id
            after = page.next
            if after is None:
                raise LookupError(f"there is no entry {entry_id!r}")

    async def _has(self, store: holdfast.Store, session_id: str, entry_id: str) -> bool:
        try:
            return await store.sessions.handle(session_id).load_node(entry_id) is not None
        except holdfast.NotFound:
            return False

    def _see(self, entry_id: str | None, session_id: str) -> None:
        if entry_id is not None:
            self._places[entry_id] = session_id
            self._places.move_to_end(entry_id)
        while len(self._places) > MOST_PLACES:
            self._places.popitem(last=False)

    # ------------------------------------------------------------------------ reading and writing

    async def _view(self, store: holdfast.Store, conversation_id: str) -> SessionView | None:
        try:
            with naming("messages", session_id="conversation_id"):
                view = await store.sessions.handle(conversation_id).load(ActivePath(last=0))
        except holdfast.NotFound:
            return None
        if view is None or view.revision == 0:
            return None
        if view.checkpoint is None or RECORD not in view.checkpoint.others:
            raise holdfast.InvalidRequest(
                "conversation_id", f"session {conversation_id!r} is not a conversation of {FAMILY}: use another id"
            )
        return view

    def _record_of(self, conversation_id: str, view: SessionView) -> ConversationRecord:
        assert view.checkpoint is not None
        with reading(conversation_id):
            stored = dict(cast("dict[str, Any]", view.checkpoint.others[RECORD]))
        if stored.get("format_version") != FORMAT:
            raise holdfast.errors.Incompatible(
                f"conversation {conversation_id!r} has the format {stored.get('format_version')}, and this adapter "
                f"knows {FORMAT}: upgrade holdfast"
            )
        with reading(conversation_id):
            record = _RECORDS.validate_python(stored)
        for entry_id in (record.head_id, *record.branches):
            self._see(entry_id, conversation_id)
        return record

    async def _write(
        self, record: ConversationRecord, new_entries: Sequence[ConversationEntry], expected_revision: str | None
    ) -> None:
        store = await self._source.store()
        conversation_id = record.conversation_id
        view = await self._view(store, conversation_id)
        stored = None if view is None else self._record_of(conversation_id, view)
        if (None if stored is None else stored.revision) != expected_revision:
            raise ConversationConflict(conversation_id)
        nodes = _nodes(new_entries)
        graph = holdfast.Append(nodes, leaf=record.head_id) if nodes else Unchanged(leaf=record.head_id)
        document = _document_of(record)
        commit = holdfast.Commit(
            # A save that is sent again after a lost answer is the same turn.
            turn_id=f"{FAMILY}/{record.revision}",
            expected_revision=0 if view is None else view.revision,
            graph=graph,
            checkpoint=holdfast.Checkpoint(others={RECORD: document}),
        )
        try:
            if view is not None:
                await store.sessions.handle(conversation_id).commit(commit)
            else:
                await self._start(store, record, commit)
        except (holdfast.HeadConflict, holdfast.NotFound, holdfast.errors.SessionExists) as error:
            raise ConversationConflict(conversation_id) from error
        except holdfast.InvalidRequest as error:
            if error.field.startswith("graph.leaf") or error.field == "at":
                # The head is an entry that a deleted conversation had.
                raise ConversationConflict(conversation_id) from error
            raise
        for entry in new_entries:
            self._see(entry.id, conversation_id)

    async def _start(self, store: holdfast.Store, record: ConversationRecord, commit: holdfast.Commit) -> None:
        """Begin a session, or a fork of one, with its first commit in one transaction."""
        owner = _owner(record.scope)
        origin = record.forked_from
        shares = origin is not None and record.forked_at is not None
        if shares and origin is not None:
            first = msgspec.structs.replace(commit, expected_revision=None)
            await store.sessions.fork(
                origin, into=record.conversation_id, at=record.forked_at, owner=owner, commit=first
            )
            return
        async with store.transaction() as tx:
            session = await _created(tx, record.conversation_id, owner, origin)
            await session.commit(commit)

    async def _delete(self, conversation_id: str, expected_revision: str) -> None:
        store = await self._source.store()
        view = await self._view(store, conversation_id)
        if view is None or self._record_of(conversation_id, view).revision != expected_revision:
            raise ConversationConflict(conversation_id)
        try:
            await store.sessions.delete(conversation_id, expected_revision=view.revision)
        except holdfast.HeadConflict as error:
            raise ConversationConflict(conversation_id) from error


async def _created(tx: holdfast.Store, conversation_id: str, owner: str, origin: str | None) -> holdfast.Session:
    """Create a session, as the child of the one that it was forked from, unless that is deleted by now."""
    if origin is not None:
        with suppress(holdfast.SessionDeleted):
            return await tx.sessions.create(conversation_id, owner=owner, relation=Child(origin))
    return await tx.sessions.create(conversation_id, owner=owner)


def _owner(scope: str | None) -> str:
    return OWNER if scope is None else f"{OWNER}/{scope}"


def _document_of(record: ConversationRecord) -> Any:
    """Return a record as JSON. Only the tool calls that wait have values that the framework does not make."""
    try:
        require_numbers(OPEN_CALLS, _RECORDS.dump_python(record))
        return _RECORDS.dump_python(record, mode="json")
    except PydanticSerializationError as error:
        raise holdfast.InvalidRequest(OPEN_CALLS, f"is not a JSON value: {error}") from error


def _nodes(entries: Sequence[ConversationEntry]) -> list[holdfast.Node]:
    nodes: list[holdfast.Node] = []
    for index, entry in enumerate(entries):
        field = f"messages[{index}]"
        try:
            [plain] = ModelMessagesTypeAdapter.dump_python([entry.message])
            require_numbers(field, plain)
            [payload] = ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")
        except PydanticSerializationError as error:
            raise holdfast.InvalidRequest(field, f"is not a JSON value: {error}") from error
        nodes.append(holdfast.Node(entry.id, parent=entry.parent_id, kind=MESSAGE, payload=payload))
    return nodes


def _messages(nodes: Sequence[holdfast.Node]) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_python([node.payload for node in nodes])
