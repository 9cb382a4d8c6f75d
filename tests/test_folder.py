"""The folder store: a file exists whole or not at all, and every error of the disk is raised as a typed error."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

import holdfast
from holdfast.folder import Folder

NAME = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_bytes_come_back_unchanged(tmp_path: Path) -> None:
    data = bytes(range(256)) * 1_000
    Folder(tmp_path / "not" / "there" / "yet").put("family-1", NAME, data)
    assert Folder(tmp_path / "not" / "there" / "yet").get("family-1", NAME) == data


def test_an_empty_file_is_not_no_file(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.get("family-1", NAME) is None
    folder.put("family-1", NAME, b"")
    assert folder.get("family-1", NAME) == b""
    assert folder.delete("family-1", NAME) == 0
    assert folder.get("family-1", NAME) is None


def test_bytes_that_are_there_are_not_written_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put("family-1", NAME, b"abc")
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    before = path.stat()
    folder.put("family-1", NAME, b"abc")
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert files(tmp_path) == [NAME]


def test_spaces_do_not_share_names(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put("family-1", NAME, b"abc")
    folder.put("family-2", NAME, b"abc")
    assert folder.delete("family-1", NAME) == 3
    assert folder.get("family-1", NAME) is None
    assert folder.get("family-2", NAME) == b"abc"
    assert folder.get("family-3", NAME) is None


def test_deleting_says_what_it_freed_and_nothing_the_second_time(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put("family-1", NAME, b"abc")
    assert folder.delete("family-1", NAME) == 3
    assert folder.delete("family-1", NAME) is None
    assert files(tmp_path) == []
    folder.put("family-1", NAME, b"abc")
    assert folder.get("family-1", NAME) == b"abc"


CRASH = """
import os, pathlib, stat, sys
from holdfast.folder import Folder

sync = os.fsync

def die(*_):
    os._exit(9)

def die_at_a_file(handle):
    if stat.S_ISREG(os.fstat(handle).st_mode):
        die()
    sync(handle)

if sys.argv[3] == "before the sync":
    os.fsync = die_at_a_file
else:
    pathlib.Path.replace = die
