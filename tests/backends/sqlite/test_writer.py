"""Operations of one group share a database commit and nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import rows as r
from holdfast.errors import Conflict, HoldfastError, PoolTimeout, StoreClosed, Unavailable
from holdfast.wait import AsyncWaiting

WAIT_S = 60


def put(ref: str, body: bytes = b"x") -> Callable[[Any], Any]:
    async def operation(transaction: Any) -> str:
        await transaction.save_artifact(r.ArtifactRow("k", ref, "h", "raw", 1, transaction.now_ms, body))
        transaction.notify(ref)
        return ref

    return operation


def put_then_raise(ref: str, error: BaseException) -> Callable[[Any], Any]:
    async def operation(transaction: Any) -> None:
        await put(ref)(transaction)
        raise error

    return operation


def stored(store: Any) -> list[str]:
    return [row[1] for row in store.backend.dump()["artifacts"]]


class Group:
    """Holds the writer inside a first operation until everything else has been submitted."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.started, self.go_on = threading.Event(), threading.Event()
        self.first: Future[Any] = store.submit(self._hold)
        assert self.started.wait(WAIT_S)

    async def _hold(self, transaction: Any) -> None:
        self.started.set()
        assert self.go_on.wait(WAIT_S)

    def run(self, *operations: Callable[[Any], Any]) -> list[Future[Any]]:
        futures = [self.store.submit(operation) for operation in operations]
        self.go_on.set()
        for future in [self.first, *futures]:
            future.exception(WAIT_S)
        return futures


def test_operations_that_wait_together_share_one_commit(store: Any) -> None:
    commits: list[int] = []
    group = Group(store)
    store.connection.set_commit_hook(lambda: bool(commits.append(1)))
    futures = group.run(*(put(str(i)) for i in range(50)))
    assert [future.result() for future in futures] == [str(i) for i in range(50)]
    assert len(commits) == 1
    assert len(stored(store)) == 50


def test_a_group_is_no_larger_than_allowed(open_store: Any) -> None:
    store = open_store(group_size=4)
    commits: list[int] = []
    group = Group(store)
    store.connection.set_commit_hook(lambda: bool(commits.append(1)))
    group.run(*(put(str(i)) for i in range(7)))
    # The operation that held the writer belongs to the first group: eight members, four in each.
    assert len(commits) == 2


def test_a_refused_member_leaves_no_trace_and_harms_no_other(store: Any) -> None:
    before, refused, after = Group(store).run(put("a"), put_then_raise("b", Conflict("no")), put("c"))
    assert (before.result(), after.result()) == ("a", "c")
    with pytest.raises(Conflict):
        refused.result()
    assert stored(store) == ["a", "c"]


def test_a_refused_first_member_leaves_no_trace_either(store: Any) -> None:
    with pytest.raises(Conflict):
        store.write(put_then_raise("a", Conflict("no")))
    assert store.write(put("b")) == "b"
    assert stored(store) == ["b"]


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(1), GeneratorExit()], ids=repr)
def test_any_error_of_an_operation_reaches_its_caller_and_the_writer_continues(store: Any, error: Any) -> None:
    future = store.submit(put_then_raise("a", error))
    assert future.exception(WAIT_S) is error
    assert store.write(put("b")) == "b"
    assert stored(store) == ["b"]


def test_an_operation_that_suspends_is_refused(store: Any) -> None:
    async def operation(transaction: Any) -> None:
        await put("a")(transaction)
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        store.write(operation)
    assert stored(store) == []


def test_no_waiter_is_woken_before_the_commit(store: Any) -> None:
    seen: list[list[bool]] = []
    group = Group(store)
    futures = [store.submit(operation) for operation in (put("a"), put_then_raise("b", Conflict("no")))]
    change = store.backend.watch("a")
    store.connection.set_commit_hook(lambda: bool(seen.append([one.done() for one in [*futures, change]])))
    group.run()
    assert [future.exception(WAIT_S) is None for future in futures] == [True, False]
    change.result(WAIT_S)
    assert seen == [[False, False, False]]


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [(apsw.IOError, "unknown"), (apsw.FullError, "not_applied"), (apsw.BusyError, "not_applied")],
    ids=["the disk failed", "the disk is full", "the file is locked"],
)
def test_a_failed_commit_fails_every_member_and_the_store_works_on(
    store: Any, failure: type[apsw.Error], outcome: str
) -> None:
    # A failing disk may have stored the commit all the same; the other two errors come before anything is stored.
    def fail() -> bool:
        raise failure("not now")

    group = Group(store)
    change = store.backend.watch("a")
    store.connection.set_commit_hook(fail)
    futures = group.run(put("a"), put_then_raise("b", Conflict("no")), put("c"))
    errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [Unavailable] * 3
    assert [error.outcome for error in errors if isinstance(error, HoldfastError)] == [outcome] * 3
    assert isinstance(errors[0].__cause__, failure)
    assert len({id(error) for error in errors}) == 3
    assert not change.done()
    change.cancel()
    with store.backend._writer._connection_free:  # the watching thread may still hold it
        store.connection.set_commit_hook(None)
    assert stored(store) == []
    assert store.write(put("d")) == "d"
    assert stored(store) == ["d"]


