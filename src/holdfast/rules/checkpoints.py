"""Checkpoints: a body that is sent is stored by its hash, and its ref minted; a ref without a body must be known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from holdfast import codec
from holdfast.errors import Corrupt, InvalidRequest, UnknownRef
from holdfast.records.checkpoints import WELL_KNOWN_COMPONENTS, Checkpoint, CheckpointManifest, Component, Ref
from holdfast.records.graph import AgentFrame
from holdfast.records.limits import LARGEST_CONTENT, Limits
from holdfast.rows import BlobRow, Run
from holdfast.rules import checks, deltas

FRAME_STATUSES = ("active", "superseded")


class Contents(msgspec.Struct):
    """The contents of a commit: bodies by ref, and refs that must be stored already, by the field that names them."""

    bodies: dict[str, bytes] = {}
    kept: dict[str, str] = {}

    def mint(self, format: codec.ContentFormat, data: bytes) -> str:
        """Add a body and return its ref."""
        ref = codec.content_ref(format, data)
        self.bodies[ref] = data
        return ref

    def keep(self, field: str, value: object, *, format: codec.ContentFormat | None = None) -> str:
        """Add a ref, which `require_known` proves later."""
        parts = codec.split_ref(value) if isinstance(value, str) else None
        if not isinstance(value, str) or parts is None or format not in (None, parts[0]):
            raise InvalidRequest(field, "is not a ref that a receipt carried")
        self.kept[field] = value
        return value


def split(ref: str) -> tuple[codec.ContentFormat, str]:
    """Return the format and hash of a stored ref."""
    parts = codec.split_ref(ref)
    if parts is None:
        raise Corrupt("blobs", ref, "is not a ref")
    return parts


def check_checkpoint(field: str, value: object, contents: Contents, limits: Limits) -> CheckpointManifest:
    """Return the manifest of a checkpoint that is sent."""
    checkpoint = checks.instance(field, value, Checkpoint)
    others = checks.mapping(f"{field}.others", checkpoint.others, most=limits.commit_items)
    for name in others:
        checks.identifier(f"{field}.others", name, limits)
        if name in WELL_KNOWN_COMPONENTS:
            raise InvalidRequest(f"{field}.others", f"{name!r} has a field of its own")
    refs = {
        name: _check_component(f"{field}.{name}", component, contents, limits)
        for name, component in checkpoint.components().items()
    }
    return CheckpointManifest(refs)


def _check_component(field: str, value: Component, contents: Contents, limits: Limits) -> str:
    if isinstance(value, Ref):
        return contents.keep(field, value.ref)
    if isinstance(value, checks.BYTES):
        return contents.mint("bytes", checks.content(field, cast("object", value), most=limits.component_bytes))
    return contents.mint("json", checks.document(field, value, limits, most=limits.component_bytes, canonical=True))


def manifest_ref(manifest: CheckpointManifest) -> str:
    """Return the name of a whole checkpoint."""
    return f"checkpoint-sha256:{codec.stable_hash(manifest.refs)}"


def check_frames(field: str, value: object, contents: Contents, limits: Limits) -> tuple[str, tuple[str, ...]]:
    """Return the ref of the list of frames, and the refs of their execution states."""
    frames = checks.sequence(field, value, most=limits.commit_items)
    stored = [_check_frame(f"{field}[{index}]", frame, contents, limits) for index, frame in enumerate(frames)]
    ids = [frame.frame_id for frame in stored]
    if len(set(ids)) != len(ids):
        raise InvalidRequest(field, "names a frame twice")
    encoded = codec.encode_canonical(stored)
    if len(encoded) > LARGEST_CONTENT:
        problem = f"is {len(encoded)} bytes long, and no reader unpacks more than {LARGEST_CONTENT}"
        raise InvalidRequest(field, problem, limit=LARGEST_CONTENT)
    states = tuple(frame.execution_state_ref for frame in stored if frame.execution_state_ref is not None)
    return contents.mint("json", encoded), states


def _check_frame(field: str, value: object, contents: Contents, limits: Limits) -> AgentFrame:
    frame = checks.instance(field, value, AgentFrame)
    checks.optional_document(f"{field}.caused_by", frame.caused_by, limits)
    checks.document(f"{field}.assignment", frame.assignment, limits)
    checks.document(f"{field}.turn_options", frame.turn_options, limits)
    ref = None
    if frame.execution_state is not None:
        body = checks.content(f"{field}.execution_state", frame.execution_state, most=limits.component_bytes)
        ref = contents.mint("bytes", body)
    elif frame.execution_state_ref is not None:
        ref = contents.keep(f"{field}.execution_state_ref", frame.execution_state_ref, format="bytes")
    return AgentFrame(
        frame_id=checks.identifier(f"{field}.frame_id", frame.frame_id, limits),
        previous_frame_id=checks.optional_identifier(f"{field}.previous_frame_id", frame.previous_frame_id, limits),
        status=checks.one_of(f"{field}.status", frame.status, FRAME_STATUSES),
        reason=checks.identifier(f"{field}.reason", frame.reason, limits),
        caused_by=frame.caused_by,
        created_at_ms=checks.whole(f"{field}.created_at_ms", frame.created_at_ms),
        assignment=frame.assignment,
        turn_options=frame.turn_options,
        execution_state=None,
        execution_state_ref=ref,
    )


def require_known(contents: Contents, known: frozenset[str]) -> None:
    """Raise `UnknownRef` for a ref without a body that is neither stored nor part of this commit."""
    for field, ref in contents.kept.items():
        if ref not in known and ref not in contents.bodies:
            raise UnknownRef(field, ref)


def blob_rows(contents: Contents, known: frozenset[str], runs: Mapping[str, Run]) -> tuple[BlobRow, ...]:
    """Return the rows of the bodies not stored yet, as deltas on the runs of their predecessors where that pays."""
    return tuple(deltas.stored(ref, data, runs.get(ref)) for ref, data in contents.bodies.items() if ref not in known)


def content_of(ref: str, bodies: Mapping[str, bytes], *, needed_by: str) -> Component:
    """Return the content of a ref. A missing blob is damage, never an empty value."""
    if ref not in bodies:
        raise Corrupt("blobs", ref, f"is missing, but {needed_by} needs it")
    if split(ref)[0] == "bytes":
        return bodies[ref]
    return codec.decode_document(bodies[ref], table="blobs", key=ref)


def checkpoint_of(manifest: CheckpointManifest, bodies: Mapping[str, bytes], *, needed_by: str) -> Checkpoint:
    """Return the checkpoint with its bodies."""
    return Checkpoint.of({name: content_of(ref, bodies, needed_by=needed_by) for name, ref in manifest.refs.items()})


# Built at import, by one thread: on first use of a type, msgspec shows other threads its half-built decoder.
msgspec.json.Decoder(list[AgentFrame])


def frames_of(document: object, *, needed_by: str) -> tuple[AgentFrame, ...]:
    """Return the stored frames, without their execution states."""
    try:
        return tuple(msgspec.convert(document, list[AgentFrame]))
    except msgspec.ValidationError as error:
        raise Corrupt("blobs", needed_by, "the list of frames does not decode") from error