Folder(sys.argv[1]).put("family-1", sys.argv[2], b"abc" * 1000)
"""


@pytest.mark.parametrize("moment", ["before the sync", "before the rename"])
def test_a_crash_while_writing_leaves_no_half_file(tmp_path: Path, moment: str) -> None:
    assert run(CRASH, str(tmp_path), NAME, moment).returncode == 9
    folder = Folder(tmp_path)
    assert folder.get("family-1", NAME) is None
    assert folder.delete("family-1", NAME) is None
    folder.put("family-1", NAME, b"abc" * 1000)
    assert folder.get("family-1", NAME) == b"abc" * 1000


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, int]]]:
    """Record each sync and each rename in order, with its file or directory."""
    seen: list[tuple[str, tuple[int, int]]] = []
    sync, rename = os.fsync, Path.replace

    def syncing(handle: int) -> None:
        sync(handle)
        found = os.fstat(handle)
        seen.append(("sync", (found.st_dev, found.st_ino)))

    def renaming(source: Path, target: Path) -> Path:
        renamed = rename(source, target)
        seen.append(("rename", place(target)))
        return renamed

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "replace", renaming)
    return seen


def place(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


needs_directory_sync = pytest.mark.skipif(sys.platform == "win32", reason="Windows syncs no directories")


@needs_directory_sync
def test_bytes_are_synced_before_they_get_their_name_and_the_name_before_put_returns(
    tmp_path: Path, steps: list[tuple[str, tuple[int, int]]]
) -> None:
    root = tmp_path / "root"
    Folder(root).put("family-1", NAME, b"abc")
    directory = root / "family-1" / NAME[:2]
    path = directory / NAME
    # A name is durable once its directory is synced: each new directory's own name, too.
    assert steps[-3:] == [("sync", place(path)), ("rename", place(path)), ("sync", place(directory))]
    assert {where for _, where in steps[:-3]} == {place(tmp_path), place(root), place(root / "family-1")}


@needs_directory_sync
def test_a_name_that_another_writer_made_is_synced_before_put_relies_on_it(
    tmp_path: Path, steps: list[tuple[str, tuple[int, int]]]
) -> None:
    folder = Folder(tmp_path)
    folder.put("family-1", NAME, b"abc")
    steps.clear()
    folder.put("family-1", NAME, b"abc")
    assert steps == [("sync", place(tmp_path / "family-1" / NAME[:2]))]


@needs_directory_sync
def test_a_deletion_is_synced_before_it_is_reported(tmp_path: Path, steps: list[tuple[str, tuple[int, int]]]) -> None:
    folder = Folder(tmp_path)
    folder.put("family-1", NAME, b"abc")
    steps.clear()
    assert folder.delete("family-1", NAME) == 3
    assert steps == [("sync", place(tmp_path / "family-1" / NAME[:2]))]


@pytest.mark.parametrize("written_again", [False, True])
def test_files_of_killed_writers_go_with_the_attachment(tmp_path: Path, written_again: bool) -> None:
    for moment in ("before the sync", "before the rename"):
        assert run(CRASH, str(tmp_path), NAME, moment).returncode == 9
    folder = Folder(tmp_path)
    other = NAME[:-1] + "0"
    folder.put("family-1", other, b"other")
    aside = [name for name in files(tmp_path) if name.endswith(".tmp")]
    assert len(aside) == 2
    if written_again:
        folder.put("family-1", NAME, b"abc")
    assert folder.delete("family-1", NAME) == (3 if written_again else None)
    assert files(tmp_path) == [other]


def test_files_of_a_killed_writer_go_with_their_session(tmp_path: Path) -> None:
    database, folder = tmp_path / "agent.db", tmp_path / "bytes"
    with holdfast.open_blocking(database, attachments=folder) as store:
        store.sessions.create("chat").attachments.record_intent(NAME, uri=f"sha256:{NAME}", byte_count=3_000)
        assert run(CRASH, str(folder), NAME, "before the rename").returncode == 9
        assert len(files(folder)) == 1
        store.sessions.delete("chat")
        assert files(folder) == []


def test_a_writer_beside_a_deletion_writes_again_what_was_taken_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rename = Folder(tmp_path), Path.replace
    left = [1]

    def deleting_first(source: Path, target: Path) -> Path:
        if left.pop() if left else 0:
            assert folder.delete("family-1", NAME) is None
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", deleting_first)
    folder.put("family-1", NAME, b"abc")
    assert folder.get("family-1", NAME) == b"abc"
    assert folder.delete("family-1", NAME) == 3
    left.extend([1] * 100)
    with pytest.raises(holdfast.Unavailable, match="while it was written"):
        folder.put("family-1", NAME, b"abc")
    assert files(tmp_path) == []


@needs_directory_sync
def test_a_directory_that_cannot_be_synced_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path)
    folder.put("family-1", NAME, b"abc")

    def failing(handle: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(holdfast.Unavailable) as info:
        folder.put("family-1", NAME, b"abc")
    assert isinstance(info.value.__cause__, OSError)


FULL_DISK = """
import resource, sys
import holdfast
from holdfast.folder import Folder

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    Folder(sys.argv[1]).put("family-1", sys.argv[2], b"x" * 100_000)
except holdfast.Unavailable as error:
    assert isinstance(error.__cause__, OSError), error.__cause__
    assert error.retryable
    assert str(error.__cause__) not in str(error)
    sys.exit(7)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a file size limit of the operating system")
def test_a_disk_that_takes_no_more_is_unavailable_and_leaves_nothing(tmp_path: Path) -> None:
    ran = run(FULL_DISK, str(tmp_path), NAME)
    assert ran.returncode == 7, ran.stderr
    assert files(tmp_path) == []
    assert Folder(tmp_path).get("family-1", NAME) is None


