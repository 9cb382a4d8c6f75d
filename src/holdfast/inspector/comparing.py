"""Reads the newest nodes of a conversation, each once, and compares a session with an earlier revision of itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import holdfast
from holdfast.cli.terminal import clipped
from holdfast.inspector.conversation import MOST_LINES, Entry, changes, entry_of, entry_of_message, pretty
from holdfast.inspector.threads import Thread, thread_of

NODES = 200
"""Nodes of a conversation or a tree that one page shows, the newest."""
FEW_NODES, LARGE_PAGE = 20, 1_000_000
"""A page reads so few nodes first, and no more once they have more bytes than this."""
MOST_TEXT = 160
"""Characters of a message in a comparison."""

Changes = list[tuple[str, list[str]]]
"""The parts that differ, each as the lines of a diff."""


class Conversation(NamedTuple):
    """A view of a session, the newest nodes of its path, and whether there are older ones; of a thread its messages."""

    view: holdfast.sessions.SessionView
    nodes: Sequence[holdfast.Node]
    is_cut: bool
    thread: Thread | None


async def newest_nodes(handle: holdfast.Session, at: int | None) -> Conversation | None:
    """Return the conversation at a revision, None if nothing was committed.

    Reads twice as many nodes as before until they are large, there are `NODES` of them, or no others. Messages may be
    of any size.
    """
    wanted = FEW_NODES
    view = await handle.load(holdfast.sessions.ActivePath(last=wanted), at=at)
    if view is None:
        return None
    part = nodes = list(view.graph.nodes)
    thread = thread_of(view)
    if thread is not None and thread.messages:
        return Conversation(view, nodes, is_cut=False, thread=thread)  # its nodes are not what a page shows
    while len(part) == wanted and part[0].parent is not None:
        if len(nodes) >= NODES or sum(_size(node.payload) for node in nodes) > LARGE_PAGE:
            return Conversation(view, nodes, is_cut=True, thread=thread)
        wanted = min(2 * wanted, NODES - len(nodes))
        older = await handle.load(holdfast.sessions.ActivePath(part[0].parent, wanted), at=view.revision)
        part = [] if older is None else list(older.graph.nodes)
        nodes = [*part, *nodes]
    return Conversation(view, nodes, is_cut=False, thread=thread)


def _size(payload: object) -> int:
    return len(payload if isinstance(payload, bytes) else pretty(payload))


async def compared(handle: holdfast.Session, now: Conversation, since: int) -> Changes | None:
    """Return how conversation, state and checkpoint differ from a revision, None if that one is gone or never was."""
    before, thread = None, now.thread
    if since > 0:
        scope = holdfast.sessions.ActivePath(last=0 if thread is None else 1)
        try:
            before = await handle.load(scope, at=since)
        except holdfast.NotFound:
            return None  # it was pruned, or is still to come
    earlier = None if thread is None else thread_of(before)
    messages = await _changed_messages(handle, now, before) if thread is None else _changed_in_thread(thread, earlier)
    return [
        *([("conversation", messages)] if messages else []),
        *changes(_session(before, has_messages=bool(messages)), _session(now.view, has_messages=bool(messages))),
        *changes(state_of(before, earlier), state_of(now.view, thread)),
    ]


def _changed_in_thread(now: Thread, before: Thread | None) -> list[str]:
    """Return the messages of a thread that came and went, one a line."""
    earlier = [] if before is None else before.messages
    pairs = enumerate(zip(earlier, now.messages, strict=False))
    first = next((at for at, (old, new) in pairs if old != new), min(len(earlier), len(now.messages)))
    sides = (("-", earlier[first:]), ("+", now.messages[first:]))
    lines = [_line(sign, entry_of_message(one, at)) for sign, side in sides for at, one in enumerate(side)]
    return lines[-MOST_LINES:]


async def _changed_messages(
    handle: holdfast.Session, now: Conversation, before: holdfast.sessions.SessionView | None
) -> list[str]:
    """Return the messages that came and went, one a line."""
    leaf = None if before is None else before.graph.leaf
    at = next((at for at, node in enumerate(now.nodes) if node.id == leaf), None)
    if at is not None:
        return _lines("+", now.nodes[at + 1 :])
    earlier = None if before is None or leaf is None else await newest_nodes(handle, before.revision)
    gone = {} if earlier is None else {node.id: node for node in earlier.nodes}
    shared = gone.keys() & {node.id for node in now.nodes}
    if now.is_cut and not shared:
        gone = {}  # more nodes have come than a page shows: nothing says that the path left the earlier ones
    added = [node for node in now.nodes if node.id not in shared]
    return [*_lines("-", (node for id, node in gone.items() if id not in shared)), *_lines("+", added)][-MOST_LINES:]


def _lines(sign: str, nodes: Iterable[holdfast.Node]) -> list[str]:
    return [_line(sign, entry_of(node)) for node in nodes]


def _line(sign: str, entry: Entry) -> str:
    return f"{sign}{entry.role}: {clipped(' '.join(entry.text.split()), MOST_TEXT)}"


def _session(view: holdfast.sessions.SessionView | None, *, has_messages: bool) -> dict[str, object]:
    """Return the state of a session beside its checkpoint, its place only if no message shows that it moved."""
    if view is None:
        return {}
    place: dict[str, object] = {} if has_messages else {"leaf": view.graph.leaf, "nodes": view.node_count}
    frames = [one.frame_id for one in view.frames]
    return {"session": {**place, "config": view.config, "frame": view.current_frame_id, "frames": frames}}


def state_of(view: holdfast.sessions.SessionView | None, thread: Thread | None) -> dict[str, Any]:
    """Return the components of a checkpoint, of a thread the values but its messages."""
    if thread is not None:
        return {name: value for name, value in thread.values.items() if name != thread.channel}
    return {} if view is None or view.checkpoint is None else dict(view.checkpoint.components())
