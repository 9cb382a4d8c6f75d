"""Processes, events, grants and triggers in memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from holdfast import rows as r
from holdfast.backends.memory.queue import MemoryQueue
from holdfast.backends.memory.tables import Tables, starting_with
from holdfast.limit_rows import RunLimit
from holdfast.schedule_rows import MatchRow


class MemoryProcesses(MemoryQueue):
    """Implements `ports.ProcessTables` and `ports.GrantTables`."""

    tables: Tables

    async def find_process(self, process_id: str) -> r.ProcessRow | None:
        return self.tables.processes.get(process_id)

    async def insert_process(self, row: r.ProcessRow) -> None:
        self.tables.processes.put(row.process_id, row)

    async def save_process(self, row: r.ProcessRow) -> int:
        known = self.tables.processes.get(row.process_id) is not None
        if known:
            self.tables.processes.put(row.process_id, row)
        return int(known)

    async def list_processes(self, filter: r.ProcessFilter) -> list[r.ProcessRow]:
        found = self.tables.processes.scan(
            lambda row: (
                filter.status in (None, row.status)
                and filter.waiting in (None, row.waiting)
                and filter.definition_hash in (None, row.definition_hash)
                and filter.originator_session_id in (None, row.originator_session_id)
                and (filter.after is None or row.process_id > filter.after)
            )
        )
        return list(found)[: filter.limit]

    async def run_limits(self, kinds: Sequence[str] | None, now_ms: int) -> list[RunLimit]:
        found: list[RunLimit] = []
        for limit in self.tables.limits.scan(lambda row: kinds is None or row.kind in kinds):
            if limit.at_once is None:
                continue
            claimed = self.tables.processes.scan(partial(_is_claimed, limit.kind))
            leases = [self.tables.leases.get(("process", row.process_id)) for row in claimed]
            ends_ms = [lease.expires_at_ms for lease in leases if lease is not None and lease.is_live(now_ms)]
            found.append(RunLimit(limit.kind, limit.at_once, len(ends_ms), min(ends_ms, default=None)))
        return found

    async def first_claimable(
        self, kinds: Sequence[tuple[str, str | None]] | None, closed: Sequence[str] = ()
    ) -> tuple[str, int] | None:
        wanted = None if kinds is None else set(kinds)
        paused = {row.kind for row in self.tables.limits.scan(lambda row: row.paused > 0)}
        found = (
            (row.claimable_at_ms, row.process_id)
            for row in self.tables.processes.scan()
            if row.claimable_at_ms is not None
            and row.run_kind is not None
            and row.run_kind not in paused
            and row.run_kind not in closed
            and (wanted is None or not wanted.isdisjoint([(row.run_kind, None), (row.run_kind, row.run_version)]))
        )
        first = min(found, default=None)
        return None if first is None else (first[1], first[0])

    async def oldest_due_runs(self, now_ms: int, limit: int) -> list[tuple[str, int]]:
        oldest: dict[tuple[str | None, str | None], tuple[int, str]] = {}
        for row in self.tables.processes.scan():
            if row.claimable_at_ms is not None and row.claimable_at_ms <= now_ms:
                place, due = (row.run_kind, row.run_version), (row.claimable_at_ms, row.process_id)
                oldest[place] = min(due, oldest.get(place, due))
        return [(process_id, at_ms) for at_ms, process_id in sorted(oldest.values())[:limit]]

    async def put_off_run(self, process_id: str, claimable_at_ms: int) -> None:
        row = self.tables.processes.get(process_id)
        if row is not None:
            self.tables.processes.put(process_id, msgspec.structs.replace(row, claimable_at_ms=claimable_at_ms))

    async def list_ended_processes(self, after: tuple[int, str], limit: int) -> list[r.ProcessRow]:
        found = self.tables.processes.scan(
            lambda row: row.status != "running" and (row.updated_at_ms, row.process_id) > after
        )
        return sorted(found, key=lambda row: (row.updated_at_ms, row.process_id))[:limit]

    async def clear_wake_targets(self, session_id: str, now_ms: int) -> int:
        found = list(self.tables.processes.scan(lambda row: row.wake_session_id == session_id))
        for row in found:
            cleared = msgspec.structs.replace(row, wake_session_id=None, wake_frame_id=None, updated_at_ms=now_ms)
            self.tables.processes.put(row.process_id, cleared)
        return len(found)

    async def find_event(self, process_id: str, sequence: int) -> r.EventRow | None:
        return self.tables.events.get((process_id, sequence))

    async def find_replay(self, process_id: str, replay_key: str) -> r.EventRow | None:
        log = self.tables.events.between(*starting_with(process_id))
        return next((row for row in log if row.replay_key == replay_key), None)

    async def apply_event(self, write: r.EventWrite) -> r.EventWrite:
        event, process = write.event, write.process
        self.tables.events.put((event.process_id, event.sequence), event)
        await self.save_process(process)
        if event.terminal_state is not None:
            lease = await self.find_lease("process", process.process_id)
            if lease is not None:
                await self.save_lease(msgspec.structs.replace(lease, owner_id=None, token_hash=None))
        if write.batch is None:
            return write
        [batch] = await self.insert_batches([write.batch])
        return msgspec.structs.replace(write, batch=batch)

    async def find_replays(self, process_id: str, replay_keys: Sequence[str]) -> list[r.EventRow]:
        keys = frozenset(replay_keys)
        return [row for row in self.tables.events.between(*starting_with(process_id)) if row.replay_key in keys]

    async def append_events(self, events: Sequence[r.EventRow], process: r.ProcessRow) -> None:
        for event in events:
            self.tables.events.put((event.process_id, event.sequence), event)
        await self.save_process(process)

    async def list_events(self, filter: r.EventFilter) -> list[r.EventRow]:
        found = (
            row
            for row in self.tables.events.between(*starting_with(filter.process_id))
            if row.sequence > filter.after
            and filter.type in (None, row.type)
            and (not filter.pending_wakes or (row.wake is not None and not row.acked))
        )
        return list(found)[: filter.limit]

    async def recent_events(self, process_id: str, limit: int) -> list[r.EventRow]:
        return list(self.tables.events.between(*starting_with(process_id)))[-limit:]

    async def count_events(self, process_id: str, type: str, through: int) -> int:
        log = self.tables.events.between(*starting_with(process_id))
        return sum(1 for row in log if row.type == type and row.sequence <= through)

    async def ack_wake(self, process_id: str, sequence: int) -> int:
        row = self.tables.events.get((process_id, sequence))
        if row is None or row.wake is None:
            return 0
        self.tables.events.put((process_id, sequence), msgspec.structs.replace(row, acked=1))
        return 1

    async def drop_terminal_processes(
        self, process_ids: Sequence[str], *, updated_until_ms: int, dry_run: bool
    ) -> tuple[int, int]:
        rows = [self.tables.processes.get(process_id) for process_id in process_ids]
        ids = {
            row.process_id
            for row in rows
            if row is not None and row.status != "running" and row.updated_at_ms <= updated_until_ms
        }
        events = [key for key in self.tables.events.keys_between() if key[0] in ids]
        if not dry_run:
            for key in events:
                self.tables.events.drop(key)
            for grant in [key for key in self.tables.grants.keys_between() if key[2] in ids]:
                self.tables.grants.drop(grant)
            for process_id in ids:
                await self.drop_lease("process", process_id)
                self.tables.processes.drop(process_id)
        return len(ids), len(events)

    async def find_grant(self, session_id: str, frame_id: str, process_id: str) -> r.GrantRow | None:
        return self.tables.grants.get((session_id, frame_id, process_id))

    async def save_grant(self, row: r.GrantRow) -> None:
        self.tables.grants.put((row.session_id, row.frame_id, row.process_id), row)

    async def drop_grant(self, session_id: str, frame_id: str, process_id: str) -> int:
        return self.tables.grants.drop((session_id, frame_id, process_id))

    async def list_grants(
        self, session_id: str, frame_id: str, *, running_only: bool, after: str, limit: int
    ) -> list[tuple[r.GrantRow, r.ProcessRow]]:
        found: list[tuple[r.GrantRow, r.ProcessRow]] = []
        for grant in self.tables.grants.scan(
            lambda row: (row.session_id, row.frame_id) == (session_id, frame_id) and row.process_id > after
        ):
            process = self.tables.processes.get(grant.process_id)
            if process is not None and (process.status == "running" or not running_only):
                found.append((grant, process))
        return found[:limit]

    async def grants_of_process(
        self, process_id: str, *, after: tuple[str, str] | None, limit: int
    ) -> list[r.GrantRow]:
        found = self.tables.grants.scan(
            lambda row: row.process_id == process_id and (after is None or (row.session_id, row.frame_id) > after)
        )
        return list(found)[:limit]

    async def count_grants(self, session_id: str) -> list[tuple[str, str, int]]:
        held = {row.process_id for row in self.tables.grants.scan(lambda row: row.session_id == session_id)}
        others = [row.process_id for row in self.tables.grants.scan(lambda row: row.session_id != session_id)]
        counts: list[tuple[str, str, int]] = []
        for process_id in sorted(held):
            process = self.tables.processes.get(process_id)
            if process is not None:
                counts.append((process_id, process.status, others.count(process_id)))
        return counts

    async def drop_session_grants(self, session_id: str) -> int:
        return sum(self.tables.grants.drop(key) for key in self.tables.grants.keys_between(*starting_with(session_id)))


class MemoryTriggers:
    """Implements `ports.TriggerTables`."""

    tables: Tables

    async def insert_subscription(self, row: r.SubscriptionRow) -> r.SubscriptionRow:
        stored = msgspec.structs.replace(row, sequence=self.tables.next_number("subscription"))
        self.tables.subscriptions.put(stored.sequence, stored)
        return stored

    async def restore_subscription(self, row: r.SubscriptionRow) -> None:
        known = self.tables.settings.get("subscription") or 0
        self.tables.settings.put("subscription", max(known, row.sequence))
        self.tables.subscriptions.put(row.sequence, row)

    async def find_subscription(self, sequence: int) -> r.SubscriptionRow | None:
        return self.tables.subscriptions.get(sequence)

    async def find_subscription_key(
        self, session_id: str | None, frame_id: str | None, key: str
    ) -> r.SubscriptionRow | None:
        found = self.tables.subscriptions.scan(
            lambda row: (row.session_id, row.frame_id, row.key) == (session_id, frame_id, key) and row.enabled == 1
        )
        return next(found, None)

    async def save_subscription(self, row: r.SubscriptionRow) -> int:
        known = self.tables.subscriptions.get(row.sequence) is not None
        if known:
            self.tables.subscriptions.put(row.sequence, row)
        return int(known)

    async def list_subscriptions(self, filter: r.SubscriptionFilter) -> list[r.SubscriptionRow]:
        found = self.tables.subscriptions.scan(
            lambda row: (
                filter.session_id in (None, row.session_id)
                and (not filter.host_only or row.session_id is None)
                and filter.sequence in (None, row.sequence)
                and filter.name in (None, row.name)
                and filter.source_type in (None, row.source_type)
                and filter.source_key in (None, row.source_key)
                and filter.target_hash in (None, row.target_hash)
                and filter.enabled in (None, row.enabled)
                and (filter.after is None or row.sequence > filter.after)
            )
        )
        return list(found)[: filter.limit]

    async def matching_subscriptions(
        self, source_type: str, source_key: str, *, after: int, limit: int
    ) -> list[MatchRow]:
        filter = r.SubscriptionFilter(limit, source_type=source_type, source_key=source_key, enabled=1, after=after)
        return [MatchRow(row.sequence, row.run_kind) for row in await self.list_subscriptions(filter)]

    async def drop_session_subscriptions(self, session_id: str) -> int:
        sequences = {row.sequence for row in self.tables.subscriptions.scan(lambda row: row.session_id == session_id)}
        for key in [key for key in self.tables.deliveries.keys_between() if key[1] in sequences]:
            self.tables.deliveries.drop(key)
        return sum(self.tables.subscriptions.drop(sequence) for sequence in sequences)

    async def find_occurrence(self, occurrence_id: str) -> r.OccurrenceRow | None:
        return self.tables.occurrences.get(occurrence_id)

    async def list_occurrences(self, *, after: str, limit: int) -> list[r.OccurrenceRow]:
        return list(self.tables.occurrences.scan(lambda row: row.occurrence_id > after))[:limit]

    async def insert_occurrence(self, row: r.OccurrenceRow) -> None:
        self.tables.occurrences.put(row.occurrence_id, row)

    async def insert_deliveries(self, rows: Sequence[r.DeliveryRow]) -> list[r.DeliveryRow]:
        new: list[r.DeliveryRow] = []
        for row in rows:
            key = (row.occurrence_id, row.subscription_sequence)
            if self.tables.deliveries.get(key) is None:
                self.tables.deliveries.put(key, row)
                new.append(row)
        return new

    async def list_deliveries(self, occurrence_id: str, *, after: int, limit: int) -> list[r.DeliveryRow]:
        found = self.tables.deliveries.scan(
            lambda row: row.occurrence_id == occurrence_id and row.subscription_sequence > after
        )
        return list(found)[:limit]

    async def find_delivery(self, occurrence_id: str, subscription_sequence: int) -> r.DeliveryRow | None:
        return self.tables.deliveries.get((occurrence_id, subscription_sequence))

    async def find_process_delivery(self, process_id: str) -> r.DeliveryRow | None:
        return next(self.tables.deliveries.scan(lambda row: row.process_id == process_id), None)

    async def save_delivery(self, row: r.DeliveryRow) -> int:
        key = (row.occurrence_id, row.subscription_sequence)
        known = self.tables.deliveries.get(key) is not None
        if known:
            self.tables.deliveries.put(key, row)
        return int(known)

    async def list_undelivered(
        self,
        *,
        reserved_until_ms: int,
        runs_only: bool,
        after: tuple[int, str, int] | None,
        limit: int,
        session_id: str | None = None,
    ) -> list[r.DeliveryRow]:
        found = self.tables.deliveries.scan(
            lambda row: (
                row.state == "reserved"
                and row.reserved_at_ms <= reserved_until_ms
                and (row.run_kind is not None or not runs_only)
                and self.tables.processes.get(row.process_id) is None
                and (after is None or _place(row) > after)
                and (session_id is None or self._registrant(row) == session_id)
            )
        )
        return sorted(found, key=_place)[:limit]

    async def list_failed_deliveries(
        self, session_id: str | None, *, after: tuple[int, str, int] | None, limit: int
    ) -> list[r.DeliveryRow]:
        found = self.tables.deliveries.scan(
            lambda row: (
                row.state == "failed"
                and (after is None or _place(row) > after)
                and (session_id is None or self._registrant(row) == session_id)
            )
        )
        return sorted(found, key=_place)[:limit]

    def _registrant(self, row: r.DeliveryRow) -> str | None:
        """Return the session whose subscription a delivery belongs to."""
        subscription = self.tables.subscriptions.get(row.subscription_sequence)
        return None if subscription is None else subscription.session_id

    async def drop_occurrences(self, *, occurred_until_ms: int, limit: int, dry_run: bool) -> tuple[int, int]:
        open_ids = {row.occurrence_id for row in self.tables.deliveries.scan(lambda row: row.state == "reserved")}
        found = self.tables.occurrences.scan(
            lambda row: row.occurred_at_ms <= occurred_until_ms and row.occurrence_id not in open_ids
        )
        old = sorted(found, key=lambda row: (row.occurred_at_ms, row.occurrence_id))[:limit]
        ids = {row.occurrence_id for row in old}
        deliveries = [key for key in self.tables.deliveries.keys_between() if key[0] in ids]
        if not dry_run:
            for key in deliveries:
                self.tables.deliveries.drop(key)
            for occurrence_id in ids:
                self.tables.occurrences.drop(occurrence_id)
        return len(old), len(deliveries)


def _place(row: r.DeliveryRow) -> tuple[int, str, int]:
    return row.reserved_at_ms, row.occurrence_id, row.subscription_sequence


def _is_claimed(kind: str, row: r.ProcessRow) -> bool:
    return row.run_kind == kind and row.claim_fence > 0
