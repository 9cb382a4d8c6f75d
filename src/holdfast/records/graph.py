"""The graph of a session: a forest of nodes, with an active path from a root to the leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from msgspec import UNSET, UnsetType

from holdfast.records.common import Document, Record

TOMBSTONE = "holdfast.tombstone"
"""The kind of a tombstoned node that was moved from another store. Its id stays used; its content was not moved."""

LAST_CHARACTER = "\U0010ffff"
"""The character after which none comes."""

_LEFT_OUT = cast("str | None", UNSET)
"""The default of a field that a stored record always has, and that a record to be sent may leave to the store."""


class Node(Record, frozen=True):
    """One step of a conversation. A node that was read has all its fields; one to be sent may leave out most.

    Without an `id`, a commit derives one from the turn id and the node's position, so that a retry derives
    the same. Without a `parent`, the node follows the one before it in the same delta, the first the head's
    leaf; so does a node that would follow its own descendant. `parent=None` makes a root. `created_at_ms` is the
    store's clock unless it is given.

    The payload is a JSON value, or `bytes`, which come back as bytes and are stored without encoding, compressed where
    that saves space. Bytes inside of a JSON value are refused.

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
    """Nodes, and the leaf that the active path ends in. Nodes that were read have parents before children.

    In a graph to be sent, the leaf is the last node unless it is given; None means that there is no active path.
    """

    nodes: Sequence[Node] = ()
    leaf: str | None = _LEFT_OUT


class IdRange(Record, frozen=True):
    """Node ids from `first` on, up to but not including `before`, by code points. `before=None` means to the end.

    Ids that begin with a common text make a group: `IdRange.prefix("call-7/")`.

    >>> holdfast.sessions.IdRange.prefix("call-7/")
    IdRange(first='call-7/', before='call-70')
    """

    first: str = ""
    before: str | None = None

    @classmethod
    def prefix(cls, text: str) -> IdRange:
        """Return the range of all ids that begin with a text."""
        kept = text.rstrip(LAST_CHARACTER)
        return cls(text, kept[:-1] + _after(kept[-1]) if kept else None)


def _after(character: str) -> str:
    """Return the next character in the order of code points. Surrogates are not characters."""
    following = ord(character) + 1
    return chr(0xE000 if following == 0xD800 else following)


class FullGraph(Record, frozen=True):
    """Read scope: every node of the session that is not tombstoned, in insertion order."""


class ActivePath(Record, frozen=True):
    """Read scope: the path to `leaf` (default: the head's), root first; with `last`, only its newest nodes.

    `last=0` reads no nodes, only the rest of the view. The path is empty if the session does not have the leaf or if
    the leaf is tombstoned; the graph echoes the leaf.
    """

    leaf: str | None = None
    last: int | None = None


ReadScope: TypeAlias = FullGraph | ActivePath
"""The part of a session's graph that `load` reads."""


class Unchanged(Record, frozen=True):
    """Graph delta: no new nodes; the leaf moves if one is given (None: the session has no active path)."""

    leaf: str | UnsetType | None = UNSET


class Append(Record, frozen=True):
    """Graph delta: add nodes, each after the one before it unless it has a `parent`, the first after the head's leaf.

    The leaf becomes the last node, or the one that is given; None means that the session has no active path then. A
    child may stand before its parent: the last node is then the last one with parents put first.

    A node that is stored already, equal, is not stored twice; a missing parent equals any. As the last node it becomes
    the leaf, so that sending only an old node takes the head back to it. If it was tombstoned, the turn brings it back.
    Other content under its id, or content that was vacuumed, is `NodeConflict`.

    >>> session = store.sessions.create("chat-42")
    >>> _ = session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(payload="hi")])))
    >>> _ = session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(payload="hello")])))
    >>> [node.payload for node in session.load().graph.nodes]
    ['hi', 'hello']
    """

    nodes: Sequence[Node]
    leaf: str | UnsetType | None = UNSET


class ReplaceGraph(Record, frozen=True):
    """Graph delta: from this revision on, the session consists of exactly this graph.

    Earlier revisions and forks keep the nodes that they reach.
    """

    graph: Graph


GraphDelta: TypeAlias = Unchanged | Append | ReplaceGraph
"""The change that a commit makes to the graph."""


class AgentFrame(Record, frozen=True):
    """One agent's stay in a session. Send `execution_state` to store it, or only its ref to keep the stored one."""

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
    """The number of tombstoned nodes whose content this call removed."""

    removed_nodes: int
