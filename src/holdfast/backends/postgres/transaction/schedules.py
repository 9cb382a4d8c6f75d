"""The table of schedules. A writer locks the schedule that it finds, and reads the clock behind the lock."""

from __future__ import annotations

import msgspec

from holdfast import columns
from holdfast.backends.postgres.transaction.base import Base
from holdfast.schedule_rows import ScheduleRow


class Schedules(Base):
    """Schedules by name."""

    __slots__ = ()

    async def find_schedule(self, name: str) -> ScheduleRow | None:
        return await self._locked(ScheduleRow, "find_schedule", name)

    async def first_due_schedule(self) -> tuple[str, int] | None:
        found = await self._values("first_due_schedule")
        return (str(found[0][0]), int(found[0][1])) if found else None

    async def list_schedules(self, *, after: str, limit: int) -> list[ScheduleRow]:
        return await self._all(ScheduleRow, "list_schedules", after, limit, columns.PAGE_BYTES)

    async def failed_schedules(self, limit: int) -> list[str]:
        return [name for (name,) in await self._values("failed_schedules", limit)]

    async def insert_schedule(self, row: ScheduleRow) -> None:
        await self._store("insert_schedule", row)

    async def save_schedule(self, row: ScheduleRow, *, seen_ms: int) -> int:
        return await self._run("save_schedule", *msgspec.structs.astuple(row), seen_ms)

    async def drop_schedule(self, name: str) -> int:
        return await self._run("drop_schedule", name)
