"""Every table can be walked by its key, and a row that cannot be read can be stepped over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from holdfast import inventory
from holdfast import rows as r
from holdfast.backends.sqlite.transaction.base import SMALLEST_INTEGER, Base, json_list
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
    r.RevisionRow: "revisions_with_keys",
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

    def _rows(self, kind: type[R], values: list[tuple[object, ...]]) -> list[R]:
        table, width = inventory.TABLES[kind]
        return [r.row_of(kind, row, table=table, key=row[:width]) for row in values]

    async def scan_rows(self, kind: type[R], *, after: Key | None, skip: int, limit: int) -> list[R]:
        """Rows of a table by key, beyond `after` (None: from the start), without the first `skip` of those."""
        name, smallest = WALKS[kind]
        start = smallest if after is None else dict(zip(smallest, after, strict=True))
        bindings = {**start, "inclusive": after is None, "skip": skip, "limit": limit}
        return self._rows(kind, self._values(name, bindings))

    async def find_rows(self, kind: type[R], keys: Sequence[Key]) -> list[R]:
        """Sessions, revisions, nodes or processes with these keys, in any order."""
        return self._rows(kind, self._values(FINDS[kind], (json_list(keys),)))

    async def present_keys(self, kind: type[r.Row], keys: Sequence[Key]) -> set[Key]:
        """Those of the keys under which there is a blob, an object, a process, an occurrence or a subscription."""
        return set(self._values(KEYS[kind], (json_list(keys),)))

    async def span(self, kind: type[r.Row], key: int | str) -> tuple[int, int, int]:
        """The least, the greatest and the number; zeros if there are none."""
        [(least, greatest, count)] = self._values(SPANS[kind], (key,))
        return least, greatest, count

    async def count_nodes(self, segment: r.Segment) -> int:
        """How many nodes of a segment are stored."""
        bindings = (segment.session_key, segment.epoch, segment.first_key, segment.last_key)
        return self._number("count_nodes", bindings)

    async def count_endings(self, process_id: str) -> int:
        """How many events of a process have a terminal state."""
        return self._number("count_endings", (process_id,))

    async def check_structures(self) -> list[str]:
        """What SQLite finds wrong with its pages and indexes, up to a hundred things."""
        return [problem for (problem,) in self._values("check_structures", ()) if problem != "ok"]
