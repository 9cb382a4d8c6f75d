"""Tables of nodes and blobs. Nodes are found by id, or read along their parents or by key; blobs by hash."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import Base, columns_of, portions
from holdfast.columns import fitting, weight
from holdfast.errors import Corrupt
from holdfast.records.limits import LARGEST_INTEGER

POSITIONS = (1 << r.POSITION_BITS) - 1
"""The highest position that a node can have in its session."""

NO_PAYLOAD = b"null"
"""The payload of a vacuumed node."""

NODE_COLUMNS = len(r.NodeRow.__struct_fields__) - 1
"""The last field is the parent's id, which is not stored."""


class Graph(Base):
    """Nodes and blobs, shared by a family."""

    __slots__ = ()

    async def find_nodes(self, segments: Sequence[r.Segment], node_ids: Sequence[str]) -> list[r.NodeRow]:
        if not segments or not node_ids:
            return []
        family = await self._family(segments[0].session_key)
        return await self._all(r.NodeRow, "find_nodes", family, *places_of(segments), list(node_ids))

    async def read_path(self, leaf_key: int, last: int | None) -> list[r.NodeRow]:
        if last is not None and last <= 0:
            return []
        family = await self._family(leaf_key >> r.POSITION_BITS)
        most = LARGEST_INTEGER if last is None else last
        return proven_path(await self._all(r.NodeRow, "read_path", family, leaf_key, most))

    async def read_paths(self, leaf_keys: Sequence[int], last: int | None) -> list[r.NodeRow]:
        family = await self._family(leaf_keys[0] >> r.POSITION_BITS)
        return proven_path(await self._all(r.NodeRow, "read_paths", family, list(leaf_keys), last))

    async def read_nodes(
        self, segments: Sequence[r.Segment], *, kind: str | None, after: int | None, descending: bool, limit: int | None
    ) -> list[r.NodeRow]:
        found: list[r.NodeRow] = []
        left, room = (LARGEST_INTEGER, LARGEST_INTEGER) if limit is None else (limit, columns.PAGE_BYTES)
        # One range after the other: a join of all ranges would be read to its end and sorted before the limit applies.
        for segment in sorted(segments, key=_first_key_of, reverse=descending):
            first_key, last_key = segment.first_key, segment.last_key
            if after is not None:
                first_key, last_key = (
                    (first_key, min(last_key, after - 1)) if descending else (max(first_key, after + 1), last_key)
                )
            if left <= 0 or first_key > last_key:
                continue
            family = await self._family(segment.session_key)
            name = "read_nodes" if descending else "read_nodes+"
            page = await self._all(r.NodeRow, name, family, first_key, last_key, segment.epoch, kind, left, room)
            found += page
            left -= len(page)
            if limit is None:
                continue
            weights = [weight(msgspec.structs.astuple(row)) for row in found]
            if fitting(weights) < len(found):
                break
            # One row more than fits, if necessary from the next range, shows that another page follows.
            room = max(1, columns.PAGE_BYTES - sum(weights))
        return found

    async def read_nodes_by_id(
        self, segment: r.Segment, *, kind: str | None, first: str, before: str | None, descending: bool, limit: int
    ) -> list[r.NodeRow]:
        family = await self._family(segment.session_key)
        place = (segment.session_key, segment.epoch, segment.last_key)
        name = "read_nodes_by_id" if descending else "read_nodes_by_id+"
        return await self._all(r.NodeRow, name, family, *place, first, before, kind, limit, columns.PAGE_BYTES)

    async def count_nodes(self, epoch: int, first_key: int, last_key: int) -> int:
        family = await self._family(first_key >> r.POSITION_BITS)
        return await self._number("count_nodes", family, epoch, first_key, last_key)

    async def insert_nodes(self, rows: Sequence[r.NodeRow]) -> None:
        if rows:
            family = await self._family(rows[0].session_key)
            for portion in portions(rows):
                await self._run("insert_nodes", family, *columns_of(portion, NODE_COLUMNS))

    async def mark_nodes(self, node_keys: Sequence[int]) -> int:
        if not node_keys:
            return 0
        family = await self._family(node_keys[0] >> r.POSITION_BITS)
        return await self._run("mark_nodes", family, list(node_keys))

    async def revive_nodes(self, node_keys: Sequence[int]) -> int:
        family = await self._family(node_keys[0] >> r.POSITION_BITS)
        return await self._run("revive_nodes", family, list(node_keys))

    async def vacuum_nodes(self, session_key: int | None, limit: int) -> int:
        if not self._by_family:
            return await self._run("vacuum_nodes", limit, NO_PAYLOAD, session_key)
        vacuumed = 0
        for (family,) in await self._values("tombstoned_families", session_key, limit):
            vacuumed += await self._run("vacuum_nodes", limit - vacuumed, NO_PAYLOAD, session_key, family)
        return vacuumed

    async def count_tombstoned(self, session_key: int | None) -> int:
        return await self._number("count_tombstoned", session_key)

    async def node_epochs(self, session_key: int) -> list[int]:
        place = (session_key, await self._family(session_key)) if self._by_family else (session_key,)
        found = await self._numbers("node_epochs", *place)
        return [epoch for (epoch,) in found]

    async def drop_nodes(self, session_key: int, epoch: int, *, above: int, limit: int) -> int:
        base = session_key << r.POSITION_BITS
        family = await self._family(session_key)
        return await self._run("drop_nodes", family, session_key, base, epoch, base + above, POSITIONS, limit)

    async def load_blobs(self, family: int, hashes: Sequence[str]) -> list[r.BlobRow]:
        return await self._all(r.BlobRow, "load_blobs", family, list(hashes))

    async def hold_key_frames(self, family: int, hashes: Sequence[str]) -> frozenset[str]:
        return frozenset(hash for (hash,) in await self._values("hold_key_frames", family, list(hashes)))

    async def drop_unreferenced_blobs(self, family: int, *, limit: int, dry_run: bool) -> tuple[int, int]:
        await self._lock_family(family)
        found = await self._values("unreferenced_blobs", family, limit)
        if found and not dry_run:
            await self._run("drop_blobs", family, [hash for hash, _ in found])
        return len(found), sum(size for _, size in found)

    async def count_blobs(self, family: int) -> tuple[int, int, int]:
        await self._lock_family(family)
        [(revisions, hashes, blobs)] = await self._values("count_blobs", family)
        return revisions, hashes, blobs


def proven_path(path: list[r.NodeRow]) -> list[r.NodeRow]:
    """Return the path. Raises Corrupt unless every node's parent exists and is older."""
    for node in path:
        if node.parent_key is None:
            continue
        if node.parent_key >= node.node_key:
            raise Corrupt("nodes", str(node.node_key), f"its parent {node.parent_key} is not older than itself")
        if node.parent_id is None:
            raise Corrupt("nodes", str(node.node_key), f"its parent {node.parent_key} is missing")
    return path


def places_of(segments: Sequence[r.Segment]) -> tuple[list[int], list[int], list[int]]:
    """Return the segments as three arrays: sessions, epochs and last keys."""
    return (
        [segment.session_key for segment in segments],
        [segment.epoch for segment in segments],
        [segment.last_key for segment in segments],
    )


def _first_key_of(segment: r.Segment) -> int:
    return segment.first_key
