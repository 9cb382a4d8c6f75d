"""Takes over the threads of a `SqliteSaver` file. Imports no framework, and builds no object of the stored data.

Checkpoints keep their ids, so that a second run continues where the first stopped. Nothing is overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

import holdfast
from holdfast.adapters.langgraph import payloads
from holdfast.adapters.langgraph.payloads import FORMAT, StoredCheckpoint, StoredWrite, Typed
from holdfast.adapters.langgraph.ports import ThreadPort, finished
from holdfast.adapters.langgraph.reads import read_group, with_values
from holdfast.adapters.langgraph.threads import Threads
from holdfast.adapters.langgraph.values import Draft, Place, stored_channels
from holdfast.adapters.source_file import SourceFile

TABLES = ("checkpoints", "writes")
FORMATS = ("null", "bytes", "bytearray", "msgpack", "json")
"""Formats of writes that are taken over. None of them is unpickled when it is read."""


@dataclass
class ImportReport:
    """The outcome of an import. `refused` has the problem of each thread that was not taken over whole."""

    threads: list[str] = field(default_factory=list[str])
    checkpoints: int = 0
    already_there: int = 0
    writes: int = 0
    refused: dict[str, str] = field(default_factory=dict[str, str])


class SaverFile(SourceFile):
    """A file of a SqliteSaver."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, TABLES, ", as a SqliteSaver makes it")
        columns = self.rows("SELECT name FROM pragma_table_info('writes')")
        self._path_column = "task_path" if ("task_path",) in columns else "''"

    def places(self) -> list[tuple[object, object]]:
        """Return the threads and their namespaces, a thread's own before those of its subgraphs."""
        statement = "SELECT DISTINCT thread_id, checkpoint_ns FROM checkpoints ORDER BY thread_id, checkpoint_ns"
        return [(thread_id, namespace) for thread_id, namespace in self.rows(statement)]

    def checkpoints(self, place: Place) -> Iterator[tuple[Any, ...]]:
        """Yield id, parent, format, checkpoint and metadata, the oldest first."""
        statement = (
            "SELECT checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY checkpoint_id"
        )
        return self.rows(statement, *place)

    def writes(self, place: Place, checkpoint_id: str) -> list[StoredWrite]:
        """Return the writes on a checkpoint."""
        statement = (
            f"SELECT channel, type, value, {self._path_column}, task_id, idx FROM writes "  # noqa: S608 - of two texts
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? ORDER BY task_id, idx"
        )
        return [_write(checkpoint_id, row) for row in self.rows(statement, *place, checkpoint_id)]


def import_threads(store: holdfast.BlockingStore, path: str | Path) -> ImportReport:
    """Take over every thread of a file. A thread that cannot be taken over is reported and the others continue.

    Each checkpoint is read back and compared, with the writes on it.

    >>> import sqlite3
    >>> with sqlite3.connect("checkpoints.db") as file:
    ...     _ = file.execute("CREATE TABLE checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id)")
    ...     _ = file.execute("CREATE TABLE writes (thread_id)")
    >>> from holdfast.adapters.langgraph.importing import import_threads
    >>> import_threads(store, "checkpoints.db").threads
    []
    """
    report = ImportReport()
    port, threads = ThreadPort(store), Threads()
    with closing(SaverFile(path)) as source:
        for thread_id, namespace in source.places():
            if not isinstance(thread_id, str) or not isinstance(namespace, str):
                report.refused[repr(thread_id)] = "from: the id of the thread or its namespace is not text"
                continue
            place = Place(thread_id, namespace)
            try:
                finished(_take_over(port, threads, source, place, report))
            except (holdfast.Conflict, holdfast.InvalidRequest, holdfast.NotFound, holdfast.Incompatible) as error:
                report.refused[place.session_id] = str(error)
            except RecursionError:
                report.refused[place.session_id] = "from: a checkpoint of it is nested too deeply"
            else:
                report.threads.append(place.session_id)
    return report


async def _take_over(port: ThreadPort, threads: Threads, source: SaverFile, place: Place, report: ImportReport) -> None:
    known: dict[str | None, Mapping[str, Any]] = {}
    for row in source.checkpoints(place):
        draft = _draft(*row)
        draft = draft._replace(gist=_gist(draft, known.get(draft.parent, {})))
        known[draft.id] = draft.versions
        writes = source.writes(place, draft.id)
        found = await read_group(port, place, draft.id)
        if found.checkpoint is None:
            await threads.put(port, place, draft)
            report.checkpoints += 1
        else:
            report.already_there += 1
        missing = [write for write in writes if (write.task, write.index) not in found.writes]
        if missing:
            await threads.put_writes(port, place, draft.id, missing)
            report.writes += len(missing)
        await _require_equal(port, place, draft, writes)


async def _require_equal(port: ThreadPort, place: Place, draft: Draft, writes: Sequence[StoredWrite]) -> None:
    """Refuse a checkpoint that reads back with other values or other writes than those of the file."""
    group = await read_group(port, place, draft.id)
    found = None if group.checkpoint is None else await with_values(port, place, group)
    if (
        found is not None
        and _described(found.checkpoint) == _described(draft)
        and stored_channels(found.checkpoint) == set(draft.channels)
        and all(found.value(one) == draft.value(one) for one in draft.channels)
        and all(group.writes.get((write.task, write.index)) == write for write in writes)
    ):
        return
    raise holdfast.InvalidRequest(
        "from", f"the store has a checkpoint {draft.id!r} with other content: import into another store"
    )


