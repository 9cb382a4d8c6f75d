"""An exception of a signal handler, at any moment, reaches its caller and leaves a usable store."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from holdfast import rows as r
from holdfast.backends.sqlite import SqliteBackend, file_locks, readers
from holdfast.errors import Unavailable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

WAIT_S = 120


@pytest.fixture
def handled() -> Any:
    """Install handlers for a signal that nothing else uses."""
    before = signal.getsignal(signal.SIGUSR2)
    yield lambda handler: signal.signal(signal.SIGUSR2, lambda *_: handler())
    signal.signal(signal.SIGUSR2, before)


async def nothing(_: Any) -> None:
    return None


async def ring(_: Any) -> None:
    signal.raise_signal(signal.SIGUSR2)


def test_a_read_that_was_left_in_its_transaction_is_ended_by_the_next(store: Any) -> None:
    store.read(nothing)
    reader = store.backend._readers._main
    reader.runner.connection.execute("BEGIN; SELECT count(*) FROM sqlite_schema")
    assert store.read(nothing) is None
    assert not reader.runner.connection.in_transaction


def test_a_connection_in_the_wrong_state_is_not_damage(store: Any) -> None:
    store.connection.execute("BEGIN")
    for statement in ("begin_read", "release_member"):
        with pytest.raises(Unavailable, match="not in the expected state"):
            store.backend._runner.control(statement)


def test_a_handler_that_raises_ends_its_read_and_no_other(store: Any, handled: Any) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    handled(stop)
    for _ in range(10):
        with pytest.raises(KeyboardInterrupt):
            store.read(ring)
    assert not store.backend._readers._main.busy
    assert store.read(nothing) is None


def test_a_read_within_a_read_is_refused_and_a_close_waits_for_no_call_of_its_thread(store: Any, handled: Any) -> None:
    def read_and_close() -> None:
        with pytest.raises(holdfast.errors.NestedCall):
            store.read(nothing)
        store.close()
        with pytest.raises(holdfast.errors.StoreClosed):
            store.read(nothing)

    handled(read_and_close)

    async def outer(transaction: Any) -> int:
        await ring(transaction)
        return len(await transaction.list_artifacts(r.ArtifactRange(), 5))

    assert store.read(outer) == 0
    store.close()


def test_a_store_closes_after_a_close_that_was_interrupted(tmp_path: Path, handled: Any) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    handled(stop)
    store = holdfast.open_blocking(tmp_path / "a.db")
    backend: Any = store._backend
    right = backend._waiting.settle

    async def interrupted(change: Any) -> None:
        backend._waiting.settle = right
        await ring(None)

    backend._waiting.settle = interrupted
    with pytest.raises(KeyboardInterrupt):
        store.close()
    store.close()
    assert not (tmp_path / "a.db-wal").exists()


# ---------------------------------------------------------------------------- alarms that look like errors of a file


def ring_in_main(right: Callable[..., Any]) -> Callable[..., Any]:
    """Send the signal to the main thread, once."""
    signals = [signal.SIGUSR2]

    def rung(*arguments: Any, **named: Any) -> Any:
        if signals:
            signal.pthread_kill(cast("int", threading.main_thread().ident), signals.pop())
        return right(*arguments, **named)

    return rung


def alarm() -> None:
    raise TimeoutError("the caller's deadline")


OPENING = ("open_files", "is_mount_point", "_lock", "_identity")
"""Functions of an opening around which errors of the operating system are expected."""


@pytest.mark.skipif(sys.platform != "linux", reason="needs locks of open file descriptions")
@pytest.mark.parametrize("step", OPENING)
def test_an_alarm_ends_an_opening_and_leaves_nothing(
    tmp_path: Path, handled: Any, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_alarm_ends_an_opening(tmp_path / "a.db", handled, step, monkeypatch)


def an_alarm_ends_an_opening(path: Path, handled: Any, step: str, patch: pytest.MonkeyPatch) -> None:
    holdfast.open_blocking(path).close()
    discarded = threading.Event()
    discard = SqliteBackend._discard

    def answer(self: Any) -> None:
        discard(self)
        discarded.set()

    handled(alarm)
    with patch.context() as planted:
        planted.setattr(SqliteBackend, "_discard", answer)
        planted.setattr(file_locks, step, ring_in_main(getattr(file_locks, step)))
        with pytest.raises(TimeoutError, match="the caller's deadline"):
            holdfast.open_blocking(path)
        assert discarded.wait(WAIT_S)
    inode = path.stat().st_ino
    locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    assert [line for line in locks if f":{inode} " in line] == []
    with holdfast.open_blocking(path) as store:
        store.sessions.create("chat")
    assert not path.with_name("a.db-wal").exists()


def test_an_alarm_in_the_first_read_leaves_no_connection(tmp_path: Path, handled: Any) -> None:
    handled(alarm)
    with holdfast.open_blocking(tmp_path / "a.db") as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "leads_to", ring_in_main(readers.leads_to))
        with pytest.raises(TimeoutError, match="the caller's deadline"):
            store.sessions.list()
        assert list(store.sessions.list()) == []
    assert not (tmp_path / "a.db-wal").exists()


# ---------------------------------------------------------------------------- interrupts in a row

IN_A_ROW = """
import _thread, functools, signal, sys
import apsw, holdfast
from holdfast import rows as r
from holdfast.backends.sqlite import readers, writer
{plant}

