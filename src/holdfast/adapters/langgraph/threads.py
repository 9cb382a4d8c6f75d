"""LangGraph threads as sessions: a checkpoint is a commit, its channels are components, writes are nodes beside it.

A namespace of a thread is a session; that of a subgraph is a child of the thread's. The graph of a session is the tree
of its checkpoints. The newest checkpoint is the one with the greatest id, which need not be the head.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, cast

import holdfast
from holdfast.adapters.langgraph import payloads
from holdfast.adapters.langgraph.payloads import CHECKPOINT, FORMAT, WRITE, Group, StoredCheckpoint, StoredWrite, Typed
from holdfast.adapters.langgraph.ports import Port
from holdfast.adapters.langgraph.reads import every_node, read_checkpoint, read_group, read_head
from holdfast.adapters.langgraph.values import (
    Draft,
    Found,
    Known,
    Place,
    ThreadConflict,
    input_stored,
    kept_channels,
    known_of,
)
from holdfast.errors import HeadConflict, InvalidRequest, NodeConflict, SessionDeleted, TurnConflict, UnknownRef
from holdfast.sessions import Ref

KNOWN: Final = 512
"""Most checkpoints whose refs are kept, so that a put need not load its parent."""
NODES_A_CALL: Final = 1_000
"""Most writes that are added in one call."""
_PAYLOAD = re.compile(r"nodes\[(\d+)\]\.payload")
TRIES: Final = 8
"""Most commits of one put, each after another writer was faster."""


class Threads:
    """The operations of a saver, without its serialiser. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heads: OrderedDict[str, Known] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], Known] = OrderedDict()

    # ------------------------------------------------------------------------ memory

    def _remember(self, session_id: str, known: Known) -> None:
        with self._lock:
            self._heads[session_id] = known
            self._known[session_id, known.checkpoint.id] = known
            for kept in (self._heads, self._known):
                while len(kept) > KNOWN:
                    cast("OrderedDict[Any, Known]", kept).popitem(last=False)

    def forget(self, session_id: str) -> None:
        """Drop what is known of a session."""
        with self._lock:
            self._heads.pop(session_id, None)
            for place in [place for place in self._known if place[0] == session_id]:
                del self._known[place]

    # ------------------------------------------------------------------------ put

    async def put(self, port: Port, place: Place, draft: Draft) -> None:
        """Store a checkpoint. Idempotent; other content under the same id replaces it."""
        session_id = place.session_id
        for _ in range(TRIES):
            try:
                head = self._heads.get(session_id) or await self.head(port, place)
                parent = None if draft.parent is None else await self._parent(port, place, draft.parent)
                if not draft.may_branch:
                    await self._require_free(port, place, draft, head, parent)
                await self._commit(port, place, draft, head, parent, version=0)
            except HeadConflict:
                self.forget(session_id)
                continue
            except UnknownRef:
                # The thread was pruned meanwhile, and with it what was known of the parent.
                self.forget(session_id)
                continue
            except InvalidRequest as error:
                if error.field != "graph.nodes[0].parent":
                    raise
                # The thread was deleted meanwhile, and another run has begun it anew, up to the same revision.
                self.forget(session_id)
                continue
            except SessionDeleted:
                self.forget(session_id)
                await self.create(port, place)
                continue
            except (TurnConflict, NodeConflict):
                await self._replace(port, place, draft)
            return
        raise holdfast.Unavailable(f"thread {place.thread_id!r} changed at each of {TRIES} tries: try again")

    async def head(self, port: Port, place: Place) -> Known | None:
        """Return the head, None if nothing is stored. Creates the session if it is absent."""
        read = await read_head(port, place)
        if read is None:
            await self.create(port, place)
            return None
        self._remember(place.session_id, read[0])
        return read[0]

    async def create(self, port: Port, place: Place) -> None:
        """Create the session of a namespace, and that of its thread, if they are absent."""
        if place.namespace:
            await port.create(place.root.session_id, name=place.thread_id, parent=None)
        await port.create(
            place.session_id,
            name=place.namespace or place.thread_id,
            parent=place.root.session_id if place.namespace else None,
        )

    async def _parent(self, port: Port, place: Place, checkpoint_id: str) -> Known | None:
        """Return a parent, None if it is not stored."""
        known = self._known.get((place.session_id, checkpoint_id))
        if known is not None:
            return known
        group = await read_group(port, place, checkpoint_id)
        if group.checkpoint is None:
            return None
        view = await port.load(place.session_id, at=payloads.turn_id(checkpoint_id, group.version), last=1)
        return None if view is None else known_of(place, view)

    async def _require_free(
        self, port: Port, place: Place, draft: Draft, head: Known | None, parent: Known | None
    ) -> None:
        """Raise ThreadConflict if another run has continued from the same checkpoint."""
        if head is None or head.checkpoint.id in (draft.parent, draft.id):
            return
        if draft.parent is None:
            # A subgraph starts over if its graph is replayed from before it.
            if draft.begins_thread and not place.namespace:
                raise ThreadConflict(place.thread_id, None, head.checkpoint.id, input_stored=False)
            return
        ids = payloads.from_group(draft.parent)
        async for node in every_node(port, place, ids=ids, kind=CHECKPOINT):
            other = payloads.checkpoint_of(node)
            if other.parent == draft.parent and other.id not in (draft.id, draft.parent):
                before = None if parent is None else parent.checkpoint
                stored = None if place.namespace else input_stored(draft, before, other)
                raise ThreadConflict(place.thread_id, draft.parent, other.id, input_stored=stored)

    async def _commit(
        self, port: Port, place: Place, draft: Draft, head: Known | None, parent: Known | None, *, version: int
    ) -> None:
        kept = {} if parent is None else kept_channels(draft, parent)
        values: dict[str, Typed] = {}
        components: dict[str, Any] = {}
        formats: dict[str, str] = {}
        for channel in draft.channels:
            if channel in kept and parent is not None:
                if channel in parent.checkpoint.values:
                    values[channel] = parent.checkpoint.values[channel]
                else:
                    components[channel] = Ref(kept[channel])
                    formats[channel] = parent.checkpoint.components[channel]
                continue
            typed = draft.value(channel)
            if len(typed[1]) <= payloads.INLINE_BYTES:
                values[channel] = typed
            else:
                formats[channel], components[channel] = typed
        greatest = draft.id if head is None else max(head.checkpoint.newest, draft.id)
        checkpoint = StoredCheckpoint(
            format=FORMAT,
            id=draft.id,
            greatest="" if greatest == draft.id else greatest,
            parent=draft.parent,
            state=dict(draft.state),
            typed_state=dict(draft.typed_state),
            metadata=dict(draft.metadata),
            typed_metadata=dict(draft.typed_metadata),
            values=values,
            components=formats,
            gist=draft.gist,
        )
        node = holdfast.Node(
            payloads.node_id(draft.id, version),
            parent=None if parent is None or draft.parent == draft.id else payloads.node_id(parent.checkpoint.id),
            kind=CHECKPOINT,
            payload=payloads.encoded(checkpoint),
        )
        commit = holdfast.Commit(
            turn_id=payloads.turn_id(draft.id, version),
            expected_revision=0 if head is None else head.revision,
            graph=holdfast.Append([node], leaf=node.id),
            checkpoint=holdfast.Checkpoint.of(components),
        )
        receipt = await port.commit(place.session_id, commit)
        if receipt.replayed:
            self.forget(place.session_id)
            if version == 0 and (await read_group(port, place, draft.id)).version:
                raise TurnConflict(place.session_id, draft.id)
            return
        self._remember(place.session_id, Known(receipt.revision, checkpoint, receipt.manifest.refs))

    async def _replace(self, port: Port, place: Place, draft: Draft) -> None:
        """Store other content under the id of a checkpoint: as its next version."""
        for _ in range(TRIES):
            self.forget(place.session_id)
            group = await read_group(port, place, draft.id)
            parent = None if draft.parent is None else await self._parent(port, place, draft.parent)
            head = await self.head(port, place)
            try:
                await self._commit(port, place, draft, head, parent, version=group.version + 1)
            except (HeadConflict, TurnConflict, NodeConflict, UnknownRef):
                continue
            return
        raise holdfast.Unavailable(f"thread {place.thread_id!r} changed at each of {TRIES} tries: try again")

    # ------------------------------------------------------------------------ writes

    async def put_writes(self, port: Port, place: Place, checkpoint_id: str, writes: Sequence[StoredWrite]) -> None:
        """Store writes on a checkpoint, which need not be stored yet. The first one of an index stays.

        Those with an index below 0 replace earlier ones.
        """
        parent = None
        if (place.session_id, checkpoint_id) in self._known:
            parent = payloads.node_id(checkpoint_id)
        for _ in range(TRIES):
            group = Group()
            if any(write.index < 0 for write in writes):
                group = await read_group(port, place, checkpoint_id)
            added: list[tuple[StoredWrite, holdfast.Node]] = []
            for write in writes:
                at = (write.task, write.index)
                if write.index < 0 and group.writes.get(at) == write:
                    continue
                version = group.versions.get(at, -1) + 1 if write.index < 0 else 0
                id = payloads.write_id(checkpoint_id, write.task, write.index, version)
                node = holdfast.Node(id, parent=parent, kind=WRITE, payload=payloads.encoded(write))
                added.append((write, node))
            if not added:
                return
            try:
                kept = await _add_all(port, place, added)
            except SessionDeleted:
                self.forget(place.session_id)
                await self.create(port, place)
                parent = None
                continue
            except InvalidRequest as error:
                if parent is None or error.field.startswith("writes["):
                    raise
                # The thread was pruned meanwhile: the checkpoint is gone, and these stand alone.
                self.forget(place.session_id)
                parent = None
                continue
            if not kept or all(write.index >= 0 for write in writes):
                return
            # Another writer took the next version of one of them.

    # ------------------------------------------------------------------------ reads

    async def get(self, port: Port, place: Place, checkpoint_id: str | None) -> Found | None:
        """Return a checkpoint, by default the one with the greatest id, or None."""
        read = await read_checkpoint(port, place, checkpoint_id)
        if read is None:
            return None
        head, found = read
        if head is not None:
            self._remember(place.session_id, head)
        return found


async def _add_all(port: Port, place: Place, writes: Sequence[tuple[StoredWrite, holdfast.Node]]) -> int:
    """Add writes, all or none: a task that has some of its writes would not run again. Return how many were there."""
    if len(writes) <= NODES_A_CALL:
        return await _add(port, place, writes)
    async with port.transaction() as transaction:
        parts = [writes[start : start + NODES_A_CALL] for start in range(0, len(writes), NODES_A_CALL)]
        return sum([await _add(transaction, place, part) for part in parts])


async def _add(port: Port, place: Place, writes: Sequence[tuple[StoredWrite, holdfast.Node]]) -> int:
    try:
        return (await port.add_nodes(place.session_id, [node for _, node in writes], on_conflict="keep")).kept
    except InvalidRequest as error:
        refused = _PAYLOAD.fullmatch(error.field)
        if refused is None:
            raise
        channel = writes[int(refused[1])][0].channel
        raise InvalidRequest(f"writes[{channel!r}]", error.problem, limit=error.limit) from error
