"""Output files and streams are written whole, never replace the store itself, and keep their type and permissions."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Any:
    yield
    assert [one.name for one in tmp_path.rglob(".holdfast-*")] == []


def test_a_file_is_replaced_where_it_lies_and_nothing_else_is(on: Any, filled: Any, tmp_path: Path) -> None:
    file, link, pipe = tmp_path / "private.jsonl", tmp_path / "link.jsonl", tmp_path / "pipe"
    file.write_text("old")
    file.chmod(0o600)
    link.symlink_to(file)
    assert on("sessions", "export", "chat", "-o", link, "--yes").code == 0
    assert (link.is_symlink(), file.stat().st_mode & 0o777) == (True, 0o600)
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(pipe.read_bytes)
        assert on("sessions", "export", "chat", "-o", pipe).code == 0
    assert read.result() == file.read_bytes()
    assert pipe.is_fifo()
    assert on("sessions", "export", "chat", "-o", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("name", ["there", "nowhere/chat.jsonl"])
def test_a_file_that_cannot_be_written_is_named_as_it_was_given(
    on: Any, filled: Any, tmp_path: Path, name: str
) -> None:
    (tmp_path / "there").mkdir()
    said = on("sessions", "export", "chat", "-o", tmp_path / name, "--yes")
    assert (said.code, f"{tmp_path / name}: " in said.err) == (2, True)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("through_link", [False, True])
def test_the_store_itself_is_never_replaced(run: Any, tmp_path: Path, suffix: str, *, through_link: bool) -> None:
    file, link = tmp_path / "agent.db", tmp_path / "link"
    with holdfast.open_blocking(file) as store:
        session = store.sessions.create("chat")
        ref = session.attachments.put(b"abc")
        link.symlink_to(f"{file}{suffix}")
        output = link if through_link else f"{file}{suffix}"
        for url in (file, f"sqlite:{file}"):
            for command in (["sessions", "export", "chat"], ["attachments", "get", "chat", ref.id]):
                said = run(*command, "-o", output, "--yes", "--url", url)
                assert (said.code, "is the store itself" in said.err) == (2, True)
        assert session.meta() is not None


def test_names_of_any_length_and_any_bytes_are_written(on: Any, filled: Any, tmp_path: Path) -> None:
    assert on("sessions", "export", "chat", "-o", tmp_path / ("x" * 255)).code == 0
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xfe.jsonl")
    said = on("sessions", "export", "chat", "-o", odd, "--json")
    assert (said.code, said.json["output"].endswith("\\udcfe.jsonl")) == (0, True)
    for name in ("loop", "folder/"):
        (tmp_path / "loop").unlink(missing_ok=True)
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        said = on("sessions", "export", "chat", "-o", f"{tmp_path}/{name}")
        assert (said.code, f"{tmp_path}/{name}: " in said.err) == (2, True)


def test_a_replacement_of_a_private_file_is_private_while_it_is_written(
    on: Any, filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    real = os.fsync

    def spy(descriptor: int) -> None:
        modes.append(os.fstat(descriptor).st_mode & 0o777)
        real(descriptor)

    monkeypatch.setattr("holdfast.cli.outputs.os.fsync", spy)
    assert on("sessions", "export", "chat", "-o", tmp_path / "chat.jsonl").code == 0
    assert modes == [0o600]
    plain = tmp_path / "plain"
    plain.touch()
    assert (tmp_path / "chat.jsonl").stat().st_mode == plain.stat().st_mode


def test_bytes_go_to_standard_output_by_its_usual_name(on: Any, filled: Any) -> None:
    [ref, *_] = on("attachments", "list", "chat", "--json").json["items"]
    assert on("attachments", "get", "chat", ref["id"], "-o", "-").out == on("attachments", "get", "chat", ref["id"]).out


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_is_cut_short_is_reported(tmp_path: Path, unbuffered: str) -> None:
    with holdfast.open_blocking(tmp_path / "a.db") as store:
        session = store.sessions.create("chat")
        ref = session.attachments.put(b"x" * 300_000)
        session.commit(holdfast.Commit(attachments=[ref.id]))
    for command in ("sessions export chat", f"attachments get chat {ref.id}"):
        line = f"ulimit -f 100; {sys.executable} -m holdfast {command} --url {tmp_path / 'a.db'} > {tmp_path / 'cut'}"
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, "input or output failed: File too large" in done.stderr) == (74, True)


def test_leftovers_of_commands_killed_a_day_ago_are_removed_by_the_next_one(
    on: Any, filled: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "exports"
    folder.mkdir()
    old, young, other = (folder / name for name in (f".holdfast-{'0' * 16}", f".holdfast-{'1' * 16}", ".holdfast-x"))
    for file in (old, young, other):
        file.write_text("half")
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    assert on("sessions", "export", "chat", "-o", folder / "chat.jsonl").code == 0
    assert sorted(one.name for one in folder.iterdir()) == sorted([young.name, other.name, "chat.jsonl"])
    young.unlink()
    other.unlink()