@pytest.mark.parametrize("caught", [False, True], ids=["raised", "caught"])
def test_when_sqlite_gives_up_the_transaction_no_earlier_member_is_acknowledged(store: Any, caught: bool) -> None:
    # An interrupted insert is one of the errors on which SQLite rolls back the whole transaction.
    async def interrupted(transaction: Any) -> None:
        store.connection.set_progress_handler(lambda: True, 1)
        try:
            await put("b")(transaction)
        except HoldfastError:
            if not caught:
                raise
        finally:
            store.connection.set_progress_handler(None)
        # Without a guard this would be committed on its own.
        await put("c")(transaction)

    futures = Group(store).run(put("a"), interrupted)
    assert [type(future.exception()) for future in futures] == [Unavailable] * 2
    assert stored(store) == []
    assert store.write(put("d")) == "d"


def test_a_full_disk_ends_the_group_and_what_comes_after_it_is_stored(store: Any) -> None:
    # SQLite rolls back the whole transaction, so that earlier members of the group must fail too.
    pages = store.connection.pragma("page_count")
    store.connection.pragma("max_page_count", pages + 2)
    before, large, after = Group(store).run(put("a"), put("b", b"x" * 1_000_000), put("c"))
    for lost in (before, large):
        with pytest.raises(Unavailable, match="disk is full"):
            lost.result()
    assert after.result() == "c"
    assert stored(store) == ["c"]


DISK_FULL = """
import resource, signal, sys, time
from pathlib import Path
from holdfast import rows as r
from holdfast.backends.sqlite import SqliteBackend, SqliteOptions
from holdfast.errors import Unavailable
from holdfast.wait import BlockingWaiting

class Clock:
    def now_ms(self):
        return 1

def put(ref, size):
    async def operation(transaction):
        await transaction.save_artifact(r.ArtifactRow("k", ref, "h", "raw", 1, 1, bytes(size)))
    return operation

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
store = SqliteBackend.open(path, SqliteOptions(), Clock(), BlockingWaiting())
store.drive(store.write(put("before", 10)))
wal = path.with_name(path.name + "-wal")
resource.setrlimit(resource.RLIMIT_FSIZE, (wal.stat().st_size + 40_000, resource.RLIM_INFINITY))
try:
    store.drive(store.write(put("lost", 1_000_000)))
except Unavailable as error:
    assert error.outcome == "unknown", error
else:
    raise SystemExit("the write was acknowledged")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.drive(store.write(put("after", 10)))
assert [row[1] for row in store.dump()["artifacts"]] == ["after", "before"]
store.drive(store.close())
"""


