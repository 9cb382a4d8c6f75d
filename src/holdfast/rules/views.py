"""Views of revisions: their paths and the number of their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.rows import NodeRow, Segment


def count_of(segments: Iterable[Segment]) -> int:
    """Return the number of nodes in segments."""
    return sum(segment.upto - segment.epoch for segment in segments)


def path_keys(leaf_key: int, nodes: Mapping[int, NodeRow], last: int | None) -> list[int]:
    """Return the keys of at most `last` nodes of a path, oldest first. It ends where a parent is not in `nodes`."""
    keys: list[int] = []
    node = nodes.get(leaf_key)
    while node is not None and (last is None or len(keys) < last):
        keys.append(node.node_key)
        node = None if node.parent_key is None else nodes.get(node.parent_key)
    return keys[::-1]
