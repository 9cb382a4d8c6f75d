"""Takes over the threads of a `SqliteSaver` file. Imports no framework, and builds no object of the stored data.

Checkpoints keep their ids, so that a second run continues where the first stopped. Nothing is overwritten.
"""

from __future__ import annotations

import sqlite3
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast.adapters.langgraph import payloads
from holdfast.adapters.langgraph.payloads import FORMAT, StoredWrite, Typed
from holdfast.adapters.langgraph.ports import ThreadPort, finished
from holdfast.adapters.langgraph.reads import read_group, with_values
from holdfast.adapters.langgraph.threads import Threads
from holdfast.adapters.langgraph.values import Draft, Place

TABLES = ("checkpoints", "writes")


@dataclass
class ImportReport:
    """The outcome of an import. `refused` has the problem of each thread that was not taken over whole."""

    threads: list[str] = field(default_factory=list[str])
    checkpoints: int = 0
    already_there: int = 0
    writes: int = 0
    refused: dict[str, str] = field(default_factory=dict[str, str])


class SourceFile:
    """A file of a SqliteSaver, opened for reading only."""

    def __init__(self, path: str | Path) -> None:
        if not Path(path).is_file():
            raise holdfast.InvalidRequest("from", f"there is no file {str(path)!r}")
        name = urllib.parse.quote(str(Path(path).resolve()))
        self._connection = sqlite3.connect(f"file:{name}?mode=ro", uri=True, isolation_level=None)
        try:
            # One snapshot for everything that is read.
            self._connection.execute("BEGIN")
            found = {str(row[0]) for row in self._connection.execute("SELECT name FROM sqlite_master")}
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise holdfast.InvalidRequest("from", f"{str(path)!r} is not a SQLite database: {error}") from error
        missing = [table for table in TABLES if table not in found]
        if missing:
            self._connection.close()
            raise holdfast.InvalidRequest(
                "from", f"{str(path)!r} has no table {missing[0]!r}, as a SqliteSaver makes it"
            )
        columns = self._connection.execute("SELECT name FROM pragma_table_info('writes')")
        self._path_column = "task_path" if ("task_path",) in columns.fetchall() else "''"

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def places(self) -> Iterator[Place]:
        """Yield the namespaces of all threads, a thread's own before those of its subgraphs."""
        statement = "SELECT DISTINCT thread_id, checkpoint_ns FROM checkpoints ORDER BY thread_id, checkpoint_ns"
        for thread_id, namespace in self._connection.execute(statement).fetchall():
            yield Place(str(thread_id), str(namespace))

    def checkpoints(self, place: Place) -> Iterator[tuple[str, str | None, str, bytes, bytes]]:
        """Yield id, parent, format, checkpoint and metadata, the oldest first."""
        statement = (
            "SELECT checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY checkpoint_id"
        )
        yield from self._connection.execute(statement, place)

    def writes(self, place: Place, checkpoint_id: str) -> list[StoredWrite]:
        """Return the writes on a checkpoint."""
        statement = (
            f"SELECT channel, type, value, {self._path_column}, task_id, idx FROM writes "  # noqa: S608 - of two texts
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? ORDER BY task_id, idx"
        )
        rows = self._connection.execute(statement, (*place, checkpoint_id)).fetchall()
        return [
            StoredWrite(FORMAT, channel, kind or "null", bytes(value or b""), path, task, index)
            for channel, kind, value, path, task, index in rows
        ]


def import_threads(store: holdfast.BlockingStore, path: str | Path) -> ImportReport:
    """Take over every thread of a file. A thread that cannot be taken over is reported and the others continue.

    Each checkpoint is read back and compared.

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
    with closing(SourceFile(path)) as source:
        for place in source.places():
            try:
                finished(_take_over(port, threads, source, place, report))
            except (holdfast.Conflict, holdfast.InvalidRequest, holdfast.NotFound, holdfast.Incompatible) as error:
                report.refused[place.session_id] = str(error)
            else:
                report.threads.append(place.session_id)
    return report


async def _take_over(
    port: ThreadPort, threads: Threads, source: SourceFile, place: Place, report: ImportReport
) -> None:
    for row in source.checkpoints(place):
        draft = _draft(*row)
        found = await read_group(port, place, draft.id)
        if found.checkpoint is None:
            await threads.put(port, place, draft)
            report.checkpoints += 1
        else:
            report.already_there += 1
        await _require_equal(port, place, draft)
        writes = source.writes(place, draft.id)
        if writes:
            await threads.put_writes(port, place, draft.id, writes)
            report.writes += len(writes)


async def _require_equal(port: ThreadPort, place: Place, draft: Draft) -> None:
    group = await read_group(port, place, draft.id)
    found = None if group.checkpoint is None else await with_values(port, place, group)
    if found is not None and found.checkpoint.state == draft.state and found.checkpoint.parent == draft.parent:
        channels = {*found.checkpoint.values, *found.checkpoint.components}
        if channels == set(draft.channels) and all(found.value(one) == draft.value(one) for one in draft.channels):
            return
    raise holdfast.InvalidRequest(
        "from", f"the store has a checkpoint {draft.id!r} with other content: import into another store"
    )


def _draft(checkpoint_id: str, parent: str | None, kind: str, body: bytes, metadata: bytes) -> Draft:
    if kind != "msgpack":
        raise holdfast.InvalidRequest(
            "from",
            f"checkpoint {checkpoint_id!r} has the format {kind!r}: only msgpack is taken over",
        )
    try:
        decoded = msgspec.msgpack.decode(body, type=dict[str, Any])
        values = msgspec.convert(decoded.pop("channel_values", {}), dict[str, Any])
        described = msgspec.json.decode(metadata or b"{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise holdfast.InvalidRequest("from", f"checkpoint {checkpoint_id!r} does not decode: {error}") from error
    state, odd = payloads.split_plain({key: value for key, value in decoded.items() if key != "id"})
    serialised = {channel: _typed(value) for channel, value in values.items()}
    return Draft(
        id=checkpoint_id,
        parent=parent,
        state=state,
        typed_state={key: _typed(value) for key, value in odd.items()},
        metadata=described,
        typed_metadata={},
        channels=list(values),
        versions=state.get("channel_versions", {}),
        fresh=frozenset(values),
        value=serialised.__getitem__,
        may_branch=True,
        gist="",
    )


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
