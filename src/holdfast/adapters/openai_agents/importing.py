"""Takes over the sessions of a `SQLiteSession` or `AdvancedSQLiteSession` file. Imports no framework.

A session is compared with what the store has of it: a prefix is completed, an equal one is left, any other is refused.
So a second run continues where the first stopped, and nothing is imported twice or overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import holdfast
from holdfast.adapters.openai_agents.items import ITEM
from holdfast.adapters.sharing import naming
from holdfast.adapters.source_file import SourceFile

ITEMS_A_COMMIT = 1_000
BYTES_A_COMMIT = 32 * 1024 * 1024
"""An item begins a new commit if it and those before it are longer."""
MAIN: Final = "main"


@dataclass
class ImportReport:
    """The outcome of an import. `refused` has the problem of each session that was not taken over."""

    imported: list[str] = field(default_factory=list[str])
    already_there: int = 0
    items: int = 0
    skipped_rows: list[int] = field(default_factory=list[int])
    """Rows whose text is not JSON. The SDK skips them, too."""
    usage_rows: int = 0
    """Rows about tokens, which stay behind."""
    refused: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class SourceSession:
    """One conversation of the file: a session, or one branch of it."""

    name: object
    session_id: object
    branch: object


class SessionsFile(SourceFile):
    """A file of the SDK."""

    def __init__(self, path: str | Path, *, sessions_table: str, messages_table: str) -> None:
        self._sessions, self._messages = _quoted(sessions_table), _quoted(messages_table)
        super().__init__(path, (sessions_table, messages_table), ": name the tables if they have other names")
        self._branched = "message_structure" in self.tables
        self._metered = "turn_usage" in self.tables

    def usage_rows(self) -> int:
        """Return the number of rows about tokens."""
        if not self._metered:
            return 0
        [(count,)] = self.rows("SELECT count(*) FROM turn_usage")
        return int(count)

    def sessions(self) -> Iterator[SourceSession]:
        """Yield the sessions, and each branch but the main one as a session of its own: `<session>.<branch>`."""
        # Both have rows: a session without metadata is one of a writer that was interrupted.
        statement = (
            f"SELECT session_id FROM {self._sessions} UNION SELECT session_id FROM {self._messages} "  # noqa: S608
            "ORDER BY session_id"
        )
        for (session_id,) in [*self.rows(statement)]:
            yield SourceSession(session_id, session_id, MAIN if self._branched else None)
            if not self._branched:
                continue
            branches = "SELECT DISTINCT branch_id FROM message_structure WHERE session_id = ? ORDER BY branch_id"
            for (branch,) in [*self.rows(branches, session_id)]:
                if branch != MAIN:
                    yield SourceSession(f"{session_id}.{branch}", session_id, branch)

    def messages(self, session: SourceSession) -> Iterator[tuple[Any, ...]]:
        """Return id, text and time of each message in order."""
        if session.branch is None:
            statement = (
                f"SELECT id, message_data, created_at FROM {self._messages} "  # noqa: S608
                "WHERE session_id = ? ORDER BY id"
            )
            return self.rows(statement, session.session_id)
        statement = (
            f"SELECT m.id, m.message_data, m.created_at FROM {self._messages} m "  # noqa: S608
            "JOIN message_structure s ON s.message_id = m.id "
            "WHERE s.session_id = ? AND s.branch_id = ? ORDER BY s.sequence_number, s.id"
        )
        return self.rows(statement, session.session_id, session.branch)


def import_sessions(
    store: holdfast.BlockingStore,
    path: str | Path,
    *,
    sessions_table: str = "agent_sessions",
    messages_table: str = "agent_messages",
) -> ImportReport:
    """Take over every session of a file. A session that cannot be taken over is reported and the others continue.

    A session that is there already is completed if the file has more of it.
    """
    report = ImportReport()
    with closing(SessionsFile(path, sessions_table=sessions_table, messages_table=messages_table)) as source:
        report.usage_rows = source.usage_rows()
        for session in source.sessions():
            if not isinstance(session.name, str):
                report.refused[repr(session.name)] = "from: the id of the session is not text"
                continue
            try:
                nodes, sizes = _nodes(source.messages(session), report)
                _take_over(store, session.name, nodes, sizes, report)
            except (holdfast.Conflict, holdfast.InvalidRequest, holdfast.NotFound, holdfast.Incompatible) as error:
                report.refused[session.name] = str(error)
    return report


def _take_over(
    store: holdfast.BlockingStore,
    name: str,
    nodes: Sequence[holdfast.Node],
    sizes: Sequence[int],
    report: ImportReport,
) -> None:
    session = store.sessions.handle(name)
    view = session.load()
    found = () if view is None else view.graph.nodes
    revision = 0 if view is None else view.revision
    _require_prefix(name, found, nodes)
    if len(found) == len(nodes) and (found or revision):
        report.already_there += 1
        return
    if not nodes:
        session = store.sessions.create(name)
    for start, end in _parts(sizes, len(found)):
        commit = holdfast.Commit(expected_revision=revision, graph=holdfast.Append(nodes[start:end]))
        # Not created before its first items are accepted: refused ones leave no empty session behind.
        with naming("items", first=start):
            revision = session.commit(commit).revision
    stored = session.load()
    kept = () if stored is None else stored.graph.nodes
    if [node.payload for node in kept] != [node.payload for node in nodes]:
        raise holdfast.InvalidRequest(
            "from", f"session {name!r} reads back with other items: import it into a new store"
        )
    report.imported.append(name)
    report.items += len(nodes) - len(found)


def _parts(sizes: Sequence[int], start: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the items of each commit."""
    total = 0
    for index in range(start, len(sizes)):
        if index - start == ITEMS_A_COMMIT or (index > start and total + sizes[index] > BYTES_A_COMMIT):
            yield start, index
            start, total = index, 0
        total += sizes[index]
    if start < len(sizes):
        yield start, len(sizes)


def _require_prefix(name: str, found: Sequence[holdfast.Node], nodes: Sequence[holdfast.Node]) -> None:
    """Refuse a session that the store has with other items than the file."""
    for index, node in enumerate(found):
        if index >= len(nodes) or node.kind != ITEM or node.payload != nodes[index].payload:
            raise holdfast.InvalidRequest(
                "from",
                f"the store has a session {name!r} that differs from item {index + 1} on: import into another store",
            )


def _nodes(rows: Iterator[tuple[Any, ...]], report: ImportReport) -> tuple[list[holdfast.Node], list[int]]:
    """Return the items as nodes, and their sizes."""
    nodes: list[holdfast.Node] = []
    sizes: list[int] = []
    for row_id, text, created_at in rows:
        try:
            payload = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            report.skipped_rows.append(row_id)
            continue
        nodes.append(holdfast.Node(kind=ITEM, payload=payload, created_at_ms=_milliseconds(created_at)))
        sizes.append(len(text))
    return nodes, sizes


def _milliseconds(text: Any) -> int | None:
    """Return a time of SQLite, which is UTC, in milliseconds, or None if the text is not a time."""
    try:
        moment = datetime.fromisoformat(text)
    except (ValueError, TypeError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = int(moment.timestamp() * 1000)
    return since if since >= 0 else None


def _quoted(name: str) -> str:
    """Return a table's name as an identifier of SQL."""
    if not name or "\0" in name:
        raise holdfast.InvalidRequest("table", f"{name!r} is not the name of a table")
    return '"' + name.replace('"', '""') + '"'


def as_json(report: ImportReport) -> Mapping[str, Any]:
    """Return the report for a program."""
    return dict(vars(report))
