"""Tables of sessions, revisions and usage. Sessions are found by id and listed by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import Base
from holdfast.records.limits import CHANGE_BUCKET_MS


class Sessions(Base):
    """Sessions and their revisions, usage and deletion."""

    __slots__ = ()

    KEY_LOCK: ClassVar = "share_session"

    async def find_session(self, session_id: str, *, key_only: bool = False) -> r.SessionRow | None:
        name = self.KEY_LOCK if key_only else "find_session"
        family = await self._family_of(session_id)
        place = (session_id,) if family is None else (session_id, family)
        row = await self._locked(r.SessionRow, name, *place, find="find_session+")
        if row is not None:
            self._families[row.session_key] = row.family
        return row

    async def session_ids(self, session_keys: Sequence[int]) -> dict[int, str]:
        return dict(await self._values("session_ids", list(session_keys)))

    async def insert_session(self, row: r.SessionRow) -> r.SessionRow:
        if self._by_family:
            [(session_key,)] = await self._runner.all("draw_session_key")
            family = row.family or session_key
            await self._run("take_name", row.session_id, row.incarnation, family)
            row = msgspec.structs.replace(row, session_key=session_key, family=family)
            stored = await self._one(r.SessionRow, "insert_session_of_family", *msgspec.structs.astuple(row))
        else:
            stored = await self._one(r.SessionRow, "insert_session", *msgspec.structs.astuple(row)[1:])
        assert stored is not None
        self._families[stored.session_key] = stored.family
        self.seen.heads.append((stored, None))
        return stored

    async def save_session(self, row: r.SessionRow) -> int:
        return await self._store("save_session", row)

    async def list_sessions(self, filter: r.SessionFilter) -> list[r.SessionRow]:
        after = 0 if filter.after is None else filter.after[-1]
        since_ms = filter.changed_since_ms
        if since_ms is not None:
            # Keys start at 1, so (minute, 0) is before every session that changed in that minute.
            since = (since_ms // CHANGE_BUCKET_MS, 0)
            minute, after = max(since, filter.after or since)
            changed = (after, filter.limit, filter.owner, filter.parent, minute, since_ms)
            return await self._all(r.SessionRow, "list_sessions_changed", *changed, columns.PAGE_BYTES)
        if filter.parent is not None:
            bindings = (after, filter.limit, filter.owner, filter.parent)
            return await self._all(r.SessionRow, "list_sessions_of_parent", *bindings, columns.PAGE_BYTES)
        if filter.owner is not None:
            owned = (after, filter.limit, filter.owner)
            return await self._all(r.SessionRow, "list_sessions_of_owner", *owned, columns.PAGE_BYTES)
        return await self._all(r.SessionRow, "list_sessions", after, filter.limit, columns.PAGE_BYTES)

    async def family_sessions(self, family: int) -> list[r.SessionRow]:
        await self._lock_family(family)
        rows = await self._all(r.SessionRow, "family_sessions", family)
        self._families.update((row.session_key, row.family) for row in rows)
        return rows

    async def list_families(self, after: int, limit: int) -> list[int]:
        return [family for (family,) in await self._values("list_families", after, limit)]

    async def find_revision(self, session_key: int, revision: int) -> r.RevisionRow | None:
        family = await self._family(session_key)
        return await self._one(r.RevisionRow, "find_revision", family, session_key, revision)

    async def find_turn(self, session: r.SessionRow, turn_id: str) -> r.RevisionRow | None:
        return await self._one(r.RevisionRow, "find_turn", session.family, session.session_key, turn_id)

    async def find_leaf_revision(self, session_key: int, leaf_key: int) -> r.RevisionRow | None:
        family = await self._family(session_key)
        return await self._one(r.RevisionRow, "find_leaf_revision", family, session_key, leaf_key)

    async def list_revisions(self, session_key: int, *, after: int, limit: int) -> list[r.RevisionRow]:
        family = await self._family(session_key)
        return await self._all(r.RevisionRow, "list_revisions", family, session_key, after, limit, columns.PAGE_BYTES)

    async def list_revisions_down(self, session_key: int, *, before: int, limit: int) -> list[r.RevisionRow]:
        family = await self._family(session_key)
        place = (family, session_key, before)
        return await self._all(r.RevisionRow, "list_revisions_down", *place, limit, columns.PAGE_BYTES)

    async def revision_epochs(self, session_key: int) -> list[tuple[int, int]]:
        found = await self._numbers("revision_epochs", await self._family(session_key), session_key)
        return [(epoch, node_count) for epoch, node_count in found]

    async def count_revisions(self, session_key: int, *, below: int) -> int:
        return await self._number("count_revisions", await self._family(session_key), session_key, below)

    async def drop_revisions(self, session_key: int, *, below: int, limit: int) -> int:
        return await self._run("drop_revisions", await self._family(session_key), session_key, below, limit)

    async def read_ledger(self, session_key: int) -> list[r.UsageRow]:
        return await self._all(r.UsageRow, "read_ledger", await self._family(session_key), session_key)

    async def drop_session_content(self, session_key: int) -> tuple[int, int, int]:
        family = await self._family(session_key)
        # Claims lock the queue before its batches.
        await self._values("lock_ready", [family], [session_key])
        [(usage, work, attachments)] = await self._values("drop_session_content", family, session_key)
        return usage, work, attachments
