"""Tables of sessions, revisions and usage. Sessions are found by id and listed by key."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import rows as r
from holdfast.backends.sqlite.transaction.base import Base, json_list
from holdfast.records.limits import CHANGE_BUCKET_MS
from holdfast.table_catalog import fetched


class Sessions(Base):
    """Sessions and their revisions, usage and deletion."""

    __slots__ = ()

    async def find_session(self, session_id: str, *, key_only: bool = False) -> r.SessionRow | None:
        return self._one(r.SessionRow, "find_session", (session_id,))

    async def session_ids(self, session_keys: Sequence[int]) -> dict[int, str]:
        return dict(self._values("session_ids", (json_list(session_keys),)))

    async def insert_session(self, row: r.SessionRow) -> r.SessionRow:
        [stored] = self._store_all(r.SessionRow, "insert_session", [row])
        if stored.family != 0:
            return stored
        [values] = self._values("found_family", (stored.session_key,))
        return fetched(r.SessionRow, values)

    async def save_session(self, row: r.SessionRow) -> int:
        return self._store("save_session", row)

    async def list_sessions(self, filter: r.SessionFilter) -> list[r.SessionRow]:
        bindings: dict[str, int | str | None] = {
            "limit": filter.limit,
            "owner": filter.owner,
            "parent": filter.parent,
        }
        if filter.changed_since_ms is not None:
            # Keys start at 1, so (minute, 0) is before every session that changed in that minute.
            since = (filter.changed_since_ms // CHANGE_BUCKET_MS, 0)
            minute, after = max(since, filter.after or since)
            changed = {"after_minute": minute, "after": after, "since_ms": filter.changed_since_ms}
            return self._page(r.SessionRow, "list_sessions_changed", bindings | changed)
        bindings["after"] = 0 if filter.after is None else filter.after[0]
        if filter.parent is not None:
            return self._page(r.SessionRow, "list_sessions_of_parent", bindings)
        name = "list_sessions" if filter.owner is None else "list_sessions_of_owner"
        return self._page(r.SessionRow, name, bindings)

    async def family_sessions(self, family: int) -> list[r.SessionRow]:
        return self._all(r.SessionRow, "family_sessions", (family,))

    async def list_families(self, after: int, limit: int) -> list[int]:
        return [family for (family,) in self._numbers("list_families", (after, limit))]

    async def find_revision(self, session_key: int, revision: int) -> r.RevisionRow | None:
        return self._one(r.RevisionRow, "find_revision", (session_key, revision))

    async def find_turn(self, session: r.SessionRow, turn_id: str) -> r.RevisionRow | None:
        return self._one(r.RevisionRow, "find_turn", (session.session_key, turn_id))

    async def find_leaf_revision(self, session_key: int, leaf_key: int) -> r.RevisionRow | None:
        return self._one(r.RevisionRow, "find_leaf_revision", (session_key, leaf_key))

    async def list_revisions(self, session_key: int, *, after: int, limit: int) -> list[r.RevisionRow]:
        return self._page(r.RevisionRow, "list_revisions", (session_key, after, limit))

    async def list_revisions_down(self, session_key: int, *, before: int, limit: int) -> list[r.RevisionRow]:
        return self._page(r.RevisionRow, "list_revisions_down", (session_key, before, limit))

    async def revision_epochs(self, session_key: int) -> list[tuple[int, int]]:
        return [(epoch, node_count) for epoch, node_count in self._numbers("revision_epochs", (session_key,))]

    async def count_revisions(self, session_key: int, *, below: int) -> int:
        return self._number("count_revisions", (session_key, below))

    async def drop_revisions(self, session_key: int, *, below: int, limit: int) -> int:
        return self._run("drop_revisions", (session_key, below, limit))

    async def read_ledger(self, session_key: int) -> list[r.UsageRow]:
        return self._all(r.UsageRow, "read_ledger", (session_key,))

    async def drop_session_content(self, session_key: int) -> tuple[int, int, int]:
        usage = self._run("drop_session_usage", (session_key,))
        work = self._run("drop_session_unsettled_batches", (session_key,))
        work += self._run("drop_session_settled_batches", (session_key,))
        self._run("drop_ready", (session_key,))
        self._run("drop_session_blocks", (session_key,))
        attachments = self._run("drop_session_attachments", (session_key,))
        return usage, work, attachments