def test_a_path_that_is_not_a_folder_is_unavailable_for_every_call(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.write_text("a file, not a folder")
    folder = Folder(root)
    for call in (
        lambda: folder.put("family-1", NAME, b"abc"),
        lambda: folder.get("family-1", NAME),
        lambda: folder.delete("family-1", NAME),
    ):
        with pytest.raises(holdfast.Unavailable) as info:
            call()
        assert isinstance(info.value.__cause__, OSError)
    with pytest.raises(holdfast.Unavailable, match=r"Not a directory.*: move away"):
        folder.put("family-1", NAME, b"abc")
    assert root.read_text() == "a file, not a folder"


@pytest.mark.parametrize("kind", ["directory", "pipe", "device", "huge"])
def test_anything_in_the_place_of_a_file_is_damage_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    folder = Folder(tmp_path)
    folder.put("family-1", NAME, b"abc")
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(2**40)
    with pytest.raises(holdfast.Corrupt) as info:
        folder.get("family-1", NAME)
    assert (info.value.table, info.value.key) == ("attachment_objects", NAME)
    if kind == "directory":
        with pytest.raises(holdfast.Unavailable, match=r"directory.*: move away what lies in its place"):
            folder.put("family-1", NAME, b"abc")
        with pytest.raises(holdfast.Unavailable, match="could not be deleted"):
            folder.delete("family-1", NAME)
        assert [path.name for path in path.parent.iterdir()] == [NAME], "nothing is left aside"
    else:
        folder.put("family-1", NAME, b"abc")
        assert folder.get("family-1", NAME) == b"abc"


@pytest.mark.parametrize("left", [b"", b"ab", b"abd", b"abcd"])
def test_a_put_over_a_damaged_file_writes_it_anew(tmp_path: Path, left: bytes) -> None:
    database, folder = tmp_path / "agent.db", tmp_path / "bytes"
    with holdfast.open_blocking(database, attachments=folder) as store:
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(attachments=[session.attachments.put(b"abc").id]))
        (path,) = [path for path in folder.rglob("*") if path.is_file()]
        path.write_bytes(left)
        with pytest.raises(holdfast.Corrupt):
            session.attachments.get(NAME)
        session.attachments.put(b"abc")
        assert session.attachments.get(NAME).data == b"abc"
        assert store.maintenance.verify().ok
    assert files(folder) == [NAME]


def test_one_file_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    database, folder = tmp_path / "agent.db", tmp_path / "bytes"
    with holdfast.open_blocking(database, attachments=folder) as store:
        session = store.sessions.create("chat")
        ids = sorted(session.attachments.put(data).id for data in (b"1", b"2", b"3"))
        session.commit(holdfast.Commit(attachments=ids))
        pipe, locked, short = (next(folder.rglob(name)) for name in ids)
        pipe.unlink()
        os.mkfifo(pipe)
        locked.unlink()
        locked.symlink_to(locked)
        short.write_bytes(b"")
        found = {finding.key: finding.problem for finding in store.maintenance.verify().findings}
    assert list(found) == ids
    assert "not a plain file" in found[ids[0]]
    assert "cannot be read" in found[ids[1]]
    assert "do not match" in found[ids[2]]


def test_a_sweep_removes_unrecorded_files_of_killed_writers(tmp_path: Path) -> None:
    database, folder = tmp_path / "agent.db", tmp_path / "bytes"
    for moment in ("before the sync", "before the rename"):
        assert run(CRASH, str(folder), NAME, moment).returncode == 9
    left = sum(path.stat().st_size for path in folder.rglob("*.tmp"))
    with holdfast.open_blocking(database, attachments=folder) as store:
        kept = store.sessions.create("chat").attachments.put(b"kept").id
        assert store.attachments.sweep(older_than_ms=3_600_000) == holdfast.attachments.SweepReport(0, 0, 0)
        assert len(files(folder)) == 3
        store.sessions.handle("chat").attachments.commit_refs([kept])
        assert store.attachments.sweep(older_than_ms=0) == holdfast.attachments.SweepReport(0, 0, left, 2)
    assert files(folder) == [kept]


