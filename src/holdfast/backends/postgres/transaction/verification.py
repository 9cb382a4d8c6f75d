"""Every table can be walked by its key, and a row that cannot be read can be stepped over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from holdfast import inventory
from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import SMALLEST_INTEGER, Base
from holdfast.inventory import Key

R = TypeVar("R", bound=r.Row)

WALKS: Final[dict[type[r.Row], tuple[str, dict[str, int | str]]]] = {
    r.SessionRow: ("walk_sessions", {"session_key": SMALLEST_INTEGER}),
    r.RevisionRow: ("walk_revisions", {"session_key": SMALLEST_INTEGER, "revision": SMALLEST_INTEGER}),
    r.NodeRow: ("walk_nodes", {"node_key": SMALLEST_INTEGER}),
    inventory.StoredUsage: ("walk_usage", {"session_key": SMALLEST_INTEGER, "source": "", "model": ""}),
    inventory.StoredBlob: ("walk_blobs", {"family": SMALLEST_INTEGER, "hash": ""}),
    r.BatchRow: ("walk_work", {"enqueue_seq": SMALLEST_INTEGER}),
    r.LeaseRow: ("walk_leases", {"kind": "", "resource": ""}),
    r.AttachmentRow: ("walk_attachments", {"session_key": SMALLEST_INTEGER, "attachment_id": ""}),
    inventory.StoredObject: ("walk_attachment_objects", {"family": SMALLEST_INTEGER, "attachment_id": ""}),
    inventory.DoomedObject: ("walk_doomed_objects", {"family": SMALLEST_INTEGER, "attachment_id": ""}),
    r.ProcessRow: ("walk_processes", {"process_id": ""}),
    r.EventRow: ("walk_events", {"process_id": "", "sequence": SMALLEST_INTEGER}),
    r.GrantRow: ("walk_grants", {"session_id": "", "frame_id": "", "process_id": ""}),
    r.SubscriptionRow: ("walk_subscriptions", {"sequence": SMALLEST_INTEGER}),
    r.OccurrenceRow: ("walk_occurrences", {"occurrence_id": ""}),
    r.DeliveryRow: ("walk_deliveries", {"occurrence_id": "", "subscription_sequence": SMALLEST_INTEGER}),
    r.ArtifactRow: ("walk_artifacts", {"kind": "", "ref": ""}),
    inventory.Setting: ("walk_settings", {"name": ""}),
}
"""How each table is walked, and the smallest key that it can have."""

FINDS: Final[dict[type[r.Row], str]] = {
    r.SessionRow: "sessions_with_keys",
    r.NodeRow: "nodes_with_keys",
    r.ProcessRow: "processes_with_keys",
}
KEYS: Final[dict[type[r.Row], str]] = {
    inventory.StoredBlob: "keys_of_blobs",
    inventory.StoredObject: "keys_of_attachment_objects",
    r.ProcessRow: "keys_of_processes",
    r.SubscriptionRow: "keys_of_subscriptions",
    r.OccurrenceRow: "keys_of_occurrences",
}
SPANS: Final[dict[type[r.Row], str]] = {
    r.SessionRow: "span_of_incarnations",
    r.RevisionRow: "span_of_revisions",
    r.NodeRow: "span_of_nodes",
    r.EventRow: "span_of_events",
}


class Verification(Base):
    """Everything, to be read and not to be trusted."""

    __slots__ = ()

    def _rows(self, kind: type[R], values: Sequence[Sequence[Any]]) -> list[R]:
        table, width = inventory.TABLES[kind]
        return [r.row_of(kind, tuple(row), table=table, key=tuple(row)[:width]) for row in values]

    async def scan_rows(self, kind: type[R], *, after: Key | None, skip: int, limit: int) -> list[R]:
        name, smallest = WALKS[kind]
        start = tuple(smallest.values()) if after is None else after
        return self._rows(kind, await self._values(name, *start, after is None, skip, limit))

    async def find_rows(self, kind: type[R], keys: Sequence[Key]) -> list[R]:
        bindings: list[list[Any]] = [[key for (key,) in keys]]
        if kind is r.NodeRow:
            families = await self._families_of(key >> r.POSITION_BITS for key in bindings[0])
            bindings.append(sorted(set(families.values())))
        return self._rows(kind, await self._values(FINDS[kind], *bindings))

    async def present_keys(self, kind: type[r.Row], keys: Sequence[Key]) -> set[Key]:
        columns = [list(column) for column in zip(*keys, strict=True)]
        return {tuple(row) for row in await self._values(KEYS[kind], *columns)} if columns else set()

    async def span(self, kind: type[r.Row], key: int | str) -> tuple[int, int, int]:
        bindings: list[int | str] = [key]
        if kind in (r.RevisionRow, r.NodeRow):
            bindings.append(await self._family(int(key)))
        [(least, greatest, count)] = await self._values(SPANS[kind], *bindings)
        return least, greatest, count

    async def count_nodes(self, segment: r.Segment) -> int:
        family = await self._family(segment.session_key)
        return await self._number("count_nodes", family, segment.epoch, segment.first_key, segment.last_key)

    async def count_endings(self, process_id: str) -> int:
        return await self._number("count_endings", process_id)

    async def check_structures(self) -> list[str]:
        """Nothing: PostgreSQL checks its pages and indexes with tools of its own (checksums, amcheck)."""
        return []
