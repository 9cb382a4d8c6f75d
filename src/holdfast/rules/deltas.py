"""A large content is stored as its difference from a key frame for as long as that is cheaper than a new key frame.

A key frame is a content that is stored whole. A delta rests on a key frame and never on another delta, so that a read
needs at most one of each. The hash is that of the whole content, whichever way it is stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import msgspec

from holdfast import codec
from holdfast.errors import Corrupt, InvalidRequest
from holdfast.rows import BlobRow, Run

DELTA_FROM_BYTES = 4 * 1024
"""Smaller contents, and differences from smaller ones, are not worth a second row and the lock on it."""

DELTA_UP_TO_BYTES = 1 << codec.LARGEST_WINDOW_LOG
"""A larger content would need a larger window than readers allow."""

MISSES_BEFORE_BACKOFF, TRIED_EACH = 2, 8
"""After so many contents in a row that were stored whole, only those that plainly continue the last one are tried, and
each eighth if it has a sample in common with it.
"""

SAMPLES, SAMPLE_BYTES = 4, 16

_RUN = struct.Struct("<IQ")
"""The header of a delta's frame: the number of earlier deltas in its run, and their total bytes."""


def is_large(data: bytes) -> bool:
    """Return True if a content may be stored as a delta, or be a key frame."""
    return DELTA_FROM_BYTES <= len(data) <= DELTA_UP_TO_BYTES


def stored(ref: str, data: bytes, run: Run | None) -> BlobRow:
    """Return the row of a content: a delta on the run of its predecessor, or whole."""
    if run is not None and is_large(data) and is_large(run.data) and is_worth_trying(run, data):
        body = _RUN.pack(run.deltas, run.spent_bytes) + codec.pack_delta(data, run.data)
        if is_worth_it(run, len(body)):
            return BlobRow(ref, "delta", len(data), body, run.ref)
    encoding, body = codec.pack(data)
    return BlobRow(ref, encoding, len(data), body)


def is_worth_trying(run: Run, data: bytes) -> bool:
    """Return True unless the last contents had too little in common. Making a delta costs more than packing whole."""
    if run.misses < MISSES_BEFORE_BACKOFF or _continues(run.data, data):
        return True
    return run.misses % TRIED_EACH == 0 and _has_sample_of(run.data, data)


def _continues(before: bytes, data: bytes) -> bool:
    """Return True if half of a content is at the start or the end of the one before, or a quarter at each."""
    half, quarter = len(data) // 2, len(data) // 4
    if before.startswith(data[:quarter]):
        return before.startswith(data[:half]) or before.endswith(data[-quarter:])
    return before.endswith(data[-half:])


def _has_sample_of(before: bytes, data: bytes) -> bool:
    """Return True if one of a few samples of a content is in the one before. A delta that pays has half of it there."""
    step = len(data) // SAMPLES
    return any(data[at : at + SAMPLE_BYTES] in before for at in range(step // 2, len(data), step))


def is_worth_it(run: Run, delta_bytes: int) -> bool:
    """Return True if one more delta makes the run cheaper.

    Deltas grow with their distance from the key frame. As long as the next one takes no more than the average content
    of the run, key frame included, it lowers that average; from then on a new key frame is cheaper. A delta of more
    than half a key frame is not worth reading both.
    """
    return delta_bytes * 2 <= run.stored_bytes and delta_bytes * (run.deltas + 1) <= run.stored_bytes + run.spent_bytes


def run_after(row: BlobRow, data: bytes, run: Run | None) -> Run | None:
    """Return the run that a content ends once it is stored, None if nothing can be stored as a delta on it."""
    if run is not None and row.base_hash == run.ref:
        spent_bytes = run.spent_bytes + len(row.body)
        return msgspec.structs.replace(run, deltas=run.deltas + 1, spent_bytes=spent_bytes, misses=0)
    misses = 0 if run is None else run.misses + 1
    return Run(row.hash, data, len(row.body), misses=misses) if row.base_hash is None and is_large(data) else None


def run_of(ref: str, rows: Iterable[BlobRow]) -> Run | None:
    """Return the run that a stored content ends, from its row and its key frame's; None if it cannot take a delta."""
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


def require_room(rows: Sequence[BlobRow], most_bytes: int, *, needed_by: str) -> None:
    """Refuse to unpack more than one load may hold: small frames in a hostile file could together claim all memory."""
    for row in rows:
        codec.check_claim(row.size, table="blobs", key=row.hash)
    size = sum(row.size for row in rows)
    if size > most_bytes:
        largest = max(rows, key=lambda row: row.size)
        raise InvalidRequest(
            "limits.load_bytes",
            f"the contents of {needed_by} claim {size} bytes, blob {largest.hash} the most of them; the limit is "
            f"{most_bytes}: raise it to load them",
            limit=most_bytes,
        )


def require_room_for_all(rows: Iterable[BlobRow], views: Iterable[Sequence[str]], most_bytes: int) -> None:
    """Refuse to make views whose contents are too large together. A content counts once for each view with it."""
    sizes = {row.hash: row.size for row in rows}
    size = sum(sizes.get(ref, 0) for refs in views for ref in refs)
    if size > most_bytes:
        raise InvalidRequest(
            "limits.load_bytes",
            f"the contents of the revisions claim {size} bytes together; the limit is {most_bytes}: load fewer of them "
            "in one call, or raise it",
            limit=most_bytes,
        )


def opened(rows: Iterable[BlobRow]) -> dict[str, bytes]:
    """Return stored contents, each proven by its hash. The key frames of deltas must be among the rows."""
    found = {row.hash: row for row in rows}
    whole = {ref: _opened(row, row.body, None) for ref, row in found.items() if row.base_hash is None}
    resting = [(row, row.base_hash) for row in found.values() if row.base_hash is not None]
    unusable = [(base_hash not in found, row.hash, base_hash) for row, base_hash in resting if base_hash not in whole]
    # A key frame that is itself a delta is reported first: its own key frame was not asked for, so that its absence
    # proves no loss.
    for missing, ref, base_hash in sorted(unusable):
        problem = "is missing" if missing else "is a delta itself"
        raise Corrupt("blobs", ref, f"its key frame {base_hash} {problem}")
    return whole | {row.hash: _opened(row, _parts(row)[1], whole[base_hash]) for row, base_hash in resting}


def prove(row: BlobRow, key_frames: Iterable[BlobRow]) -> None:
    """Raise `Corrupt` unless a stored content can be read. Holds only the key frame of a delta in memory."""
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
    """Return the run of a delta, as its header has it, and its frame."""
    if row.encoding != "delta" or len(row.body) < _RUN.size:
        raise Corrupt("blobs", row.hash, "has a key frame, but is not a delta")
    deltas, spent_bytes = _RUN.unpack_from(row.body)
    return (deltas, spent_bytes), row.body[_RUN.size :]