def test_a_commit_that_the_disk_refuses_is_not_acknowledged_and_the_store_works_on(path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", DISK_FULL, str(path)], capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_task_that_was_cancelled_takes_back_what_has_not_started(open_store: Any) -> None:
    async def scenario() -> list[str]:
        store = open_store(waiting=AsyncWaiting())
        group = Group(store)
        task = asyncio.create_task(store.backend.write(put("a")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        group.go_on.set()
        await store.backend.write(put("b"))
        found = stored(store)
        await store.backend.close()
        return found

    assert asyncio.run(scenario()) == ["b"]


def test_each_operation_has_one_clock_reading_taken_when_it_starts(store: Any, clock: Any) -> None:
    async def read_twice(transaction: Any) -> tuple[int, int]:
        before = transaction.now_ms
        clock.advance(5)
        return before, transaction.now_ms

    assert store.write(read_twice) == (1_000, 1_000)
    assert store.write(read_twice) == (1_005, 1_005)
    assert store.read(read_twice) == (1_010, 1_010)


def test_the_writer_waits_for_another_process_and_then_writes(open_store: Any, path: Path) -> None:
    store = open_store()
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    future = store.submit(put("a"))
    with pytest.raises(TimeoutError):
        future.result(0.05)
    other.execute("ROLLBACK")
    assert future.result(WAIT_S) == "a"
    other.close()


def test_a_database_that_stays_busy_is_unavailable_in_time_for_the_whole_queue(open_store: Any, path: Path) -> None:
    store = open_store(busy_timeout_ms=50)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    futures = [store.submit(put(str(i))) for i in range(20)]
    errors = [future.exception(WAIT_S) for future in futures]
    assert {type(error) for error in errors} == {Unavailable}
    assert all(isinstance(error.__cause__, HoldfastError) for error in errors if error)
    # Reads do not wait at all.
    assert stored(store) == []
    other.execute("ROLLBACK")
    other.close()
    assert store.write(put("a")) == "a"


def test_a_read_sees_one_snapshot_while_others_write(store: Any) -> None:
    store.write(put("a"))

    async def read(transaction: Any) -> list[bool]:
        before = await transaction.find_artifact("k", "b") is not None
        await_other = store.submit(put("b"))
        await_other.result(WAIT_S)
        return [before, await transaction.find_artifact("k", "b") is not None]

    assert store.read(read) == [False, False]
    assert stored(store) == ["a", "b"]


def test_a_read_cannot_write(store: Any) -> None:
    with pytest.raises(Unavailable):
        store.read(put("a"))
    assert stored(store) == []


def test_a_read_that_finds_no_connection_in_time_raises_pool_timeout(open_store: Any) -> None:
    store = open_store(readers=1, busy_timeout_ms=20)

    async def nested(transaction: Any) -> None:
        with pytest.raises(PoolTimeout):
            store.read(put("a"))

    # In another thread: the main thread has its own connections.
    with ThreadPoolExecutor(1) as threads:
        threads.submit(store.read, nested).result(WAIT_S)


def test_a_store_in_memory_reads_what_it_wrote(open_store: Any) -> None:
    store = open_store(":memory:")
    assert store.backend.durability == "ephemeral"
    store.write(put("a"))
    assert store.ask("find_artifact", "k", "a").ref == "a"
    assert store.ask("stats", 0)["bytes_on_disk"] is None
    assert stored(store) == ["a"]
    assert len(open_store(":memory:").backend.dump()["artifacts"]) == 0


def test_statements_are_counted(store: Any) -> None:
    before = store.backend.statements_run
    store.write(put("a"))
    store.ask("find_artifact", "k", "a")
    assert store.backend.statements_run - before == 2


def test_closing_finishes_what_was_accepted_and_refuses_what_comes_later(open_store: Any, path: Path) -> None:
    store = open_store()
    group = Group(store)
    futures = [store.submit(put(str(i))) for i in range(200)]
    closing = threading.Thread(target=store.close)
    closing.start()
    group.go_on.set()
    closing.join(WAIT_S)
    assert [future.result(WAIT_S) for future in futures] == [str(i) for i in range(200)]
    for refused in (lambda: store.write(put("x")), lambda: store.read(put("x")), lambda: store.backend.watch("x")):
        with pytest.raises(StoreClosed):
            refused()
    with pytest.raises(StoreClosed):
        store.submit(put("x"))
    store.close()
    assert not path.with_name(path.name + "-wal").exists()
    assert len(stored(open_store())) == 200


FORK = """
import os, sys
from holdfast.backends.sqlite import SqliteBackend, SqliteOptions
from holdfast.errors import Unavailable
from holdfast.wait import BlockingWaiting

class Clock:
    def now_ms(self):
        return 1

async def nothing(transaction):
    return None

store = SqliteBackend.open(sys.argv[1], SqliteOptions(), Clock(), BlockingWaiting())
child = os.fork()
if child == 0:
    refused = 0
    for call in (lambda: store.drive(store.write(nothing)), lambda: store.drive(store.read(nothing)),
                 lambda: store.watch("x"), store.dump):
        try:
            call()
        except Unavailable as error:
            refused += "fork" in error.message
    store.drive(store.close())
    os._exit(refused)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 4, status
store.drive(store.write(nothing))
store.drive(store.close())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_forked_child_is_refused_and_the_parent_works_on(path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FORK, str(path)], capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert result.returncode == 0, result.stdout + result.stderr