def test_a_sweep_leaves_files_of_other_programs_and_follows_no_link(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "bytes", tmp_path / "elsewhere"
    unfinished = f"{NAME}.0123456789abcdef.tmp"
    part = NAME[:2]
    ours = folder / "family-7" / part / unfinished
    theirs = [
        folder / "thesis" / "drafts" / "chapter-3.tmp",
        folder / "thesis" / part / unfinished,
        folder / "family-7" / "zz" / unfinished,
        folder / "family-7" / part / f"{NAME}.tmp",
        folder / "family-7" / part / f"{NAME}.backup.tmp",
        folder / "family-7" / part / "notes.tmp",
        folder / "family-7" / unfinished,
        elsewhere / part / unfinished,
        elsewhere / unfinished,
    ]
    for path in (ours, *theirs):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
    (folder / "family-8").symlink_to(elsewhere)
    (folder / "family-9").mkdir()
    (folder / "family-9" / part).symlink_to(elsewhere)
    (folder / "family-7" / part / f"{NAME}.fedcba9876543210.tmp").symlink_to(theirs[0])
    with holdfast.open_blocking("memory:", attachments=folder) as store:
        assert store.attachments.sweep(older_than_ms=0) == holdfast.attachments.SweepReport(0, 0, len("precious"), 1)
        assert not ours.exists()
        assert Folder(folder).delete("family-7", NAME) is None
    assert [path.read_text() for path in theirs] == ["precious"] * len(theirs)


def test_a_file_that_grew_is_refused_without_reading_it(tmp_path: Path) -> None:
    database, folder = tmp_path / "agent.db", tmp_path / "bytes"
    with holdfast.open_blocking(database, attachments=folder) as store:
        session = store.sessions.create("chat")
        ids = sorted(session.attachments.put(data).id for data in (b"1", b"22", b"333"))
        session.attachments.record_intent(ids[1], uri=f"sha256:{ids[1]}", byte_count=2**40)
        session.commit(holdfast.Commit(attachments=ids))
        for name in ids[:2]:
            os.truncate(next(folder.rglob(name)), 900 * 2**20)
        tracemalloc.start()
        try:
            for name in ids[:2]:
                with pytest.raises(holdfast.Corrupt) as info:
                    session.attachments.get(name)
                assert info.value.key == name
            found = {finding.key: finding.problem for finding in store.maintenance.verify().findings}
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert list(found) == ids[:2]
        assert all("has 943718400 bytes" in problem for problem in found.values())
        assert most < 8 * 2**20
        assert len(session.attachments.get(ids[2]).data) <= 3


def test_a_sparse_file_is_refused_without_holding_its_holes_in_memory(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put("family-1", NAME, b"abc")
    os.truncate(next(tmp_path.rglob(NAME)), 400 * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(holdfast.Corrupt, match="do not match their hash"):
            folder.get("family-1", NAME)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * 2**20


def test_a_large_file_is_read_as_it_was_put(tmp_path: Path) -> None:
    data = bytes(65 * 2**20)
    name = hashlib.sha256(data).hexdigest()
    folder = Folder(tmp_path)
    folder.put("family-1", name, data)
    assert folder.get("family-1", name) == data


def test_many_writers_of_the_same_bytes_leave_one_whole_file(tmp_path: Path) -> None:
    data = b"abc" * 100_000
    start = threading.Barrier(8)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            start.wait(30)
            Folder(tmp_path / "new").put("family-1", NAME, data)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert files(tmp_path) == [NAME]
    assert Folder(tmp_path / "new").get("family-1", NAME) == data


@pytest.mark.parametrize("way", ["absolute", "upwards"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, way: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    name = str(victim) if way == "absolute" else "../victim"
    with holdfast.open_blocking("memory:", attachments=tmp_path / "bytes") as store:
        attachments = store.sessions.create("chat").attachments
        attachments.put(b"abc")
        attachments.record_intent(name, uri="s3://bucket/photo")
        with pytest.raises(holdfast.NotFound):
            attachments.get(name)
        attachments.forget(name)
        attachments.record_intent(name, uri=f"sha256:{name}")
        attachments.forget(name)
        attachments.record_intent(name, uri=f"sha256:{name}")
        store.attachments.sweep(older_than_ms=0)
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["../../victim", "/victim", "a/b", "..", "", "a\0b"])
def test_a_name_that_is_not_a_hash_is_refused_by_the_folder_itself(tmp_path: Path, name: str) -> None:
    folder = Folder(tmp_path / "bytes")
    for call in (
        lambda: folder.put("family-1", name, b"abc"),
        lambda: folder.get("family-1", name),
        lambda: folder.delete("family-1", name),
    ):
        with pytest.raises(holdfast.InvalidRequest):
            call()
    assert files(tmp_path) == []


def test_a_store_over_a_folder_survives_its_reopening(tmp_path: Path) -> None:
    database, folder = tmp_path / "agent.db", tmp_path / "bytes"
    with holdfast.open_blocking(database, attachments=folder) as store:
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(attachments=[session.attachments.put(b"abc").id]))
    with holdfast.open_blocking(database, attachments=folder) as store:
        assert store.sessions.handle("chat").attachments.get(NAME).data == b"abc"
        assert store.maintenance.verify().ok


def test_a_store_reads_what_the_database_kept_before_there_was_a_folder(tmp_path: Path) -> None:
    database = tmp_path / "agent.db"
    with holdfast.open_blocking(database) as store:
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(attachments=[session.attachments.put(b"abc").id]))
    with holdfast.open_blocking(database, attachments=tmp_path / "bytes") as store:
        session = store.sessions.handle("chat")
        assert session.attachments.get(NAME).data == b"abc"
        assert session.attachments.forget(NAME) is True
        assert store.maintenance.stats().attachment_bytes == 0
