"""A blocking caller that finds the writer idle writes in its own thread; an interrupt there leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import rows as r
from holdfast.errors import NestedCall, StoreClosed

WAIT_S = 60


def put(ref: str) -> Any:
    async def operation(transaction: Any) -> int:
        await transaction.save_artifact(r.ArtifactRow("k", ref, "h", "raw", 1, transaction.now_ms, b"x"))
        transaction.notify(ref)
        return threading.get_ident()

    return operation


def stored(store: Any) -> list[str]:
    return sorted(row[1] for row in store.backend.dump()["artifacts"])


class Held:
    """A write in the caller's thread that stops in the middle until it is released."""

    def __init__(self, store: Any, threads: ThreadPoolExecutor) -> None:
        self.started, self.go_on = threading.Event(), threading.Event()
        self.done: Future[Any] = threads.submit(store.write, self._hold)
        assert self.started.wait(WAIT_S)

    async def _hold(self, transaction: Any) -> None:
        await put("held")(transaction)
        self.started.set()
        assert self.go_on.wait(WAIT_S)


def test_a_caller_that_may_block_writes_in_its_own_thread(store: Any) -> None:
    before = set(threading.enumerate())
    assert store.write(put("a")) == threading.get_ident()
    assert set(threading.enumerate()) <= before
    assert stored(store) == ["a"]


def test_a_writer_waits_behind_the_one_that_writes(store: Any) -> None:
    with ThreadPoolExecutor(4) as threads:
        held = Held(store, threads)
        later = [threads.submit(store.write, put(f"later-{index}")) for index in range(3)]
        held.go_on.set()
        held.done.result(WAIT_S)
        idents = {each.result(WAIT_S) for each in later}
    assert threading.get_ident() not in idents
    assert stored(store) == ["held", "later-0", "later-1", "later-2"]


def test_closing_waits_for_a_write_that_began_and_refuses_the_next(store: Any) -> None:
    with ThreadPoolExecutor(2) as threads:
        held = Held(store, threads)
        closed = threads.submit(store.close)
        held.go_on.set()
        held.done.result(WAIT_S)
        closed.result(WAIT_S)
    with pytest.raises(StoreClosed):
        store.write(put("late"))


def test_an_interrupt_in_an_operation_is_the_callers_and_leaves_nothing(store: Any) -> None:
    async def interrupted(transaction: Any) -> None:
        await put("never")(transaction)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write(interrupted)
    assert not store.connection.in_transaction
    store.write(put("after"))
    assert stored(store) == ["after"]


class Interrupting:
    """A connection wrapper that is interrupted right after one of its statements."""

    def __init__(self, runner: Any, statement: str, interrupt: type[BaseException]) -> None:
        self._runner, self._statement, self._interrupt = runner, statement, interrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._runner, name, value)

    def control(self, name: str) -> None:
        self._runner.control(name)
        if name == self._statement:
            object.__setattr__(self, "_statement", "")
            raise self._interrupt


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize(("statement", "left"), [("begin_write", []), ("commit", ["a"])])
def test_an_interrupt_between_two_steps_takes_effect_and_the_next_write_works(
    store: Any, statement: str, left: list[str], interrupt: type[BaseException]
) -> None:
    writer = store.backend._writer
    found: list[str] = []
    writer._signals.publish = found.extend
    runner = writer._runner
    writer._runner = Interrupting(runner, statement, interrupt)
    with pytest.raises(interrupt):
        store.write(put("a"))
    writer._runner = runner
    assert stored(store) == left
    # A stored write wakes watchers, although its caller was interrupted.
    assert found == left
    store.write(put("b"))
    assert stored(store) == [*left, "b"]


def test_a_transaction_that_an_interrupt_left_open_is_taken_back_before_the_next(store: Any) -> None:
    store.connection.execute("BEGIN IMMEDIATE")
    store.connection.execute("DELETE FROM settings")
    before = store.backend._readers.run(lambda transaction: transaction.fence_floor())
    store.write(put("a"))
    assert stored(store) == ["a"]
    assert store.ask("fence_floor") == before


INTERRUPTED_AT_RANDOM = """
import json, random, signal, sys, time
import holdfast

chance = random.Random(7)
store = holdfast.open_blocking(sys.argv[1], options=holdfast.SqliteOptions(synchronous="off"))
session = store.sessions.create("chat")
interrupts, answers = 0, set()
store.sessions.handle("other").append("warm")
began_s = time.perf_counter()
for _ in range(20):
    store.sessions.handle("other").append("timed")
usual_s = (time.perf_counter() - began_s) / 20  # an interrupt that comes later than a turn takes would miss it

def ring(*_):
    # A handler that writes while its own thread is writing gets an error: it would wait for itself.
    try:
        store.sessions.handle("other").save_meta(holdfast.sessions.SessionMeta("other", "x", created_at_ms=0))
        answers.add("stored")
    except holdfast.errors.NestedCall as error:
        answers.add("refused")
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, ring)
number, longest_s = 1, 5 * usual_s
while number <= 300:
    node = holdfast.Node(f"n{number}", parent=f"n{number - 1}" if number > 1 else None)
    turn = holdfast.Commit(turn_id=f"t{number}", graph=holdfast.Append([node], leaf=node.id))
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00005, max(longest_s, 0.0001)))
        session.commit(turn)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupts += 1
        longest_s *= 1.02  # however slow the machine, a turn gets through in the end
        continue
    number, longest_s = number + 1, 5 * usual_s
view = session.load()
print(json.dumps([view.revision, len(view.graph.nodes), list(store.maintenance.verify().findings), interrupts > 20,
                  sorted(answers)]))
store.close()
"""