class Stop(BaseException):
    pass

class More(Stop):
    # Making one is a call of the interpreter's own code that reports the next signal. So the next handler runs as soon
    # as the interpreter looks for signals again, after this exception was raised.
    __init__ = staticmethod(functools.partial(_thread.interrupt_main, signal.SIGUSR2))

path, kind, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
left = 0

def ring(*_):
    global left
    if left > 1:
        left -= 1
        raise More
    if left:
        left -= 1
        raise Stop

signal.signal(signal.SIGUSR2, ring)
store = holdfast.open_blocking(path)
backend = store._backend
other = apsw.Connection(path)

async def interrupted(transaction):
    global left
    await transaction.list_artifacts(r.ArtifactRange(), 5)
    left = wanted
    signal.raise_signal(signal.SIGUSR2)

def locked():
    if kind == "read":
        reader = backend._readers._main
        return reader.runner.connection.in_transaction
    try:
        other.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return True
    other.execute("ROLLBACK")
    return False

for wanted in range(1, most + 1):
    try:
        try:
            backend.drive(getattr(backend, kind)(interrupted))
        finally:
            unused, left = left, 0
    except Stop:
        pass
    if locked():
        print(wanted - unused, end=" ")
store.close()
"""


def locks_left(path: Path, kind: str, plant: str = "") -> list[int]:
    """Return after how many interrupts in a row a transaction was left open."""
    command = [sys.executable, "-c", IN_A_ROW.replace("{plant}", plant), str(path), kind, "8"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert result.returncode == 0, result.stderr
    return [int(number) for number in result.stdout.split()]


@pytest.mark.parametrize("kind", ["write", "read"])
def test_interrupts_in_a_row_leave_no_transaction_open(tmp_path: Path, kind: str) -> None:
    assert locks_left(tmp_path / "a.db", kind) == []


PLANTED = {
    "write": """
right = writer.Writer.__init__

def init(self, runner, *arguments, **named):
    right(self, runner, *arguments, **named)
    self._execute = lambda text: runner.control("rollback")

writer.Writer.__init__ = init
""",
    "read": """
right = readers.Readers._run_on

class Slow:
    def __init__(self, runner):
        self.runner, self.names, self.control = runner, runner.names, runner.control
        self.connection = self

    def __getattr__(self, name):
        return getattr(self.runner, name) if name in runner_names else getattr(self.runner.connection, name)

    def execute(self, *arguments):
        return self.runner.connection.execute(*arguments)

runner_names = ("all", "run", "run_many", "page", "path", "pragma")
readers.Readers._run_on = lambda self, runner, operation: right(self, Slow(runner), operation)
""",
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_bug_that_rolls_back_in_several_steps_is_noticed(tmp_path: Path, kind: str) -> None:
    assert locks_left(tmp_path / "a.db", kind, PLANTED[kind]) != []
