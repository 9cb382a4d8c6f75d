"""Draws a conversation top down: a continuation stays in its column, and only side branches move right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import holdfast
from holdfast.transfer.exporting import tombstones_of


class Drawn(NamedTuple):
    """One line of a drawing."""

    rails: str
    node_id: str
    node: holdfast.Node | None
    mark: str
    """`head`, `path`, `side` or `tombstone`."""


def path_of(nodes: Sequence[holdfast.Node], leaf: str | None) -> set[str]:
    """Return the ids from the leaf up to the root, or up to a tombstone."""
    by_id = {node.id: node for node in nodes}
    path: set[str] = set()
    while leaf in by_id and leaf not in path:
        path.add(leaf)
        parent = by_id[leaf].parent
        if parent is None:
            break
        leaf = parent
    return path


def draw(nodes: Sequence[holdfast.Node], leaf: str | None, *, unicode: bool) -> Iterator[Drawn]:
    """Yield the lines of the tree, side branches before the continuation."""
    branch, rail = ("├─", "│ ") if unicode else ("|-", "| ")
    by_id = {node.id: node for node in nodes}
    path = path_of(nodes, leaf)
    children: dict[str | None, list[str]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node.id)
    roots = [*tombstones_of(nodes, leaf), *children.get(None, [])]
    # An explicit stack: a conversation may be deeper than Python's recursion limit.
    stack = [(root, "", "") for root in reversed(roots)]
    while stack:
        node_id, first, rest = stack.pop()
        here = by_id.get(node_id)
        yield Drawn(first, node_id, here, _mark(here, leaf, path))
        below = children.get(node_id, [])
        if not below:
            continue
        main = next((child for child in below if child in path), below[-1])
        stack.append((main, rest, rest))
        stack.extend((child, rest + branch, rest + rail) for child in reversed(below) if child != main)


def _mark(node: holdfast.Node | None, leaf: str | None, path: set[str]) -> str:
    if node is None:
        return "tombstone"
    if node.id == leaf:
        return "head"
    return "path" if node.id in path else "side"
