"""The table of live workers that a database must provide, and the search for what one holds. See `tables`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.worker_rows import WorkerRow


class WorkerTables(Protocol):
    """Workers."""

    async def find_worker(self, worker_id: str) -> WorkerRow | None:
        """Return one worker."""
        ...

    async def save_worker(self, row: WorkerRow) -> None:
        """Insert or overwrite."""
        ...

    async def drop_worker(self, worker_id: str) -> int:
        """Delete. Return the count."""
        ...

    async def drop_expired_workers(self, until_ms: int) -> int:
        """Delete the workers that expired until then. Return the count."""
        ...

    async def list_workers(self, alive_at_ms: int, *, after: str, limit: int) -> list[WorkerRow]:
        """Return the workers that expire later than that, by id, greater than `after`."""
        ...

    async def expired_workers(self, worker_ids: Sequence[str], now_ms: int) -> list[str]:
        """Return those of these workers whose last report has expired, by id."""
        ...

    async def holders(self, now_ms: int, *, after: str, limit: int) -> list[str]:
        """Return the owners of live claims and live leases, by id, greater than `after`."""
        ...

    async def claims_of_owner(self, owner_id: str, now_ms: int, limit: int) -> list[tuple[int, str]]:
        """Return session key and id of the batches under live claims of an owner, by session key and sequence."""
        ...

    async def leases_of_owner(self, kind: str, owner_id: str, now_ms: int, limit: int) -> list[str]:
        """Return the resources of this kind on which an owner holds a live lease."""
        ...
