"""Tables of nodes and blobs. Nodes are found by id, or read along their parents or by key; blobs by hash."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.sqlite.budget import Values
from holdfast.backends.sqlite.transaction.base import BLOCK, Base, json_list, listed
from holdfast.columns import fitting, weight
from holdfast.errors import Corrupt
from holdfast.ports.tables import read_each_path
from holdfast.records.limits import LARGEST_INTEGER
from holdfast.table_catalog import all_fetched

PLACE = "node_key", "node_id", "parent_key", "mark"
"""Columns of a node that decide where a path leads."""

POSITIONS = (1 << r.POSITION_BITS) - 1
"""The highest position that a node can have in its session."""

NODE_KEY, NODE_ID, PARENT_KEY, MARK = (r.NodeRow.__struct_fields__.index(name) for name in PLACE)

NO_PAYLOAD = b"null"
"""The payload of a vacuumed node."""


SHORT_RUN = 8
"""Nodes for which a statement for their run of keys does not pay: a path in shorter runs is read node by node."""


def run_of(leaf_key: int, last: int, rows: Iterator[Values]) -> Iterator[Values]:
    """Yield the nodes of a path from rows in descending order of keys, each with its parent's id.

    Ends before a node whose parent is not the next row.
    """
    expected: int | None = leaf_key
    child: Values | None = None
    for row in rows:
        if row[NODE_KEY] != expected:
            return
        if child is not None:
            yield (*child, row[NODE_ID])
            last -= 1
        if last <= 0 or row[MARK] != r.LIVE:
            return
        child = row
        expected = row[PARENT_KEY]
        if expected is None:
            yield (*child, None)
            return


class Graph(Base):
    """Nodes and blobs, shared by a family."""

    __slots__ = ()

    async def find_nodes(self, segments: Sequence[r.Segment], node_ids: Sequence[str]) -> list[r.NodeRow]:
        return self._find_nodes(segments, node_ids)

    def _find_nodes(self, segments: Sequence[r.Segment], node_ids: Sequence[str]) -> list[r.NodeRow]:
        if not segments or not node_ids:
            return []
        ids = list(dict.fromkeys(node_ids))
        ends = [(segment, listed(segment.session_key, segment.upto)) for segment in segments]
        places = [(segment.session_key, segment.epoch, end, node_id) for segment, end in ends for node_id in ids]
        blocks = [(end, segment.last_key, segment.epoch, json_list(ids)) for segment, end in ends]
        values = self._runner.run_many("find_node", places) + self._runner.run_many("find_unlisted_nodes", blocks)
        found = all_fetched(r.NodeRow, values)
        found.sort(key=key_of_node)
        return found

    async def read_path(self, leaf_key: int, last: int | None) -> list[r.NodeRow]:
        if last is not None and last <= 0:
            return []
        path = self._runs(leaf_key, LARGEST_INTEGER if last is None else last)
        # A parent always has a smaller key, so this is the order of the path. SQL itself guarantees none.
        path.sort(key=key_of_node, reverse=True)
        for node in path:
            if node.parent_key is None:
                continue
            if node.parent_key >= node.node_key:
                raise Corrupt("nodes", str(node.node_key), f"its parent {node.parent_key} is not older than itself")
            if node.parent_id is None:
                raise Corrupt("nodes", str(node.node_key), f"its parent {node.parent_key} is missing")
        return path

    def _runs(self, leaf_key: int, last: int) -> list[r.NodeRow]:
        """Read a path as runs of keys while they are long, and its rest node by node."""
        path: list[r.NodeRow] = []
        while last >= SHORT_RUN:
            lowest = max(leaf_key - last, r.Segment(leaf_key >> r.POSITION_BITS, 0, 0).first_key)
            bindings = {"leaf_key": leaf_key, "first_key": lowest}
            run = all_fetched(r.NodeRow, self._runner.all("read_run", bindings, partial(run_of, leaf_key, last)))
            path += run
            last -= len(run)
            if run:
                parent_key = run[-1].parent_key
                if parent_key is None or parent_key >= run[-1].node_key:
                    return path
                leaf_key = parent_key
            if len(run) < SHORT_RUN:
                break
        if last > 0:
            path += self._all(r.NodeRow, "read_path", {"leaf_key": leaf_key, "last": last})
        return path

    async def read_paths(self, leaf_keys: Sequence[int], last: int | None) -> list[r.NodeRow]:
        return await read_each_path(self.read_path, leaf_keys, last)

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
            bindings = {
                "first_key": first_key,
                "last_key": last_key,
                "epoch": segment.epoch,
                "kind": kind,
                "limit": min(left, last_key - first_key + 1),
            }
            name = "read_nodes" if descending else "read_nodes+"
            if limit is None:
                found += self._all(r.NodeRow, name, bindings)
                continue
            page = self._page(r.NodeRow, name, bindings, room)
            found += page
            left -= len(page)
            weights = [weight(msgspec.structs.astuple(row)) for row in found]
            if fitting(weights) < len(found):
                break
            # One row more than fits, if necessary from the next range, shows that another page follows.
            room = max(1, columns.PAGE_BYTES - sum(weights))
        return found

    async def read_nodes_by_id(
        self, segment: r.Segment, *, kind: str | None, first: str, before: str | None, descending: bool, limit: int
    ) -> list[r.NodeRow]:
        bindings = {
            "session_key": segment.session_key,
            "epoch": segment.epoch,
            "listed_key": listed(segment.session_key, segment.upto),
            "last_key": segment.last_key,
            "first": first,
            # Bytes sort after any text.
            "before": b"" if before is None else before,
            "kind": kind,
            "limit": limit,
        }
        return self._page(r.NodeRow, "read_nodes_by_id" if descending else "read_nodes_by_id+", bindings)

    async def count_nodes(self, epoch: int, first_key: int, last_key: int) -> int:
        return self._number("count_nodes", (epoch, first_key, last_key))

    async def insert_nodes(self, rows: Sequence[r.NodeRow]) -> None:
        self._insert_nodes(rows)

    def _insert_nodes(self, rows: Sequence[r.NodeRow]) -> None:
        # The last field is the parent's id, which is not stored.
        values = [msgspec.structs.astuple(row)[:-1] for row in rows]
        if len(values) == 2:
            self._run("insert_two_nodes", (*values[0], *values[1]))
        elif len(values) > 2:
            pairs = zip(values[::2], values[1::2], strict=False)
            self._runner.run_many("insert_two_nodes", [(*first, *second) for first, second in pairs])
        if len(values) % 2:
            self._run("insert_node", values[-1])
        ends = [row.node_key for row in rows if row.node_key % BLOCK == 0]
        if ends:
            self._runner.run_many("list_node_ids", [(end - BLOCK, end) for end in ends])

    async def mark_nodes(self, node_keys: Sequence[int]) -> int:
        return self._run("mark_nodes", (json_list(node_keys),))

    async def revive_nodes(self, node_keys: Sequence[int]) -> int:
        return self._run("revive_nodes", (json_list(node_keys),))

    async def vacuum_nodes(self, session_key: int | None, limit: int) -> int:
        if session_key is None:
            return self._run("vacuum_nodes", (limit, NO_PAYLOAD))
        return self._run("vacuum_session_nodes", (limit, NO_PAYLOAD, session_key))

    async def count_tombstoned(self, session_key: int | None) -> int:
        if session_key is None:
            return self._number("count_tombstoned", ())
        return self._number("count_session_tombstoned", (session_key,))

    async def node_epochs(self, session_key: int) -> list[int]:
        return sorted(epoch for (epoch,) in self._numbers("node_epochs", (session_key,)))

    async def drop_nodes(self, session_key: int, epoch: int, *, above: int, limit: int) -> int:
        base = session_key << r.POSITION_BITS
        bindings = {
            "session_key": session_key,
            "session_base": base,
            "epoch": epoch,
            "above_key": base + above,
            "positions": POSITIONS,
            "limit": limit,
        }
        dropped = self._values("drop_nodes", bindings)
        if dropped:
            self._run("drop_node_ids", (session_key, epoch, json_list([node_id for (node_id,) in dropped])))
        return len(dropped)

    async def load_blobs(self, family: int, hashes: Sequence[str]) -> list[r.BlobRow]:
        return self._all(r.BlobRow, "load_blobs", (family, json_list(hashes)))

    async def hold_key_frames(self, family: int, hashes: Sequence[str]) -> frozenset[str]:
        """Return those that are stored whole. No lock needed: there is only one writer at a time."""
        return frozenset(hash for (hash,) in self._values("hold_key_frames", (family, json_list(hashes))))

    async def drop_unreferenced_blobs(self, family: int, *, limit: int, dry_run: bool) -> tuple[int, int]:
        found = self._values("unreferenced_blobs", (family, limit))
        if found and not dry_run:
            self._run("drop_blobs", (family, json_list([hash for hash, _ in found])))
        return len(found), sum(size for _, size in found)

    async def count_blobs(self, family: int) -> tuple[int, int, int]:
        [(revisions, hashes, blobs)] = self._numbers("count_blobs", (family,))
        return revisions, hashes, blobs


def key_of_node(node: r.NodeRow) -> int:
    """Return the key, by which nodes are sorted."""
    return node.node_key


def _first_key_of(segment: r.Segment) -> int:
    return segment.first_key
