"""Tables of triggers. A subscription has one delivery per occurrence, and each delivery one process."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.sqlite.transaction.base import Base, json_list
from holdfast.records.limits import LARGEST_INTEGER, SMALLEST_INTEGER
from holdfast.schedule_rows import MatchRow


class Triggers(Base):
    """Subscriptions, occurrences and deliveries."""

    __slots__ = ()

    async def insert_subscription(self, row: r.SubscriptionRow) -> r.SubscriptionRow:
        [stored] = self._store_all(r.SubscriptionRow, "insert_subscription", [row])
        return stored

    async def restore_subscription(self, row: r.SubscriptionRow) -> None:
        """Insert with the row's own sequence number. AUTOINCREMENT continues above it."""
        self._store("restore_subscription", row)

    async def find_subscription(self, sequence: int) -> r.SubscriptionRow | None:
        return self._one(r.SubscriptionRow, "find_subscription", (sequence,))

    async def find_subscription_key(
        self, session_id: str | None, frame_id: str | None, key: str
    ) -> r.SubscriptionRow | None:
        return self._one(r.SubscriptionRow, "find_subscription_key", (session_id, frame_id, key))

    async def save_subscription(self, row: r.SubscriptionRow) -> int:
        return self._store("save_subscription", row)

    async def list_subscriptions(self, filter: r.SubscriptionFilter) -> list[r.SubscriptionRow]:
        after, until = filter.after or 0, LARGEST_INTEGER
        if filter.sequence is not None:
            after, until = max(after, filter.sequence - 1), filter.sequence
        bindings = msgspec.structs.asdict(filter) | {
            "after": after,
            "until": until,
            "host_only": int(filter.host_only),
        }
        if filter.source_type is not None and filter.source_key is not None:
            name = "list_subscriptions_of_source"
        else:
            name = "list_subscriptions" if filter.session_id is None else "list_subscriptions_of_session"
        return self._page(r.SubscriptionRow, name, bindings)

    async def matching_subscriptions(
        self, source_type: str, source_key: str, *, after: int, limit: int
    ) -> list[MatchRow]:
        return self._all(MatchRow, "matching_subscriptions", (source_type, source_key, after, limit))

    async def drop_session_subscriptions(self, session_id: str) -> int:
        self._run("drop_session_deliveries", (session_id,))
        return self._run("drop_session_subscriptions", (session_id,))

    async def find_occurrence(self, occurrence_id: str) -> r.OccurrenceRow | None:
        return self._one(r.OccurrenceRow, "find_occurrence", (occurrence_id,))

    async def list_occurrences(self, *, after: str, limit: int) -> list[r.OccurrenceRow]:
        return self._page(r.OccurrenceRow, "list_occurrences", (after, limit))

    async def insert_occurrence(self, row: r.OccurrenceRow) -> None:
        self._store("insert_occurrence", row)

    async def insert_deliveries(self, rows: Sequence[r.DeliveryRow]) -> list[r.DeliveryRow]:
        return self._store_all(r.DeliveryRow, "insert_delivery", rows)

    async def list_deliveries(self, occurrence_id: str, *, after: int, limit: int) -> list[r.DeliveryRow]:
        return self._all(r.DeliveryRow, "list_deliveries", (occurrence_id, after, limit))

    async def find_delivery(self, occurrence_id: str, subscription_sequence: int) -> r.DeliveryRow | None:
        return self._one(r.DeliveryRow, "find_delivery", (occurrence_id, subscription_sequence))

    async def find_process_delivery(self, process_id: str) -> r.DeliveryRow | None:
        return self._one(r.DeliveryRow, "find_process_delivery", (process_id,))

    async def save_delivery(self, row: r.DeliveryRow) -> int:
        return self._store("save_delivery", row)

    async def list_undelivered(
        self,
        *,
        reserved_until_ms: int,
        runs_only: bool,
        after: tuple[int, str, int] | None,
        limit: int,
        session_id: str | None = None,
    ) -> list[r.DeliveryRow]:
        after_ms, after_id, after_sequence = after or (SMALLEST_INTEGER, "", 0)
        bindings = {
            "reserved_until_ms": reserved_until_ms,
            "after_ms": after_ms,
            "after_id": after_id,
            "after_sequence": after_sequence,
            "limit": limit,
        }
        if runs_only:
            return self._all(r.DeliveryRow, "list_undelivered_runs", bindings)
        return self._all(r.DeliveryRow, "list_undelivered", {**bindings, "session_id": session_id})

    async def list_failed_deliveries(
        self, session_id: str | None, *, after: tuple[int, str, int] | None, limit: int
    ) -> list[r.DeliveryRow]:
        after_ms, after_id, after_sequence = after or (SMALLEST_INTEGER, "", 0)
        bindings = {
            "after_ms": after_ms,
            "after_id": after_id,
            "after_sequence": after_sequence,
            "limit": limit,
            "session_id": session_id,
        }
        return self._all(r.DeliveryRow, "list_failed_deliveries", bindings)

    async def drop_occurrences(self, *, occurred_until_ms: int, limit: int, dry_run: bool) -> tuple[int, int]:
        found = self._values("finished_occurrences", (occurred_until_ms, limit))
        listed = json_list([occurrence_id for (occurrence_id,) in found])
        if not found:
            return 0, 0
        if dry_run:
            return len(found), self._number("count_deliveries_of_occurrences", (listed,))
        deliveries = self._run("drop_deliveries_of_occurrences", (listed,))
        return self._run("drop_occurrences", (listed,)), deliveries
