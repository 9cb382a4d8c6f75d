"""A conversation is a tree of nodes; a session's active path runs from the root to its leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from msgspec import UNSET, UnsetType

from holdfast.records.common import Document, Record

_LEFT_OUT = cast("str | None", UNSET)
"""The default of what a stored record always has, and a record that is being sent may leave to the store."""


class Node(Record, frozen=True):
    """One step of a conversation. A node that was read has all its fields; one that is sent may leave out most.

    Without an `id` a commit makes one, out of the turn id and the node's position, so that a retry of the turn makes
    the same. Without a `parent` the node follows the one before it in the same delta, and the first follows the head's
    leaf; `parent=None` makes a root. `created_at_ms` is the store's clock unless it is given.

    >>> holdfast.Node(payload={"role": "user", "text": "hi"}).kind
    'event'
    >>> holdfast.Node("n2", parent="n1", payload={"role": "assistant", "text": "hello"}).parent
    'n1'
    """

    id: str = ""
    parent: str | None = _LEFT_OUT
    kind: str = "event"
    payload: Document = None
    frame_id: str | None = None
    caused_by: Document | None = None
    created_at_ms: int | None = None


class Graph(Record, frozen=True):
    """Nodes and the leaf that the active path ends in. Nodes that were read have parents before children.

    In a graph that is sent, the leaf is the last node unless it is given; None means that there is no active path.
    """

    nodes: Sequence[Node] = ()
    leaf: str | None = _LEFT_OUT


class FullGraph(Record, frozen=True):
    """Read scope: every node of the session that is not tombstoned, in insertion order."""


class ActivePath(Record, frozen=True):
    """Read scope: the path to `leaf` (default: the head's), root first; with `last`, only its newest nodes.

    `last=0` reads no node, only what else a view has. A leaf that the session does not have, or that is tombstoned,
    has an empty path; the graph echoes the leaf.
    """

    leaf: str | None = None
    last: int | None = None


ReadScope: TypeAlias = FullGraph | ActivePath
"""What of a session's graph a `load` reads."""


class Unchanged(Record, frozen=True):
    """Graph delta: no new nodes; the leaf moves if one is given (None: the session has no active path)."""

    leaf: str | UnsetType | None = UNSET


class Append(Record, frozen=True):
    """Graph delta: new nodes, each after the one before it unless it has a `parent`, the first after the head's leaf.

    The leaf becomes the last node, or the one that is given; None means that the session has no active path then. A
    child may stand before its parent: the last node is then the last one with parents put first.

    A node that is stored already, alike, is not stored twice; a missing parent is like any. If it was tombstoned, the
    turn brings it back. Other content under its id, or content that was vacuumed, is `NodeConflict`.

    >>> session = store.sessions.create("chat-42")
    >>> _ = session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(payload="hi")])))
    >>> _ = session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(payload="hello")])))
    >>> [node.payload for node in session.load().graph.nodes]
    ['hi', 'hello']
    """

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
