"""Nodes that a commit tombstones: its graph is judged as if they had been hidden just before it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.records.limits import Limits
from holdfast.rows import LIVE, TOMBSTONED, CommitFacts, NodeRow, SessionRow
from holdfast.rules import checks, graph

ADVICE = "tombstone it there, or delete that session first"


def check_ids(field: str, value: object, limits: Limits) -> tuple[str, ...]:
    """Return the ids of nodes to hide."""
    if value is checks.LEFT_OUT:
        return ()
    ids = checks.sequence(field, value, most=limits.commit_nodes)
    return tuple(checks.identifier(f"{field}[{index}]", one, limits) for index, one in enumerate(ids))


def check_apart(field: str, ids: Sequence[str], sent: Iterable[str]) -> None:
    """Refuse to hide a node that the same commit sends, which would bring it back."""
    nodes = set(sent)
    for index, one in enumerate(ids):
        if one in nodes:
            raise InvalidRequest(f"{field}[{index}]", f"{one!r} is a node of the same commit: leave one of them out")


def require_own(field: str, ids: Sequence[str], session: SessionRow, rows: Iterable[NodeRow], alive: Set[int]) -> None:
    """Refuse to hide a node that another living session wrote. `alive` are the keys of the living ones, if needed."""
    places = {node_id: f"{field}[{index}]" for index, node_id in enumerate(ids)}
    graph.require_own(places, session, rows, alive, ADVICE)


def named(ids: Collection[str], rows: Iterable[NodeRow]) -> list[NodeRow]:
    """Return the stored nodes that are to be hidden. Unknown ids are skipped."""
    wanted = set(ids)
    return [row for row in rows if row.node_id in wanted]


def to_hide(ids: Sequence[str], session: SessionRow, facts: CommitFacts, alive: Set[int]) -> tuple[NodeRow, ...]:
    """Return the live nodes that a commit hides, or raise the reason against it. Hidden ones stay as they are."""
    rows = named(ids, facts.nodes)
    require_own("tombstones", ids, session, rows, alive)
    return tuple(row for row in rows if row.mark == LIVE)


def after_hiding(facts: CommitFacts, rows: Sequence[NodeRow]) -> CommitFacts:
    """Return the facts of a graph in which these nodes are hidden."""
    if not rows:
        return facts
    keys = {row.node_key for row in rows}
    nodes = (msgspec.structs.replace(row, mark=TOMBSTONED) if row.node_key in keys else row for row in facts.nodes)
    return msgspec.structs.replace(facts, nodes=tuple(nodes))
