"""Artifacts are kept by kind and ref; counts are counted when they are asked for."""

from __future__ import annotations

from holdfast import rows as r
from holdfast.backends.postgres.link import Values
from holdfast.backends.postgres.transaction.base import Base

CENSUS = (
    "sessions", "deleted_sessions", "revisions", "nodes", "blobs", "blob_bytes", "pending_work", "claimed_work",
    "settled_work", "attachments", "attachment_bytes", "processes", "running_processes", "events", "grants",
    "live_leases", "subscriptions", "occurrences", "undelivered", "artifacts", "oldest_pending_work_at_ms",
)  # fmt: skip
"""The columns of the census, in their order."""

DUMP = "dump_"


class Housekeeping(Base):
    """Artifacts and counts."""

    __slots__ = ()

    async def find_artifact(self, kind: str, ref: str) -> r.ArtifactRow | None:
        return await self._one(r.ArtifactRow, "find_artifact", kind, ref)

    async def list_artifacts(self, *, after: tuple[str, str], limit: int) -> list[r.ArtifactHead]:
        return await self._all(r.ArtifactHead, "list_artifacts", *after, limit)

    async def save_artifact(self, row: r.ArtifactRow) -> None:
        await self._store("save_artifact", row)

    async def drop_artifact(self, kind: str, ref: str) -> int:
        return await self._run("drop_artifact", kind, ref)

    async def census(self, now_ms: int) -> dict[str, int | None]:
        [counts] = await self._values("census", now_ms)
        return {
            "schema_version": await self._number("find_version"),
            **dict(zip(CENSUS, counts, strict=True)),
            "bytes_on_disk": await self._number("bytes_on_disk", self._schema),
        }

    async def identify(self) -> Values:
        """Which schema of which database of which server this is."""
        [found] = await self._values("identify", self._schema)
        return tuple(found)

    async def dump(self) -> dict[str, list[Values]]:
        """Every row of every table, by table."""
        return {
            name.removeprefix(DUMP): [tuple(values) for values in await self._values(name)]
            for name in self._link.texts
            if name.startswith(DUMP)
        }
