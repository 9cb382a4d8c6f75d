"""Faults: workers are killed, stopped, restarted, or lose their database. All work is settled once, in order."""

from __future__ import annotations

import random
import sys
import time

from holdfast.torture import crashes, failover, poolers
from holdfast.torture.checkers.pools import check_restarts
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, PostgresScratch, Scratch
from holdfast.torture.pool_worker import Terms
from holdfast.torture.pools import Pool, paced
from holdfast.torture.servers import no_server

SIZES = (3, 3, 4, 8)
"""Workers of a pool."""
KILLS_A_POOL = 5
PIECES_A_KILL = 8
SHARE_STOPPED = 0.3
"""Share of the faults that stop a worker until its claims have expired, instead of killing it."""
BETWEEN_S = 0.08
LONG_CALLS = Terms(longest_s=0.2)
"""Calls that are long enough for most kills and stops to come in the middle of some."""
SKEWED = 3
WRONG_CLOCKS = Terms(lease_s=40, grace_s=20, longest_s=0.2, skew_s=3600.0)
"""Calls that are long enough for others to take the work, if a clock says that its claim has expired."""

PIECES_A_RESTART = 8
PIECE_EVERY_S = 0.02
GRACE = Terms(lease_s=40, grace_s=20)
"""Far longer than a call takes, even on a busy machine. Work that waits for a claim to expire is later than that."""
MOST_NS = int(GRACE.grace_s * 1e9)

CRASHED_POOL, CRASHES_A_POOL = 3, 2
FILLS_A_POOL, FULL_S = 3, 0.4
SMALLEST_BYTES, LARGEST_BYTES = 40_000, 1_000_000
"""From less than the store has when it is made to more than it gets."""


def kill_workers(scratch: Scratch, seed: int) -> Ran:
    """Kill and stop workers of a pool, again and again, while it has work."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    return Ran(KILLS_A_POOL, tuple(_killed(scratch, scratch.fresh().unsynced(), rng, rng.choice(SIZES))))


def _killed(scratch: Scratch, place: Place, rng: random.Random, size: int) -> list[str]:
    with Pool(place, scratch.file("notes"), rng, size, LONG_CALLS) as pool:
        for _ in range(KILLS_A_POOL):
            pool.give(PIECES_A_KILL)
            time.sleep(rng.uniform(0, BETWEEN_S))  # strike at a random moment
            if rng.random() < SHARE_STOPPED:
                pool.stop_one()
            else:
                pool.kill_one()
        pool.wait()
        pool.end()
        return pool.judge()


def skew_clocks(scratch: Scratch, seed: int) -> Ran:
    """Let workers whose clocks are an hour ahead, an hour behind, and right share work. None takes it from another."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    with Pool(scratch.fresh(), scratch.file("notes"), rng, SKEWED, WRONG_CLOCKS) as pool:
        paced(pool, SKEWED * PIECES_A_RESTART, PIECE_EVERY_S, lambda _: None)
        return Ran(SKEWED, tuple(_undisturbed(pool)))


def _undisturbed(pool: Pool) -> list[str]:
    """Wait for the end of a pool whose workers could finish each call, and return the problems."""
    pool.wait()
    pool.end()
    late = check_restarts(pool.pieces, pool.calls(), pool.ends(), MOST_NS)
    return [*pool.judge(), *(f"I6: {one}" for one in late)]


def restart_workers(scratch: Scratch, seed: int) -> Ran:
    """Restart all workers of a pool one after another under a steady load."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    size = rng.choice(SIZES)
    with Pool(scratch.fresh().unsynced(), scratch.file("notes"), rng, size, GRACE) as pool:

        def restart(number: int) -> None:
            if number % PIECES_A_RESTART == PIECES_A_RESTART - 1:
                pool.restart_one(number // PIECES_A_RESTART)

        paced(pool, size * PIECES_A_RESTART, PIECE_EVERY_S, restart)
        return Ran(size, tuple(_undisturbed(pool)))


def crash_server(scratch: Scratch, seed: int) -> Ran:
    """Crash a private server under a pool of workers."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    server = scratch.server()
    with (
        PostgresScratch(server.url, scratch.folder) as own,
        Pool(own.fresh(), scratch.file("notes"), rng, CRASHED_POOL, Terms(lease_s=2)) as pool,
    ):
        for _ in range(CRASHES_A_POOL):
            pool.give(PIECES_A_KILL)
            time.sleep(rng.uniform(0, BETWEEN_S))  # crash at a random moment
            rng.choice(crashes.WAYS)(server)
            pool.give(PIECES_A_KILL)
        pool.wait()
        pool.end()
        return Ran(CRASHES_A_POOL, tuple(pool.judge()))