def _write(checkpoint_id: str, row: tuple[Any, ...]) -> StoredWrite:
    channel, kind, value, path, task, index = row
    fields = {"channel": channel, "type": kind or "null", "path": path, "task": task, "index": index}
    if value is not None and not isinstance(value, bytes):
        raise _odd(checkpoint_id, "a write whose value is not bytes")
    try:
        write = msgspec.convert({"format": FORMAT, **fields}, StoredWrite)
    except msgspec.ValidationError as error:
        raise _odd(checkpoint_id, f"a write that is not one: {error}") from error
    if write.type not in FORMATS:
        raise _odd(checkpoint_id, f"a write of the format {write.type!r}: only {', '.join(FORMATS)} are taken over")
    return msgspec.structs.replace(write, data=value or b"")


def _odd(checkpoint_id: object, problem: str) -> holdfast.InvalidRequest:
    return holdfast.InvalidRequest("from", f"checkpoint {checkpoint_id!r} has {problem}")


def _described(one: StoredCheckpoint | Draft) -> tuple[object, ...]:
    """Return everything of a checkpoint but its values and writes."""
    return one.parent, one.state, one.typed_state, one.metadata, one.typed_metadata


def _draft(checkpoint_id: Any, parent: Any, kind: Any, body: Any, metadata: Any) -> Draft:
    if not isinstance(checkpoint_id, str) or not isinstance(parent, str | None):
        raise _odd(checkpoint_id, "an id or a parent that is not text")
    if not checkpoint_id.strip():
        raise _odd(checkpoint_id, "no id")
    if kind != "msgpack":
        raise holdfast.InvalidRequest(
            "from",
            f"checkpoint {checkpoint_id!r} has the format {kind!r}: only msgpack is taken over",
        )
    try:
        decoded = msgspec.msgpack.decode(body, type=dict[str, Any])
        values = msgspec.convert(decoded.pop("channel_values", {}), dict[str, Any])
        # As SqliteSaver reads it: with numbers that JSON does not have.
        described = msgspec.convert(json.loads(metadata or b"{}"), dict[str, Any])
        plain, typed_metadata = _split(described)
        state, typed_state = _split({key: value for key, value in decoded.items() if key != "id"})
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise holdfast.InvalidRequest("from", f"checkpoint {checkpoint_id!r} does not decode: {error}") from error
    if not isinstance(state.get("channel_versions", {}), dict):
        raise _odd(checkpoint_id, "versions of channels that are not a map")
    serialised = {channel: _typed(value) for channel, value in values.items()}
    return Draft(
        id=checkpoint_id,
        parent=parent,
        state=state,
        typed_state=typed_state,
        metadata=plain,
        typed_metadata=typed_metadata,
        channels=list(values),
        versions=state.get("channel_versions", {}),
        fresh=frozenset(values),
        value=serialised.__getitem__,
        may_branch=True,
        begins_run=True,
        begins_thread=False,
        gist="",
    )


def _split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Typed]]:
    """Return the values that JSON can hold, and the others serialised."""
    plain, odd = payloads.split_plain(values)
    return plain, {key: _typed(value) for key, value in odd.items()}


def _gist(draft: Draft, before: Mapping[str, Any]) -> str:
    """Return the beginning of the last message that a checkpoint added. `before` has the versions of its parent."""
    for channel in draft.channels:
        kind, data = draft.value(channel)
        if kind == "msgpack" and draft.versions.get(channel) != before.get(channel):
            found: Any = msgspec.msgpack.decode(data)
            text = _message(cast("Any", found)[-1]) if isinstance(found, list) and found else ""
            if text:
                return text
    return ""


def _message(value: Any) -> str:
    """Return `ai: hello` for an object of LangChain's message types, "" for anything else. Builds no object."""
    if not isinstance(value, msgspec.msgpack.Ext):
        return ""
    try:
        parts = msgspec.msgpack.decode(value.data, type=list[Any])
        fields = msgspec.convert(parts[2], _Message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError):
        return ""
    texts = [fields.content] if isinstance(fields.content, str) else [part.get("text") for part in fields.content]
    words = [*(text for text in texts if isinstance(text, str)), *(f"call {call.name}" for call in fields.tool_calls)]
    return " ".join(f"{fields.type}: {' '.join(words)}".split())[: payloads.GIST_CHARACTERS]


class _Call(msgspec.Struct):
    name: str


class _Message(msgspec.Struct):
    """The fields of a message that form its gist."""

    type: str
    content: str | list[dict[str, Any]]
    tool_calls: list[_Call] = []


def _typed(value: Any) -> Typed:
    """Return a value as LangGraph's serialiser has it. Objects inside stay the bytes that they are."""
    if value is None:
        return "null", b""
    if isinstance(value, bytes):
        return "bytes", value
    return "msgpack", msgspec.msgpack.encode(value)


def as_json(report: ImportReport) -> Mapping[str, Any]:
    """Return the report for a program."""
    return dict(vars(report))
