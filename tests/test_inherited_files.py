"""A forked child uses no store and no SQLite file of its parent, however and whenever it was forked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")

WAIT_S = 60

HEAD = """
import ctypes, os, sys
import holdfast
path = sys.argv[1]

def found(work):
    try:
        return str(work())
    except holdfast.errors.StoreForked as error:
        return f"StoreForked {error.retryable}: {error}"
    except BaseException as error:
        return repr(error)

def in_a_child(*works, fork=os.fork):
    ours, theirs = os.pipe()
    pid = fork()
    if pid == 0:
        os.write(theirs, chr(0).join(map(found, works)).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answers:
        read = answers.read()
    os.waitpid(pid, 0)
    return read.split(chr(0))

def write(path):
    with holdfast.open_blocking(path) as store:
        return store.sessions.handle("chat").commit(holdfast.Commit()).revision
"""


def check(program: str, path: Path) -> None:
    command = [sys.executable, "-c", HEAD + program, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert result.returncode == 0, result.stdout + result.stderr


BEFORE_THE_BACKEND = """
import apsw
connection = apsw.Connection(path)
connection.execute("PRAGMA journal_mode = wal").fetchall()
assert not any(name.startswith("holdfast.backends") for name in sys.modules)
[answer] = in_a_child(lambda: write(path))
assert answer.startswith("StoreForked False"), answer
connection.close()
assert in_a_child(lambda: write(path)) == ["1"]
"""


def test_a_file_counts_as_open_from_the_first_import_on(tmp_path: Path) -> None:
    check(BEFORE_THE_BACKEND, tmp_path / "a.db")


FROM_C = """
store = holdfast.open_blocking(path)
store.sessions.create("chat")
fork = ctypes.PyDLL(None).fork

def drop():
    from holdfast.backends.sqlite import file_locks
    [locks] = file_locks._process.held.values()
    locks.release()
    return "released"

old, new, again, _ = in_a_child(store.sessions.list, lambda: write(path), lambda: write(path), drop, fork=fork)
assert old.startswith("StoreForked False") and new.startswith("StoreForked False"), (old, new)
assert again == new, again
if sys.platform == "linux":
    inode = os.stat(path).st_ino
    assert [line for line in open("/proc/locks") if "OFDLCK" in line and f":{inode} " in line]
store.close()
assert in_a_child(lambda: write(path), fork=fork) == ["1"]
"""


def test_a_fork_that_c_code_makes_is_noticed(tmp_path: Path) -> None:
    check(FROM_C, tmp_path / "a.db")


IN_MEMORY = """
for url in ("memory:", "sqlite::memory:"):
    store = holdfast.open_blocking(url)
    store.sessions.create("chat")
    calls = (store.sessions.list, lambda: store.sessions.create("more"), lambda: store.queue.wait("x", timeout_ms=1))
    *answers, closed, after = in_a_child(*calls, store.close, store.sessions.list)
    assert all(answer.startswith("StoreForked False") for answer in [*answers, after]), answers
    assert closed == "None", closed
    [session] = store.sessions.list()
    store.close()
"""


def test_a_store_in_memory_is_the_parents(tmp_path: Path) -> None:
    check(IN_MEMORY, tmp_path / "a.db")
