"""Transactions of `store.transaction()` under cancellation, interrupts, lost connections and killed processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import wait
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.postgres import other_loops
from holdfast.errors import NestedCall, TransactionExpired
from holdfast.open_transaction import LOOK_S
from holdfast.ports import Transaction
from holdfast.rows import ArtifactRow

TIMEOUT_S = 30
KINDS = ["memory", "sqlite", "postgres"]
EDGES = tuple(
    str(Path("holdfast", name)) for name in ("blocking.py", "nesting.py", "open_transaction.py", "store/transaction.py")
)
"""Files whose lines the thread of a blocking transaction runs as it enters and leaves its block."""

Open = Callable[[], Any]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("clean_postgres_url"))
    return "memory:" if request.param == "memory" else str(tmp_path / "agents.db")


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[holdfast.Store]:
    async with asyncio.timeout(TIMEOUT_S), holdfast.open(url, **options) as store:
        yield store


async def names(store: holdfast.Store) -> list[str]:
    return [entry.session_id for entry in await store.sessions.list()]


def row(ref: str) -> ArtifactRow:
    return ArtifactRow("module", ref, "0" * 64, "raw", 4, 1, b"data")


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_calls_of_several_tasks_run_one_after_the_other(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            async with store.transaction() as tx:
                created = await asyncio.gather(*(tx.sessions.create(f"s{number}") for number in range(8)))
                assert [session.session_id for session in created] == [f"s{number}" for number in range(8)]
                # A refused call undoes itself, and holds up none behind it.
                absent = tx.processes.complete("absent", holdfast.processes.Completed(1))
                refused, made = await asyncio.gather(absent, tx.sessions.create("s8"), return_exceptions=True)
                assert isinstance(refused, holdfast.UnknownProcess)
                assert not isinstance(made, BaseException)
            assert await names(store) == [f"s{number}" for number in range(9)]

    run(main())


def test_calls_of_tasks_on_another_event_loop_run_one_after_the_other(url: str) -> None:
    async def elsewhere(store: holdfast.Store) -> None:
        async with asyncio.timeout(TIMEOUT_S), store.transaction() as tx:
            await asyncio.gather(*(tx.sessions.create(f"s{number}") for number in range(8)))

    async def main() -> None:
        async with opened(url) as store:
            await asyncio.to_thread(lambda: asyncio.run(elsewhere(store)))
            assert await names(store) == [f"s{number}" for number in range(8)]

    run(main())


def test_a_thread_that_calls_during_the_call_of_another_is_refused(url: str) -> None:
    """A thread that waited could be in a signal handler, and then would wait for itself."""
    began, go = threading.Event(), threading.Event()

    async def slow(_: Transaction) -> None:
        began.set()
        assert go.wait(TIMEOUT_S)

    with holdfast.open_blocking(url) as store:
        with store.transaction() as tx:
            backend = tx._store._context.backend
            other = threading.Thread(target=lambda: backend.drive(backend.write(slow, heavy=True)), daemon=True)
            other.start()
            assert began.wait(TIMEOUT_S)
            with pytest.raises(holdfast.InvalidRequest, match="one call of `tx` after the other"):
                tx.sessions.create("one")
            go.set()
            other.join(TIMEOUT_S)
            tx.sessions.create("two")
        assert [one.session_id for one in store.sessions.list()] == ["two"]


@pytest.mark.parametrize("when", ["while it waits", "as its turn comes"])
def test_a_call_cancelled_before_it_runs_passes_its_turn_on(url: str, when: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            async with store.transaction() as tx:
                first, second, third = (asyncio.ensure_future(tx.sessions.create(name)) for name in ("a", "b", "c"))
                await asyncio.sleep(0)
                if when == "while it waits":
                    second.cancel()
                else:
                    first.add_done_callback(lambda _: second.cancel())
                await first
                await asyncio.wait_for(third, TIMEOUT_S / 2)
                [outcome] = await asyncio.gather(second, return_exceptions=True)
                # In memory no call waits for another.
                assert isinstance(outcome, asyncio.CancelledError) or url == "memory:"
            left = ["a", "b", "c"] if url == "memory:" else ["a", "c"]
            assert await names(store) == left

    run(main())


def test_a_block_that_ends_during_a_call_is_rolled_back(url: str) -> None:
    if url == "memory:":
        pytest.skip("a small call in memory never suspends")

    async def main() -> None:
        async with opened(url) as store:
            with pytest.raises(holdfast.InvalidRequest, match="await every call"):
                async with store.transaction() as tx:
                    left = asyncio.ensure_future(tx.sessions.create("one"))
                    await asyncio.sleep(0)
            await asyncio.gather(left, return_exceptions=True)
            assert await names(store) == []
            await store.sessions.create("two")

    run(main())


def test_a_cancelled_block_leaves_no_trace(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            inside = asyncio.Event()

            async def block() -> None:
                async with store.transaction() as tx:
                    await tx.sessions.create("one")
                    inside.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(block())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await names(store) == []
            await store.sessions.create("one")

    run(main())


@pytest.mark.parametrize("turns_of_the_loop", range(12))
def test_a_cancelled_call_ends_its_transaction(url: str, turns_of_the_loop: int) -> None:
    """Cancelled at any step, a call ended before or takes all of the transaction with it."""

    async def main() -> None:
        async with opened(url) as store:
            done = False
            try:
                async with store.transaction() as tx:
                    await tx.sessions.create("one")
                    call = asyncio.ensure_future(tx.sessions.handle("two").commit(holdfast.Commit(turn_id="t1")))
                    for _ in range(turns_of_the_loop):
                        await asyncio.sleep(0)
                    call.cancel()
                    try:
                        await call
                        done = True
                    except asyncio.CancelledError:
                        pass
            except holdfast.Unavailable as error:
                assert error.outcome == "not_applied"
                assert not done
                assert await names(store) == []
            else:
                # A call that was cancelled before it began has changed nothing.
                assert await names(store) == (["one", "two"] if done else ["one"])
            await store.sessions.create("three")

    run(main())


def test_a_call_cancelled_while_it_runs_ends_its_transaction(url: str) -> None:
    began, go = threading.Event(), threading.Event()

    async def slow(transaction: Transaction) -> None:
        began.set()
        assert go.wait(TIMEOUT_S)
        await transaction.save_artifact(row("two"))

    async def main() -> None:
        async with opened(url) as store:
            with pytest.raises(holdfast.Unavailable, match="interrupted") as ended:
                async with store.transaction() as tx:
                    await tx.artifacts.put("module", "one", b"one")
                    call = asyncio.ensure_future(tx._context.backend.write(slow, heavy=True))
                    await asyncio.to_thread(began.wait, TIMEOUT_S)
                    call.cancel()
                    asyncio.get_running_loop().call_later(0.05, go.set)
                    with pytest.raises(asyncio.CancelledError):
                        await call
            assert ended.value.outcome == "not_applied"
            await store.artifacts.put("module", "three", b"three")
            assert [entry.ref for entry in await store.artifacts.list()] == ["three"]

    run(main())


@pytest.mark.parametrize("turns_of_the_loop", range(8))
def test_a_cancelled_begin_blocks_no_writer(url: str, turns_of_the_loop: int) -> None:
    async def main() -> None:
        async with opened(url) as store:

            async def block() -> None:
                async with store.transaction(timeout_ms=3_600_000) as tx:
                    await tx.sessions.create("one")
                    await asyncio.Event().wait()

            task = asyncio.create_task(block())
            for _ in range(turns_of_the_loop):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await store.sessions.create("two")
            assert await names(store) == ["two"]

    run(main())


def test_an_open_transaction_does_not_block_the_loop(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            free = asyncio.Event()

            async def write() -> None:
                await store.sessions.handle("one").commit(holdfast.Commit(turn_id="t2"))
                free.set()

            waiting = asyncio.create_task(write(), context=__import__("contextvars").Context())
            async with store.transaction() as tx:
                await tx.sessions.handle("one").commit(holdfast.Commit(turn_id="t1"))
                for _ in range(50):
                    await asyncio.sleep(0)
            await waiting
            assert len(await store.sessions.handle("one").history()) == 2

    run(main())


def test_a_task_started_in_the_block_may_not_write_around_it(url: str) -> None:
    async def main() -> None:
        async with opened(url) as store:
            async with store.transaction() as tx:
                await tx.sessions.create("one")
                with pytest.raises(holdfast.InvalidRequest, match="use `tx`"):
                    await asyncio.create_task(store.sessions.create("two"))
            # Its own context is out of the block now.
            await store.sessions.create("three")
            assert await names(store) == ["one", "three"]

    run(main())


def test_with_instead_of_async_with_says_so() -> None:
    async def main() -> None:
        async with opened("memory:") as store:
            with pytest.raises(TypeError, match="async with"), store.transaction():
                pass  # pragma: no cover

    run(main())


def test_a_signal_in_a_blocking_block_rolls_back(url: str) -> None:
    class Rang(Exception):
        pass

    def ring(*_: object) -> None:
        raise Rang

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with holdfast.open_blocking(url) as store:
            with pytest.raises(Rang), store.transaction() as tx:
                tx.sessions.create("one")
                os.kill(os.getpid(), signal.SIGUSR1)
                for number in range(10_000):
                    tx.sessions.create(f"more-{number}")
            assert len(store.sessions.list()) == 0
            store.sessions.create("two")
    finally:
        signal.signal(signal.SIGUSR1, before)


ENTER, BEGUN, EXIT, LEAVE = "Entered.enter", "BlockingStore.__init__", "BlockingTransaction.__exit__", "Entered.leave"


@pytest.mark.parametrize("edges", [(ENTER, EXIT), (BEGUN, EXIT), (BEGUN,), (EXIT,), (LEAVE,)])
def test_an_interrupt_at_an_edge_of_a_blocking_block_leaves_nothing_open(url: str, edges: tuple[str, ...]) -> None:
    """A signal handler may raise before the first step of `__exit__`, and again before anything is cleaned up."""

    def interrupt(frame: Any, _: str, __: Any) -> None:
        if frame.f_code.co_qualname in edges:
            raise KeyboardInterrupt

    limit_ms = TIMEOUT_S * 2000
    with holdfast.open_blocking(url) as store:
        traced = sys.gettrace()
        caught: list[BaseException] = []
        try:
            with store.transaction(timeout_ms=limit_ms) as tx:
                tx.sessions.create("one")
                sys.settrace(interrupt)
        except KeyboardInterrupt as error:
            caught.append(error)  # its traceback refers to every frame of the block
        finally:
            sys.settrace(traced)
        if {ENTER, BEGUN} & {*edges}:
            caught += interrupted_entry(store, interrupt, limit_ms)
        assert caught
        began_s = time.monotonic()
        assert store.sessions.create("two").session_id == "two"
        with store.transaction() as tx:
            tx.sessions.create("three")
        assert time.monotonic() - began_s < TIMEOUT_S
        assert {entry.session_id for entry in store.sessions.list()} >= {"two", "three"}


def interrupted_entry(store: holdfast.BlockingStore, interrupt: Any, limit_ms: int) -> list[BaseException]:
    traced = sys.gettrace()
    block = store.transaction(timeout_ms=limit_ms)
    try:
        sys.settrace(interrupt)
        with block:
            raise AssertionError("the block was entered")
    except KeyboardInterrupt as error:
        return [error]
    finally:
        sys.settrace(traced)


def test_a_signal_handler_that_writes_at_an_edge_of_a_blocking_block_does_not_wait_for_it(url: str) -> None:
    """A handler runs between any two lines. One that waited for the end of the transaction would wait for itself."""
    stored: list[str] = []
    refused: list[str] = []

    def write() -> None:
        name = f"handler-{len(stored) + len(refused)}"
        try:
            store.sessions.create(name)
        except (NestedCall, holdfast.InvalidRequest):
            refused.append(name)
        else:
            stored.append(name)

    def handle(frame: Any, _: str, __: Any) -> Any:
        if not frame.f_code.co_filename.endswith(EDGES):
            return None
        write()
        return handle

    with holdfast.open_blocking(url) as store:
        traced = sys.gettrace()
        began_s = time.monotonic()
        block = store.transaction(timeout_ms=TIMEOUT_S * 2000)
        try:
            sys.settrace(handle)
            with block as tx:
                sys.settrace(traced)
                tx.sessions.create("inside")
                sys.settrace(handle)
        finally:
            sys.settrace(traced)
        assert time.monotonic() - began_s < TIMEOUT_S
        assert stored
        assert refused
        assert {entry.session_id for entry in holdfast.every(store.sessions.list)} == {"inside", *stored}


def test_a_signal_to_another_thread_does_not_stop_the_clock_of_a_transaction(tmp_path: Path) -> None:
    """The system may give a signal to any thread, also to the one that waits for calls of the block."""
    before, interval_s = signal.signal(signal.SIGUSR1, lambda *_: None), sys.getswitchinterval()
    others: list[Any] = []
    with holdfast.open_blocking(tmp_path / "agents.db") as store:
        store.sessions.create("one")
        try:
            with pytest.raises(TransactionExpired), store.transaction(timeout_ms=1_000) as tx:
                tx.sessions.create("two")
                sys.setswitchinterval(TIMEOUT_S)
                for thread in threading.enumerate():
                    if thread is not threading.main_thread():
                        signal.pthread_kill(thread.ident or 0, signal.SIGUSR1)
                # The other thread was woken, and gets its turn when what it waited for is over.
                resumed_s = time.monotonic() + 3 * LOOK_S
                while time.monotonic() < resumed_s:
                    pass
                sys.setswitchinterval(interval_s)
                writer = threading.Thread(target=lambda: others.append(store.sessions.create("three")), daemon=True)
                writer.start()
                writer.join(TIMEOUT_S)
                assert others, "the writer waits for a transaction whose time is up"
        finally:
            sys.setswitchinterval(interval_s)
            signal.signal(signal.SIGUSR1, before)
        assert {entry.session_id for entry in store.sessions.list()} == {"one", "three"}


def test_key_frames_of_a_rollback_are_forgotten() -> None:
    with holdfast.open_blocking("memory:") as store:
        frames = store._store._context.key_frames
        large = holdfast.Commit(turn_id="t1", checkpoint=holdfast.Checkpoint(turn_state={"text": "a" * 200_000}))
        with pytest.raises(KeyError), store.transaction() as tx:
            tx.sessions.handle("one").commit(large)
            raise KeyError
        assert len(frames._runs) == 0
        with store.transaction() as tx:
            tx.sessions.handle("one").commit(large)
            assert len(frames._runs) == 0
        assert len(frames._runs) == 1


def test_an_operation_that_fails_half_way_is_undone(url: str) -> None:
    """No operation of Holdfast writes and then raises: this one does."""

    async def fail(transaction: Transaction) -> None:
        await transaction.save_artifact(row("two"))
        await transaction.drop_artifact("module", "one")
        raise KeyError

    async def main() -> None:
        async with opened(url) as store:
            await store.artifacts.put("module", "one", b"one")
            async with store.transaction() as tx:
                await tx.artifacts.put("module", "three", b"three")
                with pytest.raises(KeyError):
                    await tx._context.backend.write(fail)
                await tx.artifacts.put("module", "four", b"four")
            assert {entry.ref for entry in await store.artifacts.list()} == {"one", "three", "four"}

    run(main())


# SQLite.


def test_other_processes_wait_for_a_transaction(tmp_path: Path) -> None:
    url = str(tmp_path / "agents.db")
    script = "import sys, holdfast\nwith holdfast.open_blocking(sys.argv[1]) as s: s.sessions.create('two')"
    with holdfast.open_blocking(url) as store:
        with store.transaction(timeout_ms=60_000) as tx:
            tx.sessions.create("one")
            child = subprocess.Popen([sys.executable, "-c", script, url])
        assert child.wait(TIMEOUT_S) == 0
        assert sorted(entry.session_id for entry in store.sessions.list()) == ["one", "two"]


def test_a_database_in_memory_refuses_reads_around_its_transaction() -> None:
    with holdfast.open_blocking("sqlite::memory:") as store:
        with store.transaction() as tx:
            tx.sessions.create("one")
            with pytest.raises(holdfast.InvalidRequest, match="tx"):
                store.sessions.list()
        assert len(store.sessions.list()) == 1


# PostgreSQL.


def test_a_lost_connection_ends_the_transaction(clean_postgres_url: str, postgres_database: Any) -> None:
    async def main() -> None:
        async with opened(clean_postgres_url) as store:
            with pytest.raises(holdfast.Unavailable) as lost:
                async with store.transaction() as tx:
                    await tx.sessions.create("one")
                    postgres_database.administrator.rows(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
                    )
                    await tx.sessions.create("two")
            assert lost.value.outcome == "not_applied"
            assert lost.value.retryable
            assert await names(store) == []

    run(main())


def test_a_connection_lost_at_the_commit_leaves_the_outcome_unknown(
    clean_postgres_url: str, postgres_database: Any
) -> None:
    async def main() -> None:
        async with opened(clean_postgres_url) as store:
            with pytest.raises(holdfast.Unavailable) as lost:
                async with store.transaction() as tx:
                    await tx.sessions.create("one")
                    postgres_database.administrator.rows(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
                    )
            assert lost.value.outcome == "unknown"
            assert await names(store) == []

    run(main())


def test_a_deadlock_fails_one_call_which_can_be_run_again(clean_postgres_url: str) -> None:
    async def main() -> None:
        async with opened(clean_postgres_url) as store:
            for name in ("one", "two"):
                await store.sessions.handle(name).commit(holdfast.Commit(turn_id="t0"))
            first_locked = [asyncio.Event(), asyncio.Event()]

            async def cross(me: int, order: tuple[str, str]) -> str:
                try:
                    async with store.transaction() as tx:
                        await tx.sessions.handle(order[0]).commit(holdfast.Commit(turn_id=f"a{me}"))
                        first_locked[me].set()
                        await first_locked[1 - me].wait()
                        await tx.sessions.handle(order[1]).commit(holdfast.Commit(turn_id=f"a{me}"))
                except holdfast.Unavailable as error:
                    assert (error.outcome, error.retryable) == ("not_applied", True)
                    return "refused"
                return "stored"

            outcomes = await asyncio.gather(cross(0, ("one", "two")), cross(1, ("two", "one")))
            assert sorted(outcomes) == ["refused", "stored"]
            for name in ("one", "two"):
                assert len(await store.sessions.handle(name).history()) == 2

    run(main())


def test_the_server_ends_a_transaction_of_a_stopped_process(clean_postgres_url: str, postgres_database: Any) -> None:
    """No timer of a stopped process fires: the server's own limit frees the locks."""
    script = (
        "import sys, holdfast\n"
        "with holdfast.open_blocking(sys.argv[1]) as store, store.transaction(timeout_ms=300) as tx:\n"
        "    tx.sessions.handle('one').commit(holdfast.Commit(turn_id='t1'))\n"
        "    print('inside', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, clean_postgres_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "inside\n"
        child.send_signal(signal.SIGSTOP)
        try:
            with holdfast.open_blocking(clean_postgres_url) as store:
                assert store.sessions.handle("one").commit(holdfast.Commit(turn_id="t2")).revision == 1
        finally:
            child.send_signal(signal.SIGCONT)
            child.kill()


# Kills.

CHILD = """
import sys, holdfast

with holdfast.open_blocking(sys.argv[1]) as store:
    number = int(sys.argv[2])
    while True:
        number += 1
        with store.transaction() as tx:
            for name in ("one", "two", "three"):
                tx.sessions.handle(name).commit(holdfast.Commit(turn_id=str(number)))
                tx.queue.enqueue(holdfast.WorkDraft(session_id=name, payloads=[number], source_key=str(number)))
                print("inside", number, flush=True)
        print("stored", number, flush=True)
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_killed_process_leaves_whole_blocks(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Kill at every line of three blocks: all that was acknowledged is there, and no block in part."""
    url = str(tmp_path / "agents.db") if kind == "sqlite" else request.getfixturevalue("clean_postgres_url")
    stored = 0
    for lines in range(1, 10):
        acknowledged = stored
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, url, str(stored)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            for _ in range(lines):
                word, number = child.stdout.readline().split()
                if word == "stored":
                    acknowledged = int(number)
            child.kill()
        with holdfast.open_blocking(url) as store:
            heads = {entry.session_id: entry.revision for entry in store.sessions.list()}
            if not heads:
                assert acknowledged == 0
                continue
            stored = heads["one"]
            assert heads == {"one": stored, "two": stored, "three": stored}
            assert stored >= acknowledged
            for name in heads:
                assert len(store.queue.list(name, limit=100)) == stored
            assert store.maintenance.verify().ok


def test_an_opening_that_is_done_at_once_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    right = asyncio.run_coroutine_threadsafe

    def done_at_once(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
        future = right(work, loop)
        wait([future], TIMEOUT_S)
        return future

    async def open_backend(_: Any) -> str:
        return "backend"

    def opened_there() -> None:
        loops = other_loops.OtherLoops(open_backend)
        answers.append(loops._opened().result(TIMEOUT_S))
        assert loops._thread is not None
        loops._thread.stop()

    answers: list[str] = []
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", done_at_once)
    thread = threading.Thread(target=opened_there, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert answers == ["backend"]


def test_a_cancelled_begin_on_another_loop_leaves_nothing_open(
    clean_postgres_url: str, postgres_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction has begun on the background loop, and its caller is cancelled before the answer."""
    in_transaction = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
    )
    reached, may_begin, begun = threading.Event(), threading.Event(), threading.Event()
    right = other_loops._Undoable.run

    async def noted(work: Any) -> Any:
        reached.set()
        assert may_begin.wait(TIMEOUT_S)
        result = await right(work)
        begun.set()
        return result

    monkeypatch.setattr(other_loops._Undoable, "run", noted)

    async def elsewhere(store: holdfast.Store) -> None:
        await store.sessions.create("warm")
        begin = asyncio.ensure_future(store.transaction(timeout_ms=TIMEOUT_S * 2_000).__aenter__())
        while not reached.is_set():
            await asyncio.sleep(0)
        may_begin.set()
        assert begun.wait(TIMEOUT_S)  # blocks the loop, so that it does not notice the answer
        begin.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begin
        deadline_s = time.monotonic() + TIMEOUT_S
        while postgres_database.administrator.rows(in_transaction):
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0)

    async def main() -> None:
        async with opened(clean_postgres_url) as store:
            await asyncio.to_thread(lambda: asyncio.run(elsewhere(store)))

    run(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("leaves", ["by an exception", "by its end"])
def test_a_transaction_stays_with_the_parent_of_a_fork(url: str, leaves: str) -> None:
    with holdfast.open_blocking(url) as store:
        block = store.transaction()
        with block as tx:
            tx.sessions.create("one")
            child = os.fork()
            if child == 0:
                signal.alarm(TIMEOUT_S)  # ends a child that hangs
                os._exit(0 if in_child(block, tx, leaves) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            tx.sessions.create("two")
        assert [entry.session_id for entry in store.sessions.list()] == ["one", "two"]


def in_child(block: Any, tx: holdfast.BlockingStore, leaves: str) -> bool:
    """Use the parent's transaction, leave its block, and return whether that was refused."""
    try:
        tx.sessions.create("three")
    except holdfast.errors.StoreForked:
        pass
    else:
        return False
    if leaves == "by an exception":
        # The exception of the block continues, and is not replaced by another.
        return block.__exit__(SystemExit, SystemExit(), None) is None
    try:
        block.__exit__(None, None, None)
    except holdfast.errors.StoreForked:
        return True
    return False
