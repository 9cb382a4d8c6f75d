"""Another copy of SQLite in this process keeps its log and its locks, and so does the store.

Each program runs in its own process, because a bug here kills it. The planted bugs are part of the program.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs locks of open file descriptions")

WAIT_S = 120

HEAD = """
import os, signal, sqlite3, subprocess, sys
import apsw, holdfast
path = sys.argv[1]

def refused(kind=holdfast.InvalidRequest, said="another copy of SQLite"):
    try:
        holdfast.open_blocking(path)
    except kind as error:
        assert said in str(error), error
    else:
        raise AssertionError("not refused")
"""


def run(program: str, path: Path, plant: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HEAD + plant + program, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)


# ---------------------------------------------------------------------------- a refused opening changes nothing

REFUSED = """
holdfast.open_blocking(path).close()
ours = sqlite3.connect(path, isolation_level=None)
ours.execute("CREATE TABLE mine (x)")
ours.execute("INSERT INTO mine VALUES (0)")
index = os.stat(path + "-shm")
for number in range(1, 6):
    refused()
    assert os.stat(path + "-shm").st_mtime_ns == index.st_mtime_ns
    ours.execute("INSERT INTO mine VALUES (?)", (number,))
assert os.path.exists(path + "-wal")
assert len(apsw.connections()) == 0
os.kill(os.getpid(), signal.SIGKILL)
"""


def rows_after_a_refused_opening(path: Path, plant: str = "") -> int:
    result = run(REFUSED, path, plant)
    assert result.returncode == -signal.SIGKILL, result.stderr
    command = [sys.executable, "-c", "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute(sys.argv[2]))"]
    counted = subprocess.run([*command, str(path), "SELECT count(*) FROM mine"], capture_output=True, check=True)
    return int(counted.stdout.decode().strip("(,)\n"))


def test_a_refused_opening_leaves_the_log_to_the_application(tmp_path: Path) -> None:
    assert rows_after_a_refused_opening(tmp_path / "a.db") == 6


NOTICED_TOO_LATE = """
from holdfast.backends.sqlite import file_locks, connection
right = file_locks.is_open_in_another_copy
file_locks.is_open_in_another_copy = lambda path: False
connection.is_open_in_another_copy = lambda path: False
"""


def test_a_planted_bug_that_refuses_after_opening_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        assert rows_after_a_refused_opening(tmp_path / "a.db", NOTICED_TOO_LATE) == 6


BESIDE_OUR_OWN = """
holdfast.open_blocking(path).close()
idle = apsw.Connection(path)  # has not read yet, so that the log is not in use by our copy
ours = sqlite3.connect(path, isolation_level=None)
ours.execute("BEGIN IMMEDIATE")
before = None
for _ in range(5):
    refused()
    descriptors = len(os.listdir("/proc/self/fd"))
    assert before in (None, descriptors)
    before = descriptors
ask = "import apsw, sys; apsw.Connection(sys.argv[1]).execute('BEGIN IMMEDIATE')"
answer = subprocess.run([sys.executable, "-c", ask, path], capture_output=True, text=True)
assert "BusyError" in answer.stderr, answer
ours.execute("ROLLBACK")
ours.close()
idle.execute("SELECT count(*) FROM sessions").get
with holdfast.open_blocking(path) as store:
    store.sessions.create("chat")
idle.close()
assert not os.path.exists(path + "-wal")
"""


def test_a_connection_of_our_own_copy_that_has_not_read_does_not_hide_another_copy(tmp_path: Path) -> None:
    result = run(BESIDE_OUR_OWN, tmp_path / "a.db")
    assert result.returncode == 0, result.stderr


OF_ANOTHER_PROGRAM = """
ours = sqlite3.connect(path, isolation_level=None)
ours.execute("CREATE TABLE theirs (x)")
ours.execute("BEGIN IMMEDIATE")
ours.execute("INSERT INTO theirs VALUES (1)")
for _ in range(3):
    refused()
ask = "import apsw, sys; apsw.Connection(sys.argv[1]).execute('BEGIN IMMEDIATE')"
answer = subprocess.run([sys.executable, "-c", ask, path], capture_output=True, text=True)
assert "BusyError" in answer.stderr, answer
ours.execute("COMMIT")
refused(holdfast.Incompatible, "another program")
"""


def test_a_database_of_another_program_that_is_refused_keeps_the_lock_that_is_held_on_it(tmp_path: Path) -> None:
    result = run(OF_ANOTHER_PROGRAM, tmp_path / "a.db")
    assert result.returncode == 0, result.stderr


# ---------------------------------------------------------------------------- the store continues beside it

OTHER = """
import sys, holdfast
for round in range(12):
    with holdfast.open_blocking(sys.argv[1]) as store:
        for turn in range(5):
            state = holdfast.Checkpoint(turn_state={"x": "z" * 20_000})
            store.sessions.handle("other").commit(holdfast.Commit(turn_id=f"{round}-{turn}", checkpoint=state))
"""

ALIVE = f"""
store = holdfast.open_blocking(path)
session = store.sessions.create("chat")
other = subprocess.Popen([sys.executable, "-c", {OTHER!r}, path])
revision = 0
while other.poll() is None:
    # Its close drops the lock of this process that says that the write-ahead log is in use.
    beside = sqlite3.connect(path)
    beside.execute("SELECT count(*) FROM sessions").fetchone()
    beside.close()
    state = holdfast.Checkpoint(turn_state={{"x": "z" * 20_000}})
    try:
        revision = session.commit(holdfast.Commit(checkpoint=state, expected_revision=revision)).revision
    except holdfast.Unavailable as error:
        assert error.outcome == "not_applied", error
assert other.returncode == 0
assert session.load().revision == revision > 0
store.close()
print(revision)
"""


def written_beside_another_process(path: Path, plant: str = "") -> None:
    result = run(ALIVE, path, plant)
    assert result.returncode == 0, (result.returncode, result.stderr)
    with holdfast.open_blocking(path) as store:
        assert store.maintenance.verify().findings == ()
        chat, other = store.sessions.handle("chat").load(), store.sessions.handle("other").load()
        assert chat is not None
        assert other is not None
        assert (chat.revision, other.revision) == (int(result.stdout), 60)


def test_another_process_never_takes_the_log_of_a_store_that_is_alive_for_unused(tmp_path: Path) -> None:
    written_beside_another_process(tmp_path / "a.db")


NOT_ALIVE = """
from holdfast.backends.sqlite import file_locks
right = file_locks._lock
file_locks._lock = lambda file, place, **how: place == file_locks.ALIVE_RANGE or right(file, place, **how)
"""


def test_a_planted_bug_that_does_not_say_that_the_store_is_alive_is_noticed(tmp_path: Path) -> None:
    """The other process truncates the `-shm` file that this one has mapped, which kills it (SIGBUS), or worse."""

    def try_often() -> None:
        for number in range(5):  # the two processes meet at a moment that depends on the machine
            written_beside_another_process(tmp_path / f"{number}.db", NOT_ALIVE)

    with pytest.raises((AssertionError, holdfast.HoldfastError)):
        try_often()