with_timers = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")


def said_by(script: str, path: Path) -> Any:
    """Return what a script prints about a store at a path, run in its own process with its own signals."""
    command = [sys.executable, "-c", script, str(path)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


CLOSED_BY_A_SIGNAL = """
import json, signal, sys
import holdfast

store = holdfast.open_blocking(sys.argv[1])
session = store.sessions.create("chat")
signal.signal(signal.SIGALRM, lambda *_: store.close())
signal.setitimer(signal.ITIMER_REAL, 0.05)
turns = 0
try:
    while True:
        session.commit(holdfast.Commit(turn_id=f"t{turns + 1}"))
        turns += 1
except holdfast.errors.StoreClosed:
    pass
store.close()
with holdfast.open_blocking(sys.argv[1]) as again:
    stored = again.sessions.handle("chat").load().revision
print(json.dumps([turns > 0, stored - turns]))
"""


@with_timers
def test_a_signal_handler_may_close_the_store_in_the_middle_of_a_write(tmp_path: Path) -> None:
    for number in range(5):
        worked, more = said_by(CLOSED_BY_A_SIGNAL, tmp_path / f"state-{number}.db")
        assert worked
        # The write that was interrupted by the close ends, and is acknowledged or at least not half lost.
        assert more in (0, 1)


INTERRUPTED_WHILE_IT_TELLS = """
import json, random, signal, sys
from concurrent.futures import wait
from holdfast.backends.sqlite import SqliteBackend, SqliteOptions
from holdfast.wait import BlockingWaiting
from holdfast import rows as r

class Clock:
    def now_ms(self):
        return 1

backend = SqliteBackend.open(sys.argv[1], SqliteOptions(synchronous="off"), Clock(), BlockingWaiting())
chance, number, interrupts, unreported = random.Random(3), 0, 0, 0

def ring(*_):
    raise KeyboardInterrupt

async def put(transaction):
    await transaction.save_artifact(r.ArtifactRow("k", str(number), "h", "raw", 1, 1, b"x"))
    transaction.notify("topic")

async def is_there(transaction):
    return await transaction.find_artifact("k", str(number)) is not None

# Begins the threads: Python itself does not stand an interrupt while it starts one.
first = backend.watch("topic")
backend.drive(backend.write(put))
first.result(20)
signal.signal(signal.SIGALRM, ring)
for number in range(1, 400):
    changes = [backend.watch("topic") for _ in range(20)]
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00005, 0.0012))
        backend.drive(backend.write(put))
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupts += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    if backend.drive(backend.read(is_there)):
        _, late = wait(changes, timeout=20)  # the news comes after the commit, from another thread
        unreported += len(late)
    for change in changes:
        change.cancel()
print(json.dumps([interrupts > 20, unreported]))
backend.drive(backend.close())
"""


@with_timers
def test_an_interrupt_while_watchers_are_woken_leaves_none_of_them_asleep(tmp_path: Path) -> None:
    assert said_by(INTERRUPTED_WHILE_IT_TELLS, tmp_path / "state.db") == [True, 0]


def test_a_write_of_a_finalizer_in_the_writers_thread_is_refused_and_not_waited_for(store: Any) -> None:
    answers: list[type[BaseException]] = []

    async def finalizing(transaction: Any) -> None:
        try:
            store.write(put("never"))
        except NestedCall as error:
            answers.append(type(error))

    store.submit(finalizing).result(WAIT_S)
    store.write(finalizing)
    assert answers == [NestedCall, NestedCall]
    assert stored(store) == []


def test_a_thread_that_could_not_be_started_is_tried_again(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for call in (lambda: store.submit(put("a")), lambda: store.backend.watch("topic")):
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError):
                call()
    assert store.submit(put("b")).result(WAIT_S)
    change = store.backend.watch("b")
    store.write(put("b"))
    assert change.result(WAIT_S) is None
    store.close()


@with_timers
def test_interrupts_at_any_moment_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    answer = said_by(INTERRUPTED_AT_RANDOM, tmp_path / "state.db")
    revision, nodes, findings, interrupted_often, answers = answer
    assert (revision, nodes, findings, interrupted_often) == (300, 300, [], True)
    assert "refused" in answers
