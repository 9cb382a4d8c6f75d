"""Tables of sessions, revisions and usage. Sessions are found by id and listed by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast import rows as r
from holdfast.backends.sqlite.transaction.base import Base, json_list, listed
from holdfast.label_rows import FEW, LabelRow, SessionFilter, SessionOrder
from holdfast.table_catalog import fetched

ORDERS: Final[dict[SessionOrder, str]] = {
    "made": "list_sessions_of_label",
    "id": "list_sessions_by_id",
    "changed": "list_sessions_changed",
    "newest": "list_sessions_newest",
}
"""The statement for each order of sessions with labels; all but the first for sessions without any, too."""

BY_CHANGE: Final = (ORDERS["changed"], ORDERS["newest"])

AFTER_ANY_TEXT: Final = b""
"""A blob comes after any text."""


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

    async def list_sessions(self, filter: SessionFilter) -> list[r.SessionRow]:
        start = filter.start()
        bindings: dict[str, int | str | bytes | None] = {
            "limit": filter.limit,
            "owner": filter.owner,
            "parent": filter.parent,
            "minute": start.minute,
            "after": start.key,
            "since_ms": filter.changed_since_ms or 0,
            "first_id": start.id,
            "before_id": AFTER_ANY_TEXT if filter.before_id is None else filter.before_id,
            "labels": json_list(filter.labels),
            "order": filter.order,
        }
        if filter.order == "made" and not filter.labels:
            if filter.parent is not None:
                return self._page(r.SessionRow, "list_sessions_of_parent", bindings)
            name = "list_sessions" if filter.owner is None else "list_sessions_of_owner"
            return self._page(r.SessionRow, name, bindings)
        name = ORDERS[filter.order]
        if filter.labels:
            count, bindings["key"], bindings["value"] = min(
                (self._number("count_label", (key, value, FEW + 1)), key, value) for key, value in filter.labels
            )
            if filter.order != "made" and count <= FEW:
                name = "sort_sessions_of_label"
        ids = "+ids" if filter.is_bounded and name in BY_CHANGE else ""
        return self._page(r.SessionRow, f"{name}{ids}{'+labels' if filter.labels else ''}+", bindings)

    async def read_labels(self, sessions: Sequence[r.SessionRow]) -> list[LabelRow]:
        return self._all(LabelRow, "read_labels", (json_list([(one.family, one.session_key) for one in sessions]),))

    async def save_labels(self, rows: Sequence[LabelRow]) -> None:
        for row in rows:
            self._store("save_label", row)

    async def drop_labels(self, session: r.SessionRow, keys: Sequence[str]) -> int:
        return self._run("drop_labels", (session.family, session.session_key, json_list(keys)))

    async def family_sessions(self, family: int) -> list[r.SessionRow]:
        return self._all(r.SessionRow, "family_sessions", (family,))

    async def list_families(self, after: int, limit: int) -> list[int]:
        return [family for (family,) in self._numbers("list_families", (after, limit))]

    async def find_revision(self, session_key: int, revision: int) -> r.RevisionRow | None:
        return self._one(r.RevisionRow, "find_revision", (session_key, revision))

    async def find_revisions(self, session: r.SessionRow, revisions: Sequence[int]) -> list[r.RevisionRow]:
        return [row for one in revisions if (row := await self.find_revision(session.session_key, one)) is not None]

    async def find_turn(self, session: r.SessionRow, turn_id: str) -> r.RevisionRow | None:
        listed_key = listed(session.session_key, session.revision)
        return self._one(r.RevisionRow, "find_turn", (session.session_key, turn_id, listed_key))

    async def find_turns(self, session: r.SessionRow, turn_ids: Sequence[str]) -> list[r.RevisionRow]:
        return [row for one in turn_ids if (row := await self.find_turn(session, one)) is not None]

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
        dropped = self._values("drop_revisions", (session_key, below, limit))
        turn_ids = [turn_id for (turn_id,) in dropped if turn_id is not None]
        if turn_ids:
            self._run("drop_turn_ids", (session_key, json_list(turn_ids)))
        return len(dropped)

    async def read_ledger(self, session_key: int) -> list[r.UsageRow]:
        return self._all(r.UsageRow, "read_ledger", (session_key,))

    async def drop_session_content(self, session_key: int) -> tuple[int, int, int]:
        usage = self._run("drop_session_usage", (session_key,)) + self._run("drop_first_usage", (session_key,))
        work = self._run("drop_session_unsettled_batches", (session_key,))
        work += self._run("drop_session_settled_batches", (session_key,))
        self._run("drop_ready", (session_key,))
        self._run("drop_session_blocks", (session_key,))
        self._run("drop_session_labels", (session_key,))
        attachments = self._run("drop_session_attachments", (session_key,))
        return usage, work, attachments
