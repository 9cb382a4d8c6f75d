"""Tasks of A2A. A task is a session, a message of its history is a node, and the rest of the task is the checkpoint.

The version of a task is the session's revision after the time when the task was first saved: a save on a stale one is
refused inside the commit, also if the task was deleted meanwhile and begun again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from a2a.server.cluster.task_store import ConcurrentTaskModificationError, StoredTask, VersionedTaskStore
from a2a.server.cluster.version import TaskVersion
from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event
from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
from a2a.server.tasks.inmemory_task_store import InMemoryTaskStore
from a2a.server.tasks.task_store import TaskStore
from a2a.types.a2a_pb2 import ListTasksRequest, ListTasksResponse, Task, TaskState
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError, SerializeToJsonError

import holdfast
from holdfast.adapters.sharing import Place, Source, naming, new_name, reading, require_kinds, settled
from holdfast.sessions import ActivePath, SessionView, Unchanged

FAMILY: Final = "a2a"
MESSAGE: Final = "a2a.message"
"""The kind of a node whose payload is one message of a task's history."""
FORMAT: Final = 1
ONCE: Final = "once"
"""The fingerprint of a save, whose turn id is never used again."""
PAGE = 1_000
REVISION_BITS: Final = 32
"""Bits of the revision in a version. The higher ones are the time when the task was first saved."""
MOST_TRIES = 1_000
"""Rounds of a save that asks for no version. Each lost one means that another writer succeeded."""
ENDED: Final = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_REJECTED,
    }
)


