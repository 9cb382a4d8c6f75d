"""Values of threads: where a checkpoint is stored, what was read of it, and what is to be stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from holdfast.adapters.langgraph import payloads
from holdfast.adapters.langgraph.payloads import CHECKPOINT, Group, StoredCheckpoint, StoredWrite, Typed
from holdfast.errors import Conflict, Corrupt, InvalidRequest
from holdfast.sessions import SessionView

START: Final = "__start__"
"""The channel in which LangGraph keeps an input until the first step."""
LONGEST_ID: Final = 400
"""Longest id of a session in bytes. Longer names of namespaces are hashed."""


class ThreadConflict(Conflict):
    """Another run has continued the thread from the same checkpoint.

    `input_stored` says what the newest state has of the refused run. False: nothing; repeat the call with the same
    input. True: its input and its steps up to `parent_id`; do not send the input again. None: it is not known, because
    a subgraph was refused, or a run that answers an interrupt; read the state.
    """

    def __init__(self, thread_id: str, parent_id: str | None, other_id: str, *, input_stored: bool | None) -> None:
        started = "started the thread" if parent_id is None else f"continued from checkpoint {parent_id!r}"
        super().__init__(
            f"thread {thread_id!r}: another run has {started}, with checkpoint {other_id!r}: {_ADVICE[input_stored]}"
        )
        self.thread_id = thread_id
        self.parent_id = parent_id
        self.other_id = other_id
        self.input_stored = input_stored


_ADVICE: Final = {
    False: "its newest state has nothing of this run; repeat the call with the same input to run on top of the other",
    True: "it keeps the input of this run and its steps up to there, and no later ones; do not send the input again: "
    "`invoke(None, config)` runs the steps that are left, if any",
    None: "read its state; send the input of this run again only if it is not there, and an answer only if its "
    "interrupt still waits",
}


class Place(NamedTuple):
    """A namespace of a thread, and its session."""

    thread_id: str
    namespace: str

    @property
    def session_id(self) -> str:
        """The thread's id, and for a subgraph also its namespace."""
        root = self.thread_id.replace("%", "%25").replace("#", "%23")
        if not self.namespace:
            return root
        whole = f"{root}#{self.namespace}"
        if len(whole.encode()) <= LONGEST_ID:
            return whole
        return f"{root}#%{hashlib.sha256(self.namespace.encode()).hexdigest()}"

    @property
    def root(self) -> Place:
        """The thread's own namespace."""
        return Place(self.thread_id, "")


class Found(NamedTuple):
    """A checkpoint as it was read: its record, the values of its components, and the writes on it."""

    place: Place
    checkpoint: StoredCheckpoint
    components: Mapping[str, bytes]
    writes: Sequence[StoredWrite]

    def value(self, channel: str) -> Typed | None:
        """Return the serialised value of a channel, None if it has none."""
        inline = self.checkpoint.values.get(channel)
        if inline is not None:
            return inline
        kind = self.checkpoint.components.get(channel)
        if kind is None:
            return None
        if channel not in self.components:
            raise Corrupt("nodes", self.checkpoint.id, f"the value of channel {channel!r} is missing")
        return kind, self.components[channel]


class Known(NamedTuple):
    """A stored checkpoint, as far as its children need it. `refs` are those of its components."""

    revision: int
    checkpoint: StoredCheckpoint
    refs: Mapping[str, str]


class Draft(NamedTuple):
    """A checkpoint to store. `fresh` are the channels that changed since the parent; `value` serialises one.

    `begins_run` is True for the first checkpoint of a run: another run has stored the parent. `begins_thread` is True
    if the run found an empty thread.
    """

    id: str
    parent: str | None
    state: Mapping[str, Any]
    typed_state: Mapping[str, Typed]
    metadata: Mapping[str, Any]
    typed_metadata: Mapping[str, Typed]
    channels: Sequence[str]
    versions: Mapping[str, Any]
    fresh: frozenset[str]
    value: Callable[[str], Typed]
    may_branch: bool
    begins_run: bool
    begins_thread: bool
    gist: str


def known_of(place: Place, view: SessionView) -> Known:
    """Return the checkpoint that the view of a session ends in."""
    node = view.graph.nodes[-1] if view.graph.nodes else None
    if node is None or node.kind != CHECKPOINT:
        raise InvalidRequest(
            "thread_id",
            f"session {place.session_id!r} is not a LangGraph thread: choose another thread_id",
        )
    return Known(view.revision, payloads.checkpoint_of(node), view.manifest.refs)


def found_of(place: Place, checkpoint: StoredCheckpoint, view: SessionView, group: Group) -> Found:
    """Return a checkpoint with the values of a view."""
    components = {} if view.checkpoint is None else view.checkpoint.components()
    return Found(place, checkpoint, cast("dict[str, bytes]", components), group.ordered())


def kept_channels(draft: Draft, parent: Known) -> dict[str, str]:
    """Return the channels whose values are the parent's, with the refs of those that are components."""
    before = parent.checkpoint.versions
    same = [
        channel
        for channel in draft.channels
        if channel not in draft.fresh and channel in before and before[channel] == draft.versions.get(channel)
    ]
    return {
        channel: parent.refs.get(channel, "")
        for channel in same
        if channel in parent.checkpoint.values or channel in parent.refs
    }


def draft_of(found: Found) -> Draft:
    """Return a stored checkpoint as one to store elsewhere."""
    checkpoint = found.checkpoint

    def value(channel: str) -> Typed:
        typed = found.value(channel)
        assert typed is not None
        return typed

    return Draft(
        id=checkpoint.id,
        parent=checkpoint.parent,
        state=checkpoint.state,
        typed_state=checkpoint.typed_state,
        metadata=checkpoint.metadata,
        typed_metadata=checkpoint.typed_metadata,
        channels=[*checkpoint.values, *checkpoint.components],
        versions=checkpoint.versions,
        fresh=frozenset([*checkpoint.values, *checkpoint.components]),
        value=value,
        may_branch=True,
        begins_run=True,
        begins_thread=False,
        gist=checkpoint.gist,
    )


def input_stored(draft: Draft, parent: StoredCheckpoint | None, other: StoredCheckpoint) -> bool | None:
    """Return True if a run left its input in the newest state, before another run continued from its last checkpoint.

    None if that is not known: an answer to an interrupt may have been applied by the other run.
    """
    if draft.begins_run:
        taken = parent is not None and parent.versions.get(START) == draft.versions.get(START)
        return None if draft.metadata.get("source") == "loop" and taken else False
    if parent is None:
        return None
    # An input waits in this channel for the first step. The input of another run, or an update, takes its place.
    return START not in stored_channels(parent) or other.metadata.get("source") in ("loop", "fork")


def stored_channels(checkpoint: StoredCheckpoint) -> set[str]:
    """Return the channels whose values are stored with a checkpoint."""
    return {*checkpoint.values, *checkpoint.components}


def delta_channels(checkpoint: StoredCheckpoint) -> Mapping[str, Any]:
    """Return the channels that are stored as writes since a snapshot."""
    counters: Mapping[str, Any] = checkpoint.metadata.get("counters_since_delta_snapshot") or {}
    return counters