def fill_disk(scratch: Scratch, seed: int) -> Ran:
    """Let the files of workers grow no more, at some size, and then give them room again."""
    import resource

    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    place = scratch.fresh().unsynced()
    with Pool(place, scratch.file("notes"), rng, CRASHED_POOL, Terms(lease_s=2)) as pool:
        for _ in range(FILLS_A_POOL):
            pool.give(PIECES_A_KILL)
            most_bytes = rng.randrange(SMALLEST_BYTES, LARGEST_BYTES)
            for size in (most_bytes, resource.RLIM_INFINITY):
                for worker in pool.workers:
                    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
                time.sleep(rng.uniform(0, FULL_S))  # for a random time
        pool.wait()
        pool.end()
        return Ran(FILLS_A_POOL, tuple(pool.judge()))


def no_limits(_: Scratch) -> str | None:
    """Return why the disk of a worker cannot be filled here: another process must be able to limit its files."""
    return None if sys.platform == "linux" else "only Linux limits the files of another process"


def fail_over(scratch: Scratch, seed: int) -> Ran:
    """Kill a primary under a pool of workers, and promote its synchronous standby."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    with (
        failover.replicated(scratch) as (place, _, primary, standby),
        Pool(place, scratch.file("notes"), rng, CRASHED_POOL, Terms(lease_s=2)) as pool,
    ):
        pool.give(PIECES_A_KILL)
        time.sleep(rng.uniform(0, BETWEEN_S))  # die at a random moment
        primary.stop("immediate")
        standby.run("pg_ctl", "-D", standby.data, "-w", "promote")
        pool.give(PIECES_A_KILL)
        pool.wait()
        pool.end()
        return Ran(1, tuple(pool.judge()))


def kill_pooled(scratch: Scratch, seed: int) -> Ran:
    """Kill and stop workers that reach their server through PgBouncer."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    with (
        poolers.pooler(scratch.server()) as url,
        PostgresScratch(url, scratch.folder, pooler="transaction") as own,
    ):
        return Ran(KILLS_A_POOL, tuple(_killed(scratch, own.fresh(), rng, CRASHED_POOL)))


KILLED_WORKER = Fault(
    "kill-worker",
    "kill -9 of workers, and SIGSTOP until their claims have expired, under turns, jobs, runs and agents",
    ("I5", "I6", "I10"),
    {"sqlite": Numbers(5, 2_000), "postgres": Numbers(5, 2_000)},
    kill_workers,
    unit="kills and stops",
)

SKEWED_WORKER = Fault(
    "worker-clocks",
    "workers whose clocks are an hour ahead, an hour behind, and right share work",
    ("I5", "I6", "I10"),
    {"postgres": Numbers(3, 300)},
    skew_clocks,
    unit="workers",
)

RESTARTED_WORKER = Fault(
    "restart-workers",
    "rolling restart of all workers by SIGTERM under a steady load",
    ("I6", "I10"),
    {"sqlite": Numbers(3, 400), "postgres": Numbers(3, 400)},
    restart_workers,
    unit="restarts",
)

CRASHED_WORKER = Fault(
    "worker-server-crash",
    "a private PostgreSQL is killed or stopped without a word under workers, and comes back",
    ("I5", "I6", "I10"),
    {"postgres": Numbers(2, 200)},
    crash_server,
    unit="crashes",
    skip_reason=no_server,
)

CROWDED_WORKER = Fault(
    "worker-disk-full",
    "the file system is full for workers at some size, and then has room again",
    ("I5", "I6", "I10"),
    {"sqlite": Numbers(3, 200)},
    fill_disk,
    unit="sizes",
    skip_reason=no_limits,
)

FAILED_OVER_WORKER = Fault(
    "worker-failover",
    "the primary dies under workers, and its synchronous standby is promoted",
    ("I5", "I6", "I10"),
    {"postgres": Numbers(0, 40)},
    fail_over,
    unit="failovers",
    skip_reason=failover.skip_reason,
)

POOLED_WORKER = Fault(
    "pooled-workers",
    "kill -9 and SIGSTOP of workers behind PgBouncer in transaction mode, on a private server",
    ("I5", "I6", "I10"),
    {"postgres": Numbers(0, 200)},
    kill_pooled,
    unit="kills and stops",
    skip_reason=poolers.skip_reason,
)
