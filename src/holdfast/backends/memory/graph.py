"""Nodes, blobs and the turn commit in memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.memory.attachments import MemoryAttachments
from holdfast.backends.memory.queue import MemoryQueue
from holdfast.backends.memory.tables import SCAN_WEIGHT, Tables, starting_with
from holdfast.loop_budget import charge_rows
from holdfast.ports.tables import read_each_path


class MemoryGraph(MemoryQueue, MemoryAttachments):
    """Implements `ports.GraphTables`."""

    tables: Tables

    async def load_commit_facts(self, query: r.CommitQuery) -> r.CommitFacts:
        session = query.session
        revisions = self.tables.revisions.between(*starting_with(session.session_key))
        turns = (row for row in revisions if row.turn_id == query.turn_id)
        return r.CommitFacts(
            head=self.tables.revisions.get((session.session_key, session.revision)),
            turn=None if query.turn_id is None else next(turns, None),
            nodes=tuple(await self.find_nodes(query.segments, query.node_ids)),
            hashes=frozenset(
                hash for hash in query.hashes if self.tables.blobs.get((session.family, hash)) is not None
            ),
            batches=_without_payloads(await self.find_batches(session.session_key, query.batch_ids)),
            sources=_without_payloads(await self.find_sources(query.sources)),
            attachment_ids=frozenset(
                attachment_id
                for attachment_id in query.attachment_ids
                if (row := self.tables.attachments.get((session.session_key, attachment_id))) is not None
                and row.stored_in is not None
            ),
            lease=self.tables.leases.get(("session", str(session.session_key))) if query.with_lease else None,
        )

    async def apply_commit(self, plan: r.CommitPlan, now_ms: int) -> None:
        session_key = plan.session.session_key
        self.tables.sessions.put(session_key, plan.session)
        self.tables.revisions.put((session_key, plan.revision.revision), plan.revision)
        await self.insert_nodes(plan.nodes)
        for blob in plan.blobs:
            if self.tables.blobs.get((plan.session.family, blob.hash)) is None:
                self.tables.blobs.put((plan.session.family, blob.hash), blob)
        for usage in plan.usage:
            self._add_usage(session_key, usage)
        settled = {"settled_state": "completed", "settled_at_ms": now_ms, "settled_revision": plan.session.revision}
        for row in list(self.tables.batches.scan(lambda row: row.enqueue_seq in plan.completed_seqs)):
            self.tables.batches.put(row.enqueue_seq, msgspec.structs.replace(row, **settled))
        await self.stamp_attachments(session_key, plan.attachment_ids, now_ms)
        await self.insert_batches(plan.enqueues)

    def _add_usage(self, session_key: int, usage: r.UsageRow) -> None:
        place = (session_key, usage.source, usage.model)
        before = self.tables.usage.get(place)
        if before is not None:
            usage = r.UsageRow(
                source=usage.source,
                model=usage.model,
                input_tokens=before.input_tokens + usage.input_tokens,
                output_tokens=before.output_tokens + usage.output_tokens,
                cached_input_tokens=before.cached_input_tokens + usage.cached_input_tokens,
                reasoning_tokens=before.reasoning_tokens + usage.reasoning_tokens,
                place=before.place,
            )
        self.tables.usage.put(place, usage)

    def _with_parent(self, row: r.NodeRow) -> r.NodeRow:
        parent = None if row.parent_key is None else self.tables.nodes.get(row.parent_key)
        return msgspec.structs.replace(row, parent_id=None if parent is None else parent.node_id)

    def _in_segments(self, segments: Sequence[r.Segment]) -> list[r.NodeRow]:
        found = [
            row
            for segment in segments
            for row in self.tables.nodes.between(segment.first_key, segment.last_key)
            if row.epoch == segment.epoch
        ]
        return sorted(found, key=lambda row: row.node_key)

    def _written_by(self, session_key: int) -> list[r.NodeRow]:
        first = session_key << r.POSITION_BITS
        return list(self.tables.nodes.between(first, first + (1 << r.POSITION_BITS) - 1))

    async def find_nodes(self, segments: Sequence[r.Segment], node_ids: Sequence[str]) -> list[r.NodeRow]:
        wanted = set(node_ids)
        return [self._with_parent(row) for row in self._in_segments(segments) if row.node_id in wanted]

    async def read_path(self, leaf_key: int, last: int | None) -> list[r.NodeRow]:
        path: list[r.NodeRow] = []
        node = self.tables.nodes.get(leaf_key)
        while node is not None and node.mark == r.LIVE and (last is None or len(path) < last):
            charge_rows(SCAN_WEIGHT)
            path.append(self._with_parent(node))
            node = None if node.parent_key is None else self.tables.nodes.get(node.parent_key)
        return path

    async def read_paths(self, leaf_keys: Sequence[int], last: int | None) -> list[r.NodeRow]:
        return await read_each_path(self.read_path, leaf_keys, last)

    async def read_nodes(
        self, segments: Sequence[r.Segment], *, kind: str | None, after: int | None, descending: bool, limit: int | None
    ) -> list[r.NodeRow]:
        found = [row for row in self._in_segments(segments) if row.mark == r.LIVE and kind in (None, row.kind)]
        if descending:
            found.reverse()
        if after is not None:
            found = [row for row in found if (row.node_key < after if descending else row.node_key > after)]
        return [self._with_parent(row) for row in found[:limit]]

    async def read_nodes_by_id(
        self, segment: r.Segment, *, kind: str | None, first: str, before: str | None, descending: bool, limit: int
    ) -> list[r.NodeRow]:
        found = [
            row
            for row in self._in_segments([segment])
            if row.mark == r.LIVE
            and kind in (None, row.kind)
            and row.node_id >= first
            and (before is None or row.node_id < before)
        ]
        found.sort(key=lambda row: row.node_id, reverse=descending)
        return [self._with_parent(row) for row in found[:limit]]

    async def count_nodes(self, epoch: int, first_key: int, last_key: int) -> int:
        return sum(row.epoch == epoch for row in self.tables.nodes.between(first_key, last_key))

    async def insert_nodes(self, rows: Sequence[r.NodeRow]) -> None:
        for row in rows:
            self.tables.nodes.put(row.node_key, msgspec.structs.replace(row, parent_id=None))

    async def mark_nodes(self, node_keys: Sequence[int]) -> int:
        return self._change_marks(node_keys, r.LIVE, r.TOMBSTONED)

    async def revive_nodes(self, node_keys: Sequence[int]) -> int:
        return self._change_marks(node_keys, r.TOMBSTONED, r.LIVE)

    def _change_marks(self, node_keys: Sequence[int], before: int, after: int) -> int:
        changed = 0
        for key in node_keys:
            row = self.tables.nodes.get(key)
            if row is not None and row.mark == before:
                self.tables.nodes.put(key, msgspec.structs.replace(row, mark=after))
                changed += 1
        return changed

    async def count_tombstoned(self, session_key: int | None) -> int:
        found = self.tables.nodes.scan(lambda row: row.mark == r.TOMBSTONED)
        return sum(session_key in (None, row.session_key) for row in found)

    async def vacuum_nodes(self, session_key: int | None, limit: int) -> int:
        found = self.tables.nodes.scan(
            lambda row: row.mark == r.TOMBSTONED and (session_key is None or row.session_key == session_key)
        )
        rows = list(found)[:limit]
        for row in rows:
            emptied = msgspec.structs.replace(row, mark=r.VACUUMED, payload=b"null", caused_by=None)
            self.tables.nodes.put(row.node_key, emptied)
        return len(rows)

    async def node_epochs(self, session_key: int) -> list[int]:
        return sorted({row.epoch for row in self._written_by(session_key)})

    async def drop_nodes(self, session_key: int, epoch: int, *, above: int, limit: int) -> int:
        first = (session_key << r.POSITION_BITS) + above
        found = self.tables.nodes.scan(
            lambda row: row.session_key == session_key and row.epoch == epoch and row.node_key > first
        )
        return sum(self.tables.nodes.drop(row.node_key) for row in list(found)[::-1][:limit])

    async def load_blobs(self, family: int, hashes: Sequence[str]) -> list[r.BlobRow]:
        found = {hash: row for hash in hashes if (row := self.tables.blobs.get((family, hash))) is not None}
        for base_hash in {row.base_hash for row in found.values() if row.base_hash is not None} - found.keys():
            if (base := self.tables.blobs.get((family, base_hash))) is not None:
                found[base_hash] = base
        return list(found.values())

    async def hold_key_frames(self, family: int, hashes: Sequence[str]) -> frozenset[str]:
        found = ((hash, self.tables.blobs.get((family, hash))) for hash in hashes)
        return frozenset(hash for hash, row in found if row is not None and row.base_hash is None)

    def _listed_hashes(self, family: int) -> set[str]:
        return {
            hash
            for row in self.tables.revisions.scan(lambda row: row.family == family)
            for hash in msgspec.json.decode(row.refs, type=list[str])
        }

    async def drop_unreferenced_blobs(self, family: int, *, limit: int, dry_run: bool) -> tuple[int, int]:
        listed = self._listed_hashes(family)
        rows = list(self.tables.blobs.between(*starting_with(family)))
        needed = listed | {row.base_hash for row in rows if row.hash in listed}
        # Deltas first, so that none is ever without its key frame.
        found = sorted(
            (row for row in rows if row.hash not in needed), key=lambda row: (row.base_hash is None, row.hash)
        )
        for row in [] if dry_run else found[:limit]:
            self.tables.blobs.drop((family, row.hash))
        return len(found[:limit]), sum(len(row.body) for row in found[:limit])

    async def count_blobs(self, family: int) -> tuple[int, int, int]:
        revisions = len(list(self.tables.revisions.scan(lambda row: row.family == family)))
        return revisions, len(self._listed_hashes(family)), len(self.tables.blobs.keys_between(*starting_with(family)))


def _without_payloads(rows: Sequence[r.BatchRow]) -> tuple[r.BatchRow, ...]:
    return tuple(msgspec.structs.replace(row, payloads=b"") for row in rows)
