"""A conversation is a tree of nodes; a session's active path runs from the root to its leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import UNSET, UnsetType

from holdfast.records.common import Document, Record


class Node(Record, frozen=True):
    """One step of a conversation. `created_at_ms` is the store's clock unless it is given.

    >>> holdfast.Node("n2", parent="n1", payload={"role": "assistant", "text": "hello"}).kind
    'event'
    """

    id: str
    parent: str | None = None
    kind: str = "event"
    payload: Document = None
    frame_id: str | None = None
    caused_by: Document | None = None
    created_at_ms: int | None = None


class Graph(Record, frozen=True):
    """Nodes in order (parents before children) and the leaf that the active path ends in."""

    nodes: Sequence[Node] = ()
    leaf: str | None = None


class FullGraph(Record, frozen=True):
    """Read scope: every node of the session that is not tombstoned, in insertion order."""


class ActivePath(Record, frozen=True):
    """Read scope: the path to `leaf` (default: the head's), root first; with `last`, only its newest nodes.

    A leaf that the session does not have, or that is tombstoned, has an empty path; the graph echoes the leaf.
    """

    leaf: str | None = None
    last: int | None = None


ReadScope: TypeAlias = FullGraph | ActivePath
"""What of a session's graph a `load` reads."""


class Unchanged(Record, frozen=True):
    """Graph delta: no new nodes; the leaf moves if one is given (None: the session has no active path)."""

    leaf: str | UnsetType | None = UNSET


class Append(Record, frozen=True):
    """Graph delta: new nodes, parents before children; the leaf stays unless one is given."""

    nodes: Sequence[Node]
    leaf: str | UnsetType | None = UNSET


class ReplaceGraph(Record, frozen=True):
    """Graph delta: from this revision on the session consists of exactly this graph.

    Earlier revisions and forks keep the nodes that they reach.
    """

    graph: Graph


GraphDelta: TypeAlias = Unchanged | Append | ReplaceGraph
"""What a commit does to the graph."""


class AgentFrame(Record, frozen=True):
    """One agent's stay in a session. Send `execution_state` to store it, only its ref to keep what is stored."""

    frame_id: str
    previous_frame_id: str | None = None
    status: str = "active"
    reason: str = "initial"
    caused_by: Document | None = None
    created_at_ms: int = 0
    assignment: Document = None
    turn_options: Document = None
    execution_state: bytes | None = None
    execution_state_ref: str | None = None


class VacuumReport(Record, frozen=True):
    """How many tombstoned nodes lost their content in this call."""

    removed_nodes: int
