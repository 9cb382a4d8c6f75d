"""A large content is stored as its difference from a key frame for as long as that is cheaper than a new key frame.

A key frame is a content that is stored whole. A delta rests on a key frame and never on another delta, so that reading
takes one of each at most. The hash is that of the whole content, whichever way it is stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from holdfast import codec
from holdfast.errors import Corrupt
from holdfast.rows import BlobRow, Run

DELTA_FROM_BYTES = 64 * 1024
"""Smaller contents, and differences from smaller ones, are not worth a second row to read."""

DELTA_UP_TO_BYTES = 1 << codec.LARGEST_WINDOW_LOG
"""A larger content would need a larger window to be read than readers grant."""

_RUN = struct.Struct("<IQ")
"""What stands before the frame of a delta: how many deltas came before it in its run, and how many bytes they took."""


def is_large(data: bytes) -> bool:
    """Whether a content may be stored as a delta, or be a key frame."""
    return DELTA_FROM_BYTES <= len(data) <= DELTA_UP_TO_BYTES


def stored(ref: str, data: bytes, run: Run | None) -> BlobRow:
    """The row of a content: a delta on the run of its predecessor, or whole."""
    if run is not None and is_large(data) and is_large(run.data):
        body = _RUN.pack(run.deltas, run.spent_bytes) + codec.pack_delta(data, run.data)
        if is_worth_it(run, len(body)):
            return BlobRow(ref, "delta", len(data), body, run.ref)
    encoding, body = codec.pack(data)
    return BlobRow(ref, encoding, len(data), body)


def is_worth_it(run: Run, delta_bytes: int) -> bool:
    """Whether one more delta makes the run cheaper.

    Deltas grow with their distance from the key frame. As long as the next one takes no more than the contents of the
    run took on average, key frame included, it lowers that average; from then on a new key frame is cheaper. And a
    delta of more than half a key frame is not worth having to read both.
    """
    return delta_bytes * 2 <= run.stored_bytes and delta_bytes * (run.deltas + 1) <= run.stored_bytes + run.spent_bytes


def run_after(row: BlobRow, data: bytes, run: Run | None) -> Run | None:
    """The run that a content ends once it is stored, None if nothing can be stored as a delta on it."""
    if run is not None and row.base_hash == run.ref:
        return msgspec.structs.replace(run, deltas=run.deltas + 1, spent_bytes=run.spent_bytes + len(row.body))
    return Run(row.hash, data, len(row.body)) if row.base_hash is None and is_large(data) else None


def run_of(ref: str, rows: Iterable[BlobRow]) -> Run | None:
    """The run that a stored content ends, from its row and its key frame's; None if nothing can be stored on it."""
    found = {row.hash: row for row in rows}
    row = found.get(ref)
    if row is None:
        return None
    frame = found.get(row.base_hash or row.hash)
    if frame is None or not DELTA_FROM_BYTES <= frame.size <= DELTA_UP_TO_BYTES:
        return None
    run = Run(frame.hash, opened([frame])[frame.hash], len(frame.body))
    if row.base_hash is None:
        return run
    deltas, spent_bytes = _parts(row)[0]
    return msgspec.structs.replace(run, deltas=deltas + 1, spent_bytes=spent_bytes + len(row.body))


def opened(rows: Iterable[BlobRow]) -> dict[str, bytes]:
    """What stored contents are, each proven. Deltas find their key frames among them."""
    found = {row.hash: row for row in rows}
    whole = {ref: _opened(row, row.body, None) for ref, row in found.items() if row.base_hash is None}
    resting = [(row, row.base_hash) for row in found.values() if row.base_hash is not None]
    astray = [(base_hash not in found, row.hash, base_hash) for row, base_hash in resting if base_hash not in whole]
    # A key frame that is a delta comes first: it was not asked for, so that its own is missing without being lost.
    for missing, ref, base_hash in sorted(astray):
        problem = "is missing" if missing else "is a delta itself"
        raise Corrupt("blobs", ref, f"its key frame {base_hash} {problem}")
    return whole | {row.hash: _opened(row, _parts(row)[1], whole[base_hash]) for row, base_hash in resting}


def prove(row: BlobRow, key_frames: Iterable[BlobRow]) -> None:
    """Raise `Corrupt` unless a stored content can be read. Only the key frame of a delta is held in memory."""
    if row.base_hash is None:
        codec.prove(row.encoding, row.body, size=row.size, hash=_hash(row), table="blobs", key=row.hash)
        return
    found = {frame.hash: frame for frame in key_frames}
    if row.base_hash not in found:
        raise Corrupt("blobs", row.hash, f"its key frame {row.base_hash} is missing")
    if found[row.base_hash].base_hash is not None:
        raise Corrupt("blobs", row.hash, f"its key frame {row.base_hash} is a delta itself")
    base = opened([found[row.base_hash]])[row.base_hash]
    frame = _parts(row)[1]
    codec.prove(row.encoding, frame, size=row.size, hash=_hash(row), table="blobs", key=row.hash, base=base)


def _opened(row: BlobRow, frame: bytes, base: bytes | None) -> bytes:
    return codec.unpack(row.encoding, frame, size=row.size, hash=_hash(row), table="blobs", key=row.hash, base=base)


def _hash(row: BlobRow) -> str:
    parts = codec.split_ref(row.hash)
    if parts is None:
        raise Corrupt("blobs", row.hash, "is not a ref")
    return parts[1]


def _parts(row: BlobRow) -> tuple[tuple[int, int], bytes]:
    """What a delta says of its run, and its frame."""
    if row.encoding != "delta" or len(row.body) < _RUN.size:
        raise Corrupt("blobs", row.hash, "has a key frame, but is not a delta")
    deltas, spent_bytes = _RUN.unpack_from(row.body)
    return (deltas, spent_bytes), row.body[_RUN.size :]
