"""Checkpoints: a manifest of named components, each stored once by its content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import UNSET, UnsetType

from holdfast.records.common import Document, Record

WELL_KNOWN_COMPONENTS = ("turn_state", "tool_state", "plugin_state", "execution_state")


class Ref(Record, frozen=True):
    """An unchanged component: the ref from the manifest of a receipt, sent instead of the content."""

    ref: str


Component: TypeAlias = Document | bytes | Ref
"""A part of a checkpoint: a document, bytes, or the ref of a stored component."""


class CheckpointManifest(Record, frozen=True):
    """The ref of each component of a checkpoint. Refs are minted by the store."""

    refs: dict[str, str] = {}

    def ref(self, name: str) -> Ref:
        """Return the component `name` as a ref, to send it unchanged with the next checkpoint."""
        return Ref(self.refs[name])


class Checkpoint(Record, frozen=True):
    """The state that a turn leaves behind. A component is any JSON document or bytes; one that is left out is dropped.

    >>> first = holdfast.Checkpoint(turn_state={"turn": 1}, execution_state=b"stack", others={"memory": [1, 2]})
    >>> sorted(first.components())
    ['execution_state', 'memory', 'turn_state']
    """

    turn_state: Component | UnsetType = UNSET
    tool_state: Component | UnsetType = UNSET
    plugin_state: Component | UnsetType = UNSET
    execution_state: Component | UnsetType = UNSET
    others: dict[str, Component] = {}

    def components(self) -> dict[str, Component]:
        """Return every component that is present, by name."""
        present: dict[str, Component] = {}
        for name in WELL_KNOWN_COMPONENTS:
            value = getattr(self, name)
            if value is not UNSET:
                present[name] = value
        present.update(self.others)
        return present

    @classmethod
    def of(cls, components: Mapping[str, Component]) -> Checkpoint:
        """Make the checkpoint that consists of these components."""
        known = {name: components[name] for name in WELL_KNOWN_COMPONENTS if name in components}
        others = {name: value for name, value in components.items() if name not in WELL_KNOWN_COMPONENTS}
        return cls(**known, others=others)

    @classmethod
    def keeping(cls, manifest: CheckpointManifest, **changed: Component) -> Checkpoint:
        """Make a checkpoint that keeps everything in `manifest`, except for the components given."""
        kept: dict[str, Component] = {name: Ref(ref) for name, ref in manifest.refs.items()}
        return cls.of({**kept, **changed})
