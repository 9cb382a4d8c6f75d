"""Decisions about a session's head: the revision that a call expects, and nodes that are planned on a head.

Nodes outside the path are planned without reading the stored ones: their ids must be new, and their parents readable.
The database verifies both, or declines, and the rule decides by facts.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import HeadConflict
from holdfast.ports.fast_path_params import UNTIMED, Head, NodesParams
from holdfast.rows import LIVE, NodeRow, Segment, SessionRow
from holdfast.rules import graph


def require_revision(session: SessionRow, expected: int | None) -> None:
    """Raises HeadConflict if the head is not at the expected revision. None expects nothing."""
    if expected is not None and expected != session.revision:
        raise HeadConflict(session.session_id, expected, session.revision)


def plan_nodes(head: Head, intents: Sequence[graph.NodeIntent]) -> NodesParams:
    """Return the rows of nodes that are all new, with keys from 1 on, and the stored nodes that they follow."""
    follows_head = graph.follows_head(intents, {})
    leaf = graph.leaf_of(head.revision) if follows_head else None
    named = {intent.parent for intent in intents if isinstance(intent.parent, str)}
    anchors = sorted(named - {intent.id for intent in intents} | (set() if leaf is None else {leaf[1]}))
    placed = graph.place_nodes(
        "nodes",
        msgspec.structs.replace(head.session, session_key=0),
        intents,
        {node_id: named_node(node_id, -place) for place, node_id in enumerate(anchors, start=1)},
        leaf=leaf,
        after=Segment(0, head.session.epoch, 0),
        revision=None,
        now_ms=UNTIMED,
    )
    segments = graph.segments_of(head.session, upto=graph.NODES_PER_SESSION)
    return NodesParams(head, placed.rows, tuple(anchors), segments, follows_head)


def named_node(node_id: str, key: int, session_key: int = 0, epoch: int = 0) -> NodeRow:
    """Return a stored node of which nothing but the name is known: it equals no other node."""
    return NodeRow(key, session_key, epoch, node_id, None, "", None, None, 0, b"null", LIVE, None)
