"""Schedules in memory."""

from __future__ import annotations

from holdfast.backends.memory.tables import Tables
from holdfast.schedule_rows import ScheduleRow


class MemorySchedules:
    """Implements `ports.ScheduleTables`."""

    tables: Tables

    async def find_schedule(self, name: str) -> ScheduleRow | None:
        return self.tables.schedules.get(name)

    async def first_due_schedule(self) -> tuple[str, int] | None:
        due = [(row.due_at_ms, row.name) for row in self.tables.schedules.scan() if row.due_at_ms is not None]
        return (min(due)[1], min(due)[0]) if due else None

    async def list_schedules(self, *, after: str, limit: int) -> list[ScheduleRow]:
        return list(self.tables.schedules.scan(lambda row: row.name > after))[:limit]

    async def failed_schedules(self, limit: int) -> list[str]:
        return [row.name for row in self.tables.schedules.scan(lambda row: row.failure is not None)][:limit]

    async def insert_schedule(self, row: ScheduleRow) -> None:
        self.tables.schedules.put(row.name, row)

    async def save_schedule(self, row: ScheduleRow, *, seen_ms: int) -> int:
        stored = self.tables.schedules.get(row.name)
        if stored is None or stored.seen_ms != seen_ms:
            return 0
        self.tables.schedules.put(row.name, row)
        return 1

    async def drop_schedule(self, name: str) -> int:
        return self.tables.schedules.drop(name)
