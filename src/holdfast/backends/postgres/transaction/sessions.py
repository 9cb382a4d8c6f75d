"""Tables of sessions, revisions and usage. Sessions are found by id and listed by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import Base, columns_of
from holdfast.label_rows import FEW, LabelRow, SessionFilter, Start

ORDERS: Final = {"changed": "list_sessions_changed", "newest": "list_sessions_newest"}


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

    async def list_sessions(self, filter: SessionFilter) -> list[r.SessionRow]:
        start = filter.start()
        if filter.labels:
            return await self._list_labelled(filter, start)
        whose = (filter.limit, filter.owner, filter.parent)
        ids = (filter.first_id, filter.before_id) if filter.is_bounded else ()
        match filter.order:
            case "made":
                return await self._list_made(filter, start.key)
            case "id":
                before = () if filter.before_id is None else (filter.before_id,)
                name = "list_sessions_by_id+bounded+" if before else "list_sessions_by_id+"
                return await self._all(r.SessionRow, name, start.id, *whose, columns.PAGE_BYTES, *before)
            case "changed" | "newest":
                name = ORDERS[filter.order] + ("+ids+" if ids else "+")
                place = (start.minute, filter.changed_since_ms or 0)
                return await self._all(r.SessionRow, name, start.key, *whose, *place, columns.PAGE_BYTES, *ids)

    async def _list_made(self, filter: SessionFilter, after: int) -> list[r.SessionRow]:
        if filter.parent is not None:
            bindings = (after, filter.limit, filter.owner, filter.parent)
            return await self._all(r.SessionRow, "list_sessions_of_parent", *bindings, columns.PAGE_BYTES)
        if filter.owner is not None:
            owned = (after, filter.limit, filter.owner)
            return await self._all(r.SessionRow, "list_sessions_of_owner", *owned, columns.PAGE_BYTES)
        return await self._all(r.SessionRow, "list_sessions", after, filter.limit, columns.PAGE_BYTES)

    async def _list_labelled(self, filter: SessionFilter, start: Start) -> list[r.SessionRow]:
        """Begin with the rarest of the labels, unless so many sessions have it that any order soon meets one."""
        counts = [(await self._number("count_label", *pair, FEW + 1), *pair) for pair in filter.labels]
        count, key, value = min(counts)
        keys, values = [key for key, _ in filter.labels], [value for _, value in filter.labels]
        whose = (filter.limit, filter.owner, filter.parent)
        since_ms = filter.changed_since_ms or 0
        bindings: tuple[Any, ...]
        if filter.order == "made":
            name = "list_sessions_of_label+labels+"
            bindings = (start.key, *whose, columns.PAGE_BYTES, key, value, keys, values)
        elif count <= FEW:
            name = "sort_sessions_of_label+labels+"
            place = (start.minute, since_ms, filter.order, key, value, columns.PAGE_BYTES, start.id, filter.before_id)
            bindings = (start.key, *whose, *place, keys, values)
        elif filter.order == "id":
            before = () if filter.before_id is None else (filter.before_id,)
            name = f"list_sessions_by_id{'+bounded' if before else ''}+labels+"
            bindings = (start.id, *whose, columns.PAGE_BYTES, *before, keys, values)
        else:
            ids = (filter.first_id, filter.before_id) if filter.is_bounded else ()
            name = f"{ORDERS[filter.order]}{'+ids' if ids else ''}+labels+"
            bindings = (start.key, *whose, start.minute, since_ms, columns.PAGE_BYTES, *ids, keys, values)
        return await self._all(r.SessionRow, name, *bindings)

    async def read_labels(self, sessions: Sequence[r.SessionRow]) -> list[LabelRow]:
        families = [one.family for one in sessions]
        return await self._all(LabelRow, "read_labels", families, [one.session_key for one in sessions])

    async def save_labels(self, rows: Sequence[LabelRow]) -> None:
        await self._run("save_labels", *columns_of(rows, len(LabelRow.__struct_fields__)))

    async def drop_labels(self, session: r.SessionRow, keys: Sequence[str]) -> int:
        return await self._run("drop_labels", session.family, session.session_key, list(keys))

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

    async def find_revisions(self, session: r.SessionRow, revisions: Sequence[int]) -> list[r.RevisionRow]:
        place = (session.family, session.session_key)
        return await self._all(r.RevisionRow, "find_revisions", *place, list(revisions))

    async def find_turn(self, session: r.SessionRow, turn_id: str) -> r.RevisionRow | None:
        return await self._one(r.RevisionRow, "find_turn", session.family, session.session_key, turn_id)

    async def find_turns(self, session: r.SessionRow, turn_ids: Sequence[str]) -> list[r.RevisionRow]:
        return await self._all(r.RevisionRow, "find_turns", session.family, session.session_key, list(turn_ids))

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
