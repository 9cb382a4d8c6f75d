"""Live workers are listed, and what a dead worker of this host held is free at once, long before its lease ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.worker import Job, Worker
from holdfast.worker.claim_renewal import ClaimRenewer, Held
from holdfast.worker.identity import is_provably_dead, own_identity, process_stat

WAIT_S = 30
LEASE_S = 600
pytestmark = pytest.mark.skipif(own_identity().boot_id is None, reason="this system does not tell processes apart")

HOLDER = f"""
import os, sys, time
import holdfast

worker = holdfast.Worker(sys.argv[1], lease_s={LEASE_S})

@worker.job("slow")
def slow(job):
    os.write(1, b"begun\\n")
    time.sleep({WAIT_S})

@worker.process("slow-run")
def slow_run(run):
    os.write(1, b"begun\\n")
    time.sleep({WAIT_S})

worker.run()
"""


@contextmanager
def holding(url: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker in a process of its own until it holds a job and a run."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["begun\n", "begun\n"]
            yield process
        finally:
            process.kill()


def put(store: holdfast.BlockingStore) -> str:
    store.processes.start("slow-run", id="r1")
    return store.queue.enqueue(holdfast.WorkDraft(session_id="post", payloads=[1], kind="slow")).batch_id


def successor(url: str, seen: list[Any]) -> Worker:
    worker = Worker(url, lease_s=LEASE_S)
    worker.job("slow")(lambda job: seen.append(("job", job.attempt)))
    worker.process("slow-run")(lambda run: seen.append(("run", run.attempt)))
    return worker


@pytest.mark.parametrize("reaped", [True, False])
def test_a_worker_that_starts_takes_over_from_a_dead_one_of_its_host(
    url: str, store: holdfast.BlockingStore, reaped: bool
) -> None:
    batch_id = put(store)
    with holding(url) as process:
        process.kill()
        if reaped:
            process.wait(WAIT_S)
        else:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        seen: list[Any] = []
        successor(url, seen).run(until_idle=True)
    assert sorted(seen) == [("job", 2), ("run", 2)], "the attempts of the dead worker count"
    batch = store.queue.get("post", batch_id)
    assert batch is not None
    assert batch.state == "completed"
    assert list(store.workers.list()) == []


def test_a_running_worker_takes_over_when_its_neighbour_dies(url: str, store: holdfast.BlockingStore) -> None:
    batch_id = put(store)
    with holding(url) as process:
        seen: list[Any] = []
        worker = successor(url, seen)
        running = threading.Thread(target=worker.run, daemon=True)
        running.start()
        deadline_s = time.monotonic() + WAIT_S
        while len(store.workers.list()) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        process.kill()
        process.wait(WAIT_S)
        killed_s = time.monotonic()
        assert store.queue.wait_settled("post", batch_id, timeout_ms=WAIT_S * 1000).state == "completed"
        took_s = time.monotonic() - killed_s
        worker.stop()
        running.join(WAIT_S)
    assert took_s < 10
    assert ("job", 2) in seen


def test_a_live_worker_of_this_host_keeps_what_it_holds(url: str, store: holdfast.BlockingStore) -> None:
    put(store)
    with holding(url) as process:
        with store.transaction() as tx:  # so that it is not stopped while it holds the lock of a SQLite file
            tx.sessions.create("gate")
            os.kill(process.pid, signal.SIGSTOP)  # a stopped process may continue: it is not dead
        seen: list[Any] = []
        successor(url, seen).run(until_idle=True)
        assert seen == []
        [worker] = store.workers.list()
        assert (worker.pid, worker.kinds) == (process.pid, ("slow", "slow-run"))


# The proof.


def me() -> holdfast.workers.WorkerInfo:
    here = own_identity()
    return holdfast.workers.WorkerInfo(
        "w1",
        host=here.host,
        pid=here.pid,
        boot_id=here.boot_id,
        pid_namespace=here.pid_namespace,
        process_start=here.process_start,
    )


def a_pid_that_is_gone() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(WAIT_S)
    return process.pid


def test_only_a_process_that_is_certainly_gone_is_dead() -> None:
    here, gone = own_identity(), a_pid_that_is_gone()

    def is_dead(**changes: Any) -> bool:
        return is_provably_dead(msgspec.structs.replace(me(), **changes), here)

    assert not is_dead()
    assert is_dead(pid=gone)
    assert is_dead(process_start="1"), "its number was given to another process"
    assert not is_dead(pid=gone, boot_id="another boot")
    assert not is_dead(pid=gone, boot_id=None)
    assert not is_dead(pid=gone, pid_namespace="another container")
    assert not is_dead(pid=gone, process_start=None)
    assert not is_dead(pid=10**30, process_start=here.process_start), "a number that no process has proves nothing"
    assert not is_provably_dead(
        msgspec.structs.replace(me(), pid=gone), msgspec.structs.replace(here, process_start=None)
    )


def test_a_program_with_parentheses_in_its_name_is_read_rightly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    fields = ["S", *(str(number) for number in range(1, 30))]
    (folder / "stat").write_text(f"7 (a) (b c)) {' '.join(fields)}")
    monkeypatch.setattr("holdfast.worker.identity.PROC", tmp_path)
    assert process_stat(7) == ("S", "19")
    assert process_stat(8) is None
    (folder / "stat").write_text("7 (short) S 1")
    assert process_stat(7) is None


def test_the_command_lists_live_workers(tmp_path: Path) -> None:
    with holdfast.open_blocking(tmp_path / "agent.db") as store:
        store.workers.heartbeat(msgspec.structs.replace(me(), kinds=("turn", "mail")), ttl_ms=60_000)
    command = [sys.executable, "-m", "holdfast", "--url", str(tmp_path / "agent.db"), "workers", "list"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    assert "turn, mail" in shown
    listed = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    assert json.loads(listed)["items"][0]["pid"] == os.getpid()


def test_a_worker_leaves_the_list_when_it_ends(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url, name="mailer")
    listed: list[holdfast.workers.WorkerInfo] = []

    @worker.job("mail")
    def send(job: Job) -> None:
        listed.extend(job.store.workers.list())

    store.queue.enqueue(holdfast.WorkDraft(session_id="post", payloads=[1], kind="mail"))
    worker.run(until_idle=True)
    [one] = listed
    assert (one.id.partition("@")[0], one.pid, one.kinds) == ("mailer", os.getpid(), ("mail",))
    assert list(store.workers.list()) == []


def listed(store: holdfast.BlockingStore, worker_id: str, pid: int) -> None:
    """Report a worker of this host with the process of another."""
    here, stat = own_identity(), process_stat(pid)
    report = holdfast.workers.WorkerInfo(
        id=worker_id,
        host=here.host,
        pid=pid,
        kinds=("slow",),
        running=(),
        boot_id=here.boot_id,
        pid_namespace=here.pid_namespace,
        process_start="0" if stat is None else stat[1],
    )
    store.workers.heartbeat(report, ttl_ms=600_000)


def test_each_worker_looks_at_the_next_one_only_and_past_those_that_are_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def note(worker: Any, here: Any) -> bool:
        looked.append(worker.id)
        return is_provably_dead(worker, here)

    monkeypatch.setattr("holdfast.worker.claim_renewal.is_provably_dead", note)
    with holdfast.open_blocking("memory:") as store:
        for worker_id in ("w1", "w4", "w5"):
            listed(store, worker_id, os.getpid())
        ended = subprocess.Popen([sys.executable, "-c", ""])
        listed(store, "w3", ended.pid)
        ended.wait(WAIT_S)
        renewer = ClaimRenewer(store, "w2", ["slow"], 600_000)
        renewer._renew([])
        for _ in range(2):
            renewer._looked_s = 0.0
            renewer._release_dead_neighbour()
        assert looked == ["w3", "w4", "w4"]
        assert [worker.id for worker in store.workers.list()] == ["w1", "w2", "w4", "w5"]
        last = ClaimRenewer(store, "w6", ["slow"], 600_000)
        last._renew([])
        looked.clear()
        last._release_dead_neighbour()
        assert looked == ["w1"], "the first follows the last"


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="processes cannot be waited for here")
def test_a_renewer_waits_for_the_end_of_its_neighbour_without_looking_at_it() -> None:
    here = own_identity()
    with (
        holdfast.open_blocking("memory:") as store,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as neighbour,
    ):
        stat = process_stat(neighbour.pid)
        assert stat is not None
        found = msgspec.structs.replace(me(), id="w2", pid=neighbour.pid, process_start=stat[1])
        store.workers.heartbeat(found, ttl_ms=600_000)
        renewer = ClaimRenewer(store, "w1", ["slow"], 600_000)
        renewer._renew([])
        renewer._release_dead_neighbour()
        assert renewer._pause_s() > 100, "no look is due before the next renewal"
        assert not is_provably_dead(found, here)
        neighbour.kill()
        renewer._wakeable.sleep(renewer._pause_s())
        renewer._release_dead_neighbour()
        assert [worker.id for worker in store.workers.list()] == ["w1"]


def test_a_claim_that_is_renewed_late_does_not_wake_the_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open_blocking("memory:") as store:
        renewer = ClaimRenewer(store, "w1", ["slow"], 60_000)
        woken: list[float] = []
        monkeypatch.setattr(renewer._wakeable, "wake", lambda: woken.append(time.monotonic()))
        store.queue.enqueue(holdfast.WorkDraft(session_id="post", payloads=[1], kind="slow"))
        claim = store.queue.claim_next(owner_id="w1")
        assert claim is not None
        renewer._wakes_s = time.monotonic() + 10
        renewer.hold(Held(claim, 60_000, time.monotonic(), lambda: None))
        assert not woken
        renewer.hold(Held(claim, 600, time.monotonic(), lambda: None))
        assert len(woken) == 1


@pytest.mark.parametrize("is_settling", [False, True])
def test_a_run_that_the_same_worker_claims_again_costs_it_no_other_claim(is_settling: bool) -> None:
    with holdfast.open_blocking("memory:") as store:
        renewer = ClaimRenewer(store, "w1", ["slow"], 60_000)
        store.processes.start("slow", id="r1")
        store.processes.start("slow", id="r2")
        lost: list[str] = []

        def hold(name: str) -> Held:
            claim = store.processes.claim_next(owner_id="w1", ttl_ms=60_000)
            assert claim is not None
            held = Held(claim.lease, 60_000, 0.0, lambda: lost.append(name))
            renewer.hold(held)
            return held

        first, other = hold("first"), hold("other")
        first.is_settling = is_settling
        assert store.leases.revoke(holdfast.leases.OnProcess("r1"))
        again = hold("again")
        assert again.name() == "r1"
        renewer._do_what_is_due()
        assert [one.is_over(time.monotonic()) for one in (other, again)] == [False, False]
        assert lost == ([] if is_settling else ["first"]), "a settlement learns it from its answer"
