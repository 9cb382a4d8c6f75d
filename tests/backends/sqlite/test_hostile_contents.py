"""A hostile file costs no more than its own size, whatever it claims: reads end with an error that names the row."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
from pathlib import Path

import apsw
import pytest

import holdfast

BLOCK_BYTES = 1 << 17
CLAIMED = 6 << 30


def frame_of_zeros(size: int) -> bytes:
    """Return a zstd frame of blocks that each repeat one byte: 4 bytes for 128 KiB."""
    block = (BLOCK_BYTES << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (BLOCK_BYTES << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    head = b"\x28\xb5\x2f\xfd" + bytes((0b11 << 6, 0x38)) + struct.pack("<Q", size)
    return head + block * (size // BLOCK_BYTES - 1) + last


def test_a_frame_of_zeros_is_a_frame(tmp_path: Path) -> None:
    data = bytes(8 << 20)
    path = tmp_path / "state.db"
    with holdfast.open_blocking(path) as store:
        name = store.sessions.create("chat").attachments.put(data).id
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE attachment_objects SET body = ?", (frame_of_zeros(len(data)),))
    connection.close()
    with holdfast.open_blocking(path) as store:
        assert store.sessions.handle("chat").attachments.get(name).data == data
        assert store.maintenance.verify().ok


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A file with an attachment, an artifact and a component that claim 6 GiB, and one of each that is sound."""
    path = tmp_path / "state.db"
    with holdfast.open_blocking(path) as store:
        session = store.sessions.create("chat")
        names = [session.attachments.put(data).id for data in (b"bomb" * 100, b"sound" * 100)]
        session.commit(
            holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=b"bomb" * 100), attachments=names)
        )
        store.sessions.handle("sound").commit(
            holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=b"sound" * 100))
        )
        store.artifacts.put("module", "bomb", b"bomb" * 100)
        store.artifacts.put("module", "sound", b"sound" * 100)
    bomb = frame_of_zeros(CLAIMED)
    assert len(bomb) < 200_000
    hash = hashlib.sha256(b"bomb" * 100).hexdigest()
    connection = apsw.Connection(str(path))
    for table in ("attachment_objects", "artifacts", "blobs"):
        text = f"UPDATE {table} SET body = ?, size = ?, encoding = 'zstd' WHERE hash LIKE ?"
        connection.execute(text, (bomb, CLAIMED, f"%{hash}"))
        assert connection.changes() == 1
    connection.close()
    return path


def test_many_frames_of_one_checkpoint_are_weighed_together(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    frames = [bytes([number]) + bytes(8 << 20) for number in range(6)]
    with holdfast.open_blocking(path) as store:
        parts = {f"part {number}": data for number, data in enumerate(frames)}
        store.sessions.create("chat").commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(others=parts)))
    assert path.stat().st_size < 1 << 20
    with holdfast.open_blocking(path, limits=holdfast.Limits(load_bytes=40 << 20)) as store:
        tracemalloc.start()
        try:
            with pytest.raises(holdfast.InvalidRequest, match="revision 1/1 claim 50331654 bytes") as info:
                store.sessions.handle("chat").load()
            assert tracemalloc.get_traced_memory()[1] < 1 << 22, "nothing is unpacked"
        finally:
            tracemalloc.stop()
        assert (info.value.field, info.value.limit) == ("limits.load_bytes", 40 << 20)
        assert store.maintenance.verify().ok
    with holdfast.open_blocking(path, limits=holdfast.Limits(load_bytes=50331654)) as store:
        view = store.sessions.handle("chat").load()
        assert view is not None
        assert view.checkpoint is not None
        assert view.checkpoint.others["part 5"] == frames[5]


def test_a_small_frame_that_claims_all_memory_is_named_and_never_unpacked(hostile: Path) -> None:
    with holdfast.open_blocking(hostile) as store:
        session = store.sessions.handle("chat")
        bomb, sound = (hashlib.sha256(data * 100).hexdigest() for data in (b"bomb", b"sound"))
        tracemalloc.start()
        try:
            for table, read in (
                ("attachment_objects", lambda: session.attachments.get(bomb)),
                ("artifacts", lambda: store.artifacts.get("module", "bomb")),
                ("blobs", session.load),
            ):
                with pytest.raises(holdfast.Corrupt, match="claims to have 6442450944 bytes") as info:
                    read()
                assert info.value.table == table
            found = {finding.table for finding in store.maintenance.verify().findings}
            assert tracemalloc.get_traced_memory()[1] < 1 << 25
        finally:
            tracemalloc.stop()
        assert found == {"attachment_objects", "artifacts", "blobs"}
        assert session.attachments.get(sound).data == b"sound" * 100
        artifact = store.artifacts.get("module", "sound")
        assert artifact is not None
        assert artifact.data == b"sound" * 100
        assert store.sessions.handle("sound").load() is not None