class _Tasks:
    """Tasks as sessions: `a2a/<owner>/<task>`."""

    def __init__(self, store: Place, owner_resolver: OwnerResolver) -> None:
        self._source = Source(store)
        self._owner_of = owner_resolver

    async def aclose(self) -> None:
        await self._source.aclose()

    async def read(self, task_id: str, context: ServerCallContext) -> StoredTask | None:
        store = await self._source.store()
        key = self._key(task_id, context)
        try:
            view = await self._view(store, key)
        except holdfast.InvalidRequest as error:
            # A client chose the id, which need not even be one that a task can have.
            if error.field == "task_id":
                return None
            raise
        return None if view is None else StoredTask(_task_of(key, view), _version_of(view))

    async def write(self, task: Task, context: ServerCallContext, expected: TaskVersion | None) -> TaskVersion:
        """Store a task on top of a version, or of any with None. Return the new one."""
        fields = _fields_of(task)
        history = cast("list[Any]", fields.pop("history", []))
        store = await self._source.store()
        key = self._key(task.id, context)
        tries_left = MOST_TRIES
        while True:
            view = await self._view(store, key)
            if expected is not None and expected != _version_of(view):
                raise ConcurrentTaskModificationError(task.id)
            made_ns = time.time_ns() if view is None else _made_ns(view)
            document = {"format": FORMAT, "born": made_ns, "task": fields}
            is_same = view is not None and _is_same(_document_of(view), document)
            commit = holdfast.Commit(
                # The turn id makes a retry after a lost answer find the first try. No other save has it.
                turn_id=new_name(),
                fingerprint=ONCE,
                expected_revision=0 if view is None else view.revision,
                graph=_change(view, history),
                checkpoint=None if is_same else holdfast.Checkpoint(turn_state=document),
            )
            try:
                with naming("task.history", turn_state="task"):
                    return _version(made_ns, await self._commit(store, key, context, commit, is_new=view is None))
            except holdfast.HeadConflict as error:
                tries_left -= 1
                if expected is not None or not tries_left:
                    raise ConcurrentTaskModificationError(task.id) from error

    async def _commit(
        self, store: holdfast.Store, key: str, context: ServerCallContext, commit: holdfast.Commit, *, is_new: bool
    ) -> int:
        if not is_new:
            return (await store.sessions.handle(key).commit(commit)).revision
        async with store.transaction() as tx:
            session = await tx.sessions.create(key, owner=self._owner(context))
            return (await session.commit(commit)).revision

    async def page(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Read the owner's tasks, and let the framework filter, order and page them."""
        store = await self._source.store()
        found = InMemoryTaskStore(owner_resolver=self._owner_of, use_copying=False)
        after: str | None = None
        while True:
            page = await store.sessions.list(owner=self._owner(context), after=after, limit=PAGE)
            for one in page:
                view = await self._view(store, one.session_id)
                if view is not None:
                    await found.save(_task_of(one.session_id, view), context)
            after = page.next
            if after is None:
                return await found.list(params, context)

    async def drop(self, task_id: str, context: ServerCallContext) -> None:
        store = await self._source.store()
        await store.sessions.delete(self._key(task_id, context))

    async def _view(self, store: holdfast.Store, key: str) -> SessionView | None:
        try:
            with naming("task.history", session_id="task_id"):
                view = await store.sessions.handle(key).load(ActivePath())
        except holdfast.NotFound:
            return None
        if view is None or view.revision == 0:
            return None
        require_kinds(key, view.graph.nodes, FAMILY, [MESSAGE])
        found = _document_of(view).get("format")
        if found != FORMAT:
            raise holdfast.errors.Incompatible(
                f"task {key!r} has the format {found}, and this adapter knows {FORMAT}: upgrade holdfast"
            )
        return view

    def _owner(self, context: ServerCallContext) -> str:
        return f"{FAMILY}/{_part(self._owner_of(context))}"

    def _key(self, task_id: str, context: ServerCallContext) -> str:
        return f"{self._owner(context)}/{_part(task_id)}"


class _TaskStore:
    """The part that both kinds of stores share."""

    def __init__(self, store: Place = "memory:", *, owner_resolver: OwnerResolver = resolve_user_scope) -> None:
        self._tasks = _Tasks(store, owner_resolver)

    async def aclose(self) -> None:
        """Stop using the store, and close it if this was the last user of its URL."""
        await self._tasks.aclose()

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of the caller's tasks, the newest first."""
        return await self._tasks.page(params, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Erase a task."""
        await settled(self._tasks.drop(task_id, context))


class HoldfastTaskStore(_TaskStore, TaskStore):
    """Tasks of A2A, each a session of Holdfast: `a2a/<owner>/<task>`. The last save wins, as A2A's interface has it.

    `store` is the URL or path of a store, or a store that you opened with `await holdfast.open(url)`, to be closed by
    you.
    """

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Store a task, new or changed."""
        await settled(self._tasks.write(task, context, None))

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task of the caller, or None."""
        stored = await self._tasks.read(task_id, context)
        return None if stored is None else stored.task


class HoldfastVersionedTaskStore(_TaskStore, VersionedTaskStore):
    """Tasks of A2A with versions: the commit refuses a stale one, as `ConcurrentTaskModificationError`.

    `store` is the URL or path of a store, or a store that you opened with `await holdfast.open(url)`, to be closed by
    you.
    """

    async def save(
        self,
        task: Task,
        *,
        event: Event | None = None,
        prev: Task | None = None,
        prev_version: TaskVersion,
        context: ServerCallContext,
    ) -> TaskVersion:
        """Store a task that was derived from a version, and return the new one. A cancellation needs no version."""
        del event, prev
        return await settled(self._save(task, prev_version, context))

    async def _save(self, task: Task, prev_version: TaskVersion, context: ServerCallContext) -> TaskVersion:
        if not _is_cancelled(task):
            return await self._tasks.write(task, context, prev_version)
        tries_left = MOST_TRIES
        while True:
            stored = await self._tasks.read(task.id, context)
            if stored is None or stored.task.status.state in ENDED:
                raise ConcurrentTaskModificationError(task.id)
            try:
                return await self._tasks.write(task, context, stored.version)
            except ConcurrentTaskModificationError:
                tries_left -= 1
                if not tries_left:
                    raise

    async def get(self, task_id: str, context: ServerCallContext) -> StoredTask | None:
        """Return a task of the caller with its version, or None."""
        return await self._tasks.read(task_id, context)


def _version(made_ns: int, revision: int) -> TaskVersion:
    return TaskVersion((made_ns << REVISION_BITS) + revision)


def _version_of(view: SessionView | None) -> TaskVersion:
    return TaskVersion.MISSING if view is None else _version(_made_ns(view), view.revision)


def _made_ns(view: SessionView) -> int:
    """Return the time when the task was first saved, which tells it from one of the same id that was deleted."""
    made_ns = _document_of(view).get("born")
    return made_ns if isinstance(made_ns, int) else 0


def _is_cancelled(task: Task) -> bool:
    return task.status.state == TaskState.TASK_STATE_CANCELED


def _part(text: str) -> str:
    """Return a part of a key, in which no slash is its own. A caller without a name has one, too."""
    return text.replace("%", "%25").replace("/", "%2F") or "%00"


def _fields_of(task: Task) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = MessageToDict(task, preserving_proto_field_name=True)
    except (SerializeToJsonError, ValueError) as error:
        raise holdfast.InvalidRequest("task", f"is not a JSON value: {error}") from error
    return fields


def _document_of(view: SessionView) -> dict[str, Any]:
    state = None if view.checkpoint is None else view.checkpoint.turn_state
    return cast("dict[str, Any]", state) if isinstance(state, dict) else {}


def _task_of(key: str, view: SessionView) -> Task:
    task = Task()
    with reading(key):
        fields = dict(_document_of(view)["task"])
        if view.graph.nodes:
            fields["history"] = [node.payload for node in view.graph.nodes]
        try:
            ParseDict(fields, task, ignore_unknown_fields=True)
        except ParseError as error:
            raise ValueError(str(error)) from error
    return task


def _change(view: SessionView | None, history: Sequence[Any]) -> holdfast.Append | Unchanged:
    """Return the change from the stored history to a new one: most often, messages are only added."""
    stored = () if view is None else view.graph.nodes
    shared = _shared([node.payload for node in stored], history)
    leaf = stored[shared - 1].id if shared else None
    if shared == len(history):
        return Unchanged() if shared == len(stored) else Unchanged(leaf=leaf)
    name = new_name()
    first, *others = history[shared:]
    added = [holdfast.Node(f"{name}.{index}", kind=MESSAGE, payload=one) for index, one in enumerate(others, 1)]
    return holdfast.Append([holdfast.Node(f"{name}.0", leaf, MESSAGE, first), *added])


def _shared(stored: Sequence[Any], history: Sequence[Any]) -> int:
    """Return the number of messages at the beginning that are the same."""
    most = min(len(stored), len(history))
    if msgspec.json.encode(stored[:most]) == msgspec.json.encode(history[:most]):
        return most
    return next((at for at in range(most) if not _is_same(stored[at], history[at])), most)


def _is_same(one: Any, other: Any) -> bool:
    """Compare the JSON text: to Python, true equals 1."""
    return msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")
