"""The tables of triggers: rows in, rows out, like all other tables of a database.

Every method is one trip, in the order that its first line says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast import rows as r
from holdfast.schedule_rows import MatchRow, ScheduleRow


class TriggerTables(Protocol):
    """Subscriptions, occurrences and deliveries."""

    async def insert_subscription(self, row: r.SubscriptionRow) -> r.SubscriptionRow:
        """Insert with a new sequence number (ascending, never reused). Return the stored row."""
        ...

    async def restore_subscription(self, row: r.SubscriptionRow) -> None:
        """Insert with the row's own sequence number, which is free. Later new numbers are greater."""
        ...

    async def find_subscription(self, sequence: int) -> r.SubscriptionRow | None:
        """Return one subscription."""
        ...

    async def find_subscription_key(
        self, session_id: str | None, frame_id: str | None, key: str
    ) -> r.SubscriptionRow | None:
        """Return the enabled subscription that exactly this registrant made under this key."""
        ...

    async def save_subscription(self, row: r.SubscriptionRow) -> int:
        """Overwrite. Return the count."""
        ...

    async def list_subscriptions(self, filter: r.SubscriptionFilter) -> list[r.SubscriptionRow]:
        """Return matching subscriptions by sequence."""
        ...

    async def matching_subscriptions(
        self, source_type: str, source_key: str, *, after: int, limit: int
    ) -> list[MatchRow]:
        """Return a source's enabled subscriptions by number, without bodies. A writer locks them."""
        ...

    async def drop_session_subscriptions(self, session_id: str) -> int:
        """Delete the subscriptions of any frame of a session, with their deliveries. Count the subscriptions."""
        ...

    async def find_occurrence(self, occurrence_id: str) -> r.OccurrenceRow | None:
        """Return one occurrence."""
        ...

    async def list_occurrences(self, *, after: str, limit: int) -> list[r.OccurrenceRow]:
        """Return occurrences by id, greater than `after`."""
        ...

    async def insert_occurrence(self, row: r.OccurrenceRow) -> None:
        """Insert."""
        ...

    async def insert_deliveries(self, rows: Sequence[r.DeliveryRow]) -> list[r.DeliveryRow]:
        """Insert those that are absent, and return only those."""
        ...

    async def list_deliveries(self, occurrence_id: str, *, after: int, limit: int) -> list[r.DeliveryRow]:
        """Return deliveries of an occurrence by the sequence of their subscription, greater than `after`."""
        ...

    async def find_delivery(self, occurrence_id: str, subscription_sequence: int) -> r.DeliveryRow | None:
        """Return one delivery."""
        ...

    async def find_process_delivery(self, process_id: str) -> r.DeliveryRow | None:
        """Return the delivery that starts this process."""
        ...

    async def save_delivery(self, row: r.DeliveryRow) -> int:
        """Overwrite. Return the count."""
        ...

    async def list_undelivered(
        self,
        *,
        reserved_until_ms: int,
        runs_only: bool,
        after: tuple[int, str, int] | None,
        limit: int,
        session_id: str | None = None,
    ) -> list[r.DeliveryRow]:
        """Return deliveries reserved up to the bound whose process does not exist: of runs, or of one session.

        They come by (reserved_at_ms, occurrence_id, subscription_sequence), beyond `after`. `session_id` names the
        session that subscribed, and is not passed with `runs_only`.
        """
        ...

    async def list_failed_deliveries(
        self, session_id: str | None, *, after: tuple[int, str, int] | None, limit: int
    ) -> list[r.DeliveryRow]:
        """Return failed deliveries in the same order, of the session that subscribed, or of all."""
        ...

    async def drop_occurrences(self, *, occurred_until_ms: int, limit: int, dry_run: bool) -> tuple[int, int]:
        """Delete, or only count, up to `limit` occurrences with their deliveries: (occurrences, deliveries).

        These are the ones with `occurred_at_ms <=` the bound and no delivery still reserved, by (occurred_at_ms, id).
        """
        ...


class ScheduleTables(Protocol):
    """Schedules."""

    async def find_schedule(self, name: str) -> ScheduleRow | None:
        """Return one schedule."""
        ...

    async def first_due_schedule(self) -> tuple[str, int] | None:
        """Return (name, `due_at_ms`) of the schedule with the least, by name among equals."""
        ...

    async def list_schedules(self, *, after: str, limit: int) -> list[ScheduleRow]:
        """Return schedules by name, greater than `after`."""
        ...

    async def failed_schedules(self, limit: int) -> list[str]:
        """Return the names of schedules whose last tick started nothing, by name."""
        ...

    async def insert_schedule(self, row: ScheduleRow) -> None:
        """Insert."""
        ...

    async def save_schedule(self, row: ScheduleRow, *, seen_ms: int) -> int:
        """Overwrite, if the stored row has this `seen_ms`. Return the count."""
        ...

    async def drop_schedule(self, name: str) -> int:
        """Delete. Return the count."""
        ...
