"""A store keeps using the file that it opened, and reports what it found where there is no file."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

WAIT_S = 60


@pytest.fixture
def back() -> Iterator[None]:
    before = Path.cwd()
    yield
    os.chdir(before)


def sessions(store: holdfast.BlockingStore) -> list[str]:
    return [session.session_id for session in store.sessions.list()]


def in_a_thread(store: holdfast.BlockingStore) -> list[str]:
    found: list[list[str]] = []
    thread = threading.Thread(target=lambda: found.append(sessions(store)))
    thread.start()
    thread.join(WAIT_S)
    return found[0]


@pytest.mark.usefixtures("back")
def test_a_store_that_was_opened_by_a_relative_path_reads_its_own_file_from_anywhere(tmp_path: Path) -> None:
    mine, another = tmp_path / "mine", tmp_path / "another"
    for folder, name in ((another, "other"), (mine, "ours")):
        folder.mkdir()
        os.chdir(folder)
        with holdfast.open_blocking("agent.db", attachments="bytes") as store:
            store.sessions.create(name).attachments.put(name.encode())
    with holdfast.open_blocking("agent.db", attachments="bytes") as store:
        os.chdir(another)
        assert (sessions(store), in_a_thread(store)) == (["ours"], ["ours"])
        store.sessions.create("more").attachments.put(b"more")
        assert store.maintenance.stats().sessions == 2
        assert store.maintenance.diagnose() is not None
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["another", "mine"]
    assert len([file for file in (mine / "bytes").rglob("*") if file.is_file()]) == 2


def replaced(path: Path) -> None:
    """Replace the file of an open store by another store; the open store's readers must not read it."""
    with holdfast.open_blocking(path.with_name("other.db")) as other:
        other.sessions.create("other")
    with holdfast.open_blocking(path) as store:
        store.sessions.create("ours")
        path.rename(path.with_name("moved.db"))
        path.with_name("other.db").rename(path)
        with pytest.raises(holdfast.Unavailable, match="moved, deleted or replaced"):
            sessions(store)
        path.rename(path.with_name("other.db"))
        with pytest.raises(holdfast.Unavailable, match="moved, deleted or replaced"):
            sessions(store)
        path.with_name("moved.db").rename(path)
        assert sessions(store) == ["ours"]


def test_a_file_that_took_the_place_of_the_store_is_not_read(tmp_path: Path) -> None:
    replaced(tmp_path / "a.db")


def test_a_link_that_leads_elsewhere_later_is_not_followed_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with holdfast.open_blocking(tmp_path / f"{name}.db") as store:
            store.sessions.create(name)
    link = tmp_path / "link.db"
    link.symlink_to("a.db")
    with holdfast.open_blocking(link) as store:
        link.unlink()
        link.symlink_to("b.db")
        assert sessions(store) == ["a"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX files")
@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-journal"])
def test_a_pipe_or_a_socket_is_named_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    for kind in ("a named pipe", "a socket"):
        path = tmp_path / kind[2:8].strip() / "a.db"
        path.parent.mkdir()
        if ending:
            holdfast.open_blocking(path).close()
        special = path.with_name(path.name + ending)
        if kind == "a named pipe":
            os.mkfifo(special)
        else:
            # A socket's path is short, the temporary folder's may be long.
            monkeypatch.chdir(special.parent)
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(special.name)
        with pytest.raises(holdfast.InvalidRequest, match=f"a.db{ending} is {kind}, not a file"):
            holdfast.open_blocking(path)
        special.unlink()
        holdfast.open_blocking(path).close()


def test_the_root_folder_is_a_folder() -> None:
    with pytest.raises(holdfast.InvalidRequest, match="/ is a folder: name a file in it"):
        holdfast.open_blocking("sqlite:/")


MOUNTED = """
mount -t tmpfs none "$1" && exec "$2" -c '
import sys, holdfast
try:
    holdfast.open_blocking(sys.argv[1])
except holdfast.InvalidRequest as error:
    assert "is a folder: name a file in it" in str(error), error
else:
    raise SystemExit(1)
' "$1"
"""


def test_a_folder_that_is_a_mount_point_is_a_folder(tmp_path: Path) -> None:
    command = ["unshare", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*command, "mount --bind /tmp /tmp"], check=False).returncode:
        pytest.skip("only root mounts")
    arguments = [MOUNTED, "sh", str(tmp_path), sys.executable]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert result.returncode == 0, result.stdout + result.stderr
