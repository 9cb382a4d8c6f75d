"""Sessions, revisions and usage in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast import rows as r
from holdfast.backends.memory.tables import Tables, starting_with
from holdfast.label_rows import LabelRow, SessionFilter

NO_METADATA: Final[dict[str, Any]] = dict.fromkeys(["name", "owner", "model", "cwd", "parent_session_id", "caused_by"])


class MemorySessions:
    """Implements `ports.SessionTables` and `ports.LabelTables`."""

    tables: Tables

    async def find_session(self, session_id: str, *, key_only: bool = False) -> r.SessionRow | None:
        return max(self.tables.sessions.of(session_id), key=lambda row: row.incarnation, default=None)

    async def session_ids(self, session_keys: Sequence[int]) -> dict[int, str]:
        found = [self.tables.sessions.get(key) for key in sorted(set(session_keys))]
        return {row.session_key: row.session_id for row in found if row is not None}

    async def insert_session(self, row: r.SessionRow) -> r.SessionRow:
        key = self.tables.next_number("session_key")
        stored = msgspec.structs.replace(row, session_key=key, family=row.family or key)
        self.tables.sessions.put(key, stored)
        return stored

    async def save_session(self, row: r.SessionRow) -> int:
        known = self.tables.sessions.get(row.session_key) is not None
        if known:
            self.tables.sessions.put(row.session_key, row)
        return int(known)

    async def list_sessions(self, filter: SessionFilter) -> list[r.SessionRow]:
        since = filter.changed_since_ms
        found = self.tables.sessions.scan(
            lambda row: (
                row.deleted_at_ms is None
                and (filter.owner is None or row.owner == filter.owner)
                and (filter.parent is None or row.parent_session_id == filter.parent)
                and (since is None or row.changed_at_ms >= since)
                and row.session_id >= filter.first_id
                and (filter.before_id is None or row.session_id < filter.before_id)
                and filter.follows(row)
                and self._has_labels(row, filter.labels)
            )
        )
        return sorted(found, key=filter.place, reverse=filter.order == "newest")[: filter.limit]

    def _has_labels(self, session: r.SessionRow, labels: Sequence[tuple[str, str]]) -> bool:
        rows = (self.tables.session_labels.get((session.family, session.session_key, key)) for key, _ in labels)
        return all(row is not None and row.value == value for row, (_, value) in zip(rows, labels, strict=True))

    async def read_labels(self, sessions: Sequence[r.SessionRow]) -> list[LabelRow]:
        return [row for one in sessions for row in self._labels(one.family, one.session_key)]

    def _labels(self, family: int, session_key: int) -> list[LabelRow]:
        return list(self.tables.session_labels.between(*starting_with(family, session_key)))

    async def save_labels(self, rows: Sequence[LabelRow]) -> None:
        for row in rows:
            self.tables.session_labels.put((row.family, row.session_key, row.key), row)

    async def drop_labels(self, session: r.SessionRow, keys: Sequence[str]) -> int:
        return sum(self.tables.session_labels.drop((session.family, session.session_key, key)) for key in keys)

    async def family_sessions(self, family: int) -> list[r.SessionRow]:
        found = self.tables.sessions.scan(lambda row: row.family == family)
        return [msgspec.structs.replace(row, **NO_METADATA) for row in found]

    async def list_families(self, after: int, limit: int) -> list[int]:
        return sorted({row.family for row in self.tables.sessions.scan(lambda row: row.family > after)})[:limit]

    def _revisions(self, session_key: int) -> list[r.RevisionRow]:
        return list(self.tables.revisions.between(*starting_with(session_key)))

    async def find_revision(self, session_key: int, revision: int) -> r.RevisionRow | None:
        return self.tables.revisions.get((session_key, revision))

    async def find_revisions(self, session: r.SessionRow, revisions: Sequence[int]) -> list[r.RevisionRow]:
        found = (self.tables.revisions.get((session.session_key, revision)) for revision in revisions)
        return [row for row in found if row is not None]

    async def find_turn(self, session: r.SessionRow, turn_id: str) -> r.RevisionRow | None:
        return next((row for row in self._revisions(session.session_key) if row.turn_id == turn_id), None)

    async def find_turns(self, session: r.SessionRow, turn_ids: Sequence[str]) -> list[r.RevisionRow]:
        return [row for row in self._revisions(session.session_key) if row.turn_id in set(turn_ids)]

    async def find_leaf_revision(self, session_key: int, leaf_key: int) -> r.RevisionRow | None:
        found = (row for row in self._revisions(session_key) if row.leaf_key == leaf_key)
        return max(found, key=lambda row: row.revision, default=None)

    async def list_revisions(self, session_key: int, *, after: int, limit: int) -> list[r.RevisionRow]:
        return [row for row in self._revisions(session_key) if row.revision > after][:limit]

    async def list_revisions_down(self, session_key: int, *, before: int, limit: int) -> list[r.RevisionRow]:
        return [row for row in self._revisions(session_key) if row.revision < before][::-1][:limit]

    async def revision_epochs(self, session_key: int) -> list[tuple[int, int]]:
        reach: dict[int, int] = {}
        for row in self._revisions(session_key):
            reach[row.epoch] = max(reach.get(row.epoch, 0), row.node_count)
        return sorted(reach.items())

    async def count_revisions(self, session_key: int, *, below: int) -> int:
        return sum(1 for row in self._revisions(session_key) if row.revision < below)

    async def drop_revisions(self, session_key: int, *, below: int, limit: int) -> int:
        old = [row for row in self._revisions(session_key) if row.revision < below]
        return sum(self.tables.revisions.drop((session_key, row.revision)) for row in old[:limit])

    async def read_ledger(self, session_key: int) -> list[r.UsageRow]:
        found = [row for key in self._usage_keys(session_key) if (row := self.tables.usage.get(key)) is not None]
        return sorted(found, key=lambda row: row.place)

    def _usage_keys(self, session_key: int) -> list[tuple[int, str, str]]:
        return self.tables.usage.keys_between(*starting_with(session_key))

    async def drop_session_content(self, session_key: int) -> tuple[int, int, int]:
        tables = self.tables
        usage = sum(tables.usage.drop(key) for key in self._usage_keys(session_key))
        tables.ready.drop(session_key)
        for block in list(tables.stream_blocks.scan(lambda row: row.session_key == session_key)):
            tables.stream_blocks.drop((block.family, block.session_key, block.claim_id, block.block))
        for label in list(tables.session_labels.scan(lambda row: row.session_key == session_key)):
            tables.session_labels.drop((label.family, label.session_key, label.key))
        work = sum(
            tables.batches.drop(row.enqueue_seq)
            for row in list(tables.batches.scan(lambda row: row.session_key == session_key))
        )
        attachments = sum(
            tables.attachments.drop((session_key, row.attachment_id))
            for row in list(tables.attachments.between(*starting_with(session_key)))
        )
        return usage, work, attachments
