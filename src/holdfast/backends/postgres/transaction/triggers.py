"""Tables of triggers. A subscription has one delivery per occurrence, and each delivery one process."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import Base, columns_of
from holdfast.records.limits import LARGEST_INTEGER, SMALLEST_INTEGER
from holdfast.schedule_rows import MatchRow

DELIVERY_COLUMNS = len(r.DeliveryRow.__struct_fields__)


class Triggers(Base):
    """Subscriptions, occurrences and deliveries."""

    __slots__ = ()

    async def insert_subscription(self, row: r.SubscriptionRow) -> r.SubscriptionRow:
        stored = await self._one(r.SubscriptionRow, "insert_subscription", *msgspec.structs.astuple(row)[1:])
        assert stored is not None
        return stored

    async def restore_subscription(self, row: r.SubscriptionRow) -> None:
        # Drawn and not set: that needs no further privilege than an insert, and never moves the sequence back.
        drawn = await self._number("draw_subscription_sequences", 1)
        if drawn < row.sequence:
            await self._number("draw_subscription_sequences", row.sequence - drawn)
        await self._store("restore_subscription", row)

    async def find_subscription(self, sequence: int) -> r.SubscriptionRow | None:
        return await self._one(r.SubscriptionRow, self._locking("find_subscription"), sequence)

    async def find_subscription_key(
        self, session_id: str | None, frame_id: str | None, key: str
    ) -> r.SubscriptionRow | None:
        name = self._locking("find_subscription_key")
        return await self._one(r.SubscriptionRow, name, session_id, frame_id, key)

    async def save_subscription(self, row: r.SubscriptionRow) -> int:
        return await self._store("save_subscription", row)

    async def list_subscriptions(self, filter: r.SubscriptionFilter) -> list[r.SubscriptionRow]:
        after, until = filter.after or 0, LARGEST_INTEGER
        if filter.sequence is not None:
            after, until = max(after, filter.sequence - 1), filter.sequence
        if filter.source_type is not None and filter.source_key is not None:
            name = self._locking("list_subscriptions_of_source")
        else:
            name = "list_subscriptions" if filter.session_id is None else "list_subscriptions_of_session"
        return await self._all(
            r.SubscriptionRow,
            name,
            after,
            until,
            filter.host_only,
            filter.session_id,
            filter.name,
            filter.source_type,
            filter.source_key,
            filter.target_hash,
            filter.enabled,
            filter.limit,
            columns.PAGE_BYTES,
        )

    async def matching_subscriptions(
        self, source_type: str, source_key: str, *, after: int, limit: int
    ) -> list[MatchRow]:
        return await self._all(MatchRow, "share_matching_subscriptions", source_type, source_key, after, limit)

    async def drop_session_subscriptions(self, session_id: str) -> int:
        sequences = [sequence for (sequence,) in await self._values("lock_session_subscriptions", session_id)]
        if not sequences:
            return 0
        await self._run("drop_session_deliveries", sequences)
        return await self._run("drop_session_subscriptions", sequences)

    async def find_occurrence(self, occurrence_id: str) -> r.OccurrenceRow | None:
        name = self._locking("find_occurrence")
        return await self._one(r.OccurrenceRow, name, occurrence_id)

    async def list_occurrences(self, *, after: str, limit: int) -> list[r.OccurrenceRow]:
        return await self._all(r.OccurrenceRow, "list_occurrences", after, limit, columns.PAGE_BYTES)

    async def insert_occurrence(self, row: r.OccurrenceRow) -> None:
        await self._store("insert_occurrence", row)

    async def insert_deliveries(self, rows: Sequence[r.DeliveryRow]) -> list[r.DeliveryRow]:
        if not rows:
            return []
        return await self._all(r.DeliveryRow, "insert_deliveries", *columns_of(rows, DELIVERY_COLUMNS))

    async def list_deliveries(self, occurrence_id: str, *, after: int, limit: int) -> list[r.DeliveryRow]:
        return await self._all(r.DeliveryRow, "list_deliveries", occurrence_id, after, limit)

    async def find_delivery(self, occurrence_id: str, subscription_sequence: int) -> r.DeliveryRow | None:
        name = self._locking("find_delivery")
        return await self._one(r.DeliveryRow, name, occurrence_id, subscription_sequence)

    async def find_process_delivery(self, process_id: str) -> r.DeliveryRow | None:
        name = self._locking("find_process_delivery")
        return await self._one(r.DeliveryRow, name, process_id)

    async def save_delivery(self, row: r.DeliveryRow) -> int:
        return await self._store("save_delivery", row)

    async def list_undelivered(
        self,
        *,
        reserved_until_ms: int,
        runs_only: bool,
        after: tuple[int, str, int] | None,
        limit: int,
        session_id: str | None = None,
    ) -> list[r.DeliveryRow]:
        place = after or (SMALLEST_INTEGER, "", 0)
        if runs_only:
            return await self._all(r.DeliveryRow, "list_undelivered+runs+", reserved_until_ms, *place, limit)
        return await self._all(
            r.DeliveryRow, "list_undelivered+of_session+", reserved_until_ms, *place, limit, session_id
        )

    async def list_failed_deliveries(
        self, session_id: str | None, *, after: tuple[int, str, int] | None, limit: int
    ) -> list[r.DeliveryRow]:
        place = after or (SMALLEST_INTEGER, "", 0)
        return await self._all(r.DeliveryRow, "list_failed_deliveries", *place, limit, session_id)

    async def drop_occurrences(self, *, occurred_until_ms: int, limit: int, dry_run: bool) -> tuple[int, int]:
        name = "finished_occurrences+" if dry_run else "finished_occurrences"
        found = [occurrence_id for (occurrence_id,) in await self._values(name, occurred_until_ms, limit)]
        if not found:
            return 0, 0
        if dry_run:
            return len(found), await self._number("count_deliveries_of_occurrences", found)
        finished = [occurrence_id for (occurrence_id,) in await self._values("still_finished_occurrences", found)]
        deliveries = await self._run("drop_deliveries_of_occurrences", finished)
        return await self._run("drop_occurrences", finished), deliveries
