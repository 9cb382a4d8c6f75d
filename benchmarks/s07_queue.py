"""S7: what does it cost to claim one job and complete it, alone, among eight workers, in batches, with many waiting?"""

from __future__ import annotations

from benchmarks.contender import Contender
from benchmarks.core import FLOOR, Bench, Entries, Result, race, rate_table, ratio

ID, QUESTION = "S7", "Queue: claim one and complete it; batches of 50; a backlog of 20,000"
FUSED = "floor, completing and claiming in one"
OWN, ONE = "Holdfast, a session for each worker", "Holdfast, all workers on one session"
OURS_FUSED = "Holdfast, a session for each worker, settling and claiming in one"
PROCRASTINATE, PGQUEUER = "procrastinate", "pgqueuer"
FLOOR_MODULE, OUR_MODULE = "benchmarks.drivers.floor_queue", "benchmarks.drivers.holdfast_queue"
STALE = "accepts a completion of a worker that lost its job"
WARM = {"jobs": 16}
WARM_BATCHES = {"jobs": 50}


def run(bench: Bench) -> Result:
    """A job that Holdfast completes is settled by a commit of its session, which is a new revision as well."""
    result = Result(ID, QUESTION)
    jobs = bench.size(1000, 80)
    for workers in (1, 8):
        # One worker has one session either way.
        chosen = [each for each in on_postgres(bench) if workers > 1 or each.name != ONE]
        entries = race(bench, chosen, "work", audit=False, warm=WARM, workers=workers, jobs=jobs)
        keep(result, entries, f"PostgreSQL, {workers} at work, {jobs:,} jobs a round")
        for ours in (OWN, ONE) if workers > 1 else (OWN,):
            result.at_least(f"{workers} at work, {ours}: >= 0.8 of the floor", ratio(entries, ours, FLOOR), 0.8)
            for peer in (PROCRASTINATE, PGQUEUER):
                result.at_least(f"{workers} at work, {ours}: ahead of {peer}", ratio(entries, ours, peer), 1)
    entries = race(bench, on_sqlite(bench), "work", audit=False, warm=WARM, workers=1, jobs=jobs)
    keep(result, entries, f"SQLite, 1 at work, {jobs:,} jobs a round")
    result.at_least("SQLite: >= 0.8 of the floor", ratio(entries, OWN, FLOOR), 0.8)
    batches(bench, result, jobs)
    backlog(bench, result)
    result.notes.append(
        "The workers of the floor and of the peers share one queue. A queue of Holdfast belongs to a session: with a "
        "session for each worker nobody contends, with all on one session they do, and one commits at a time."
    )
    return result


def on_postgres(bench: Bench) -> list[Contender]:
    """Everybody with a queue on PostgreSQL."""
    new = bench.postgres.database
    return [
        Contender(FLOOR, FLOOR_MODULE, {"url": new()}),
        Contender(FUSED, FLOOR_MODULE, {"url": new(), "fused": True}),
        Contender(OWN, OUR_MODULE, {"url": new()}),
        Contender(ONE, OUR_MODULE, {"url": new(), "own_sessions": False}),
        Contender(OURS_FUSED, OUR_MODULE, {"url": new(), "fused": True}),
        Contender(PROCRASTINATE, "benchmarks.peers.procrastinate_queue", {"url": new()}, peer=True, less=STALE),
        Contender(PGQUEUER, "benchmarks.peers.pgqueuer_queue", {"url": new()}, peer=True, less=STALE),
    ]


def on_sqlite(bench: Bench) -> list[Contender]:
    """The same on a file."""
    return [
        Contender(FLOOR, FLOOR_MODULE, {"path": bench.file()}),
        Contender(OWN, OUR_MODULE, {"url": bench.file()}),
    ]


def keep(result: Result, entries: Entries, title: str) -> None:
    """A table and the numbers behind it."""
    result.enter(title, entries)
    result.tables.append(rate_table(title, entries, unit="jobs/s"))


def batches(bench: Bench, result: Result, jobs: int) -> None:
    """Fifty at a time."""
    jobs = max(jobs, 200) // 50 * 50
    chosen = [each for each in on_postgres(bench) if each.name in {FLOOR, OWN, PGQUEUER}]
    entries = race(bench, chosen, "work", audit=False, warm=WARM_BATCHES, workers=1, jobs=jobs, batch=50)
    keep(result, entries, f"PostgreSQL, 1 at work, in batches of 50, {jobs:,} jobs a round")


def backlog(bench: Bench, result: Result) -> None:
    """Does a claim cost more when many wait?"""
    many = bench.size(20_000, 1000)
    jobs = bench.size(500, 50)
    for kind in ("PostgreSQL", "SQLite"):
        contenders = []
        for waiting in (0, many):
            url = bench.postgres.database() if kind == "PostgreSQL" else bench.file()
            asked = {"backlog": waiting}
            contenders.append(Contender(f"Holdfast, {waiting:,} waiting", OUR_MODULE, {"url": url}, request=asked))
        entries = race(bench, contenders, "work", audit=False, warm=WARM, workers=1, jobs=jobs)
        few = "Holdfast, 0 waiting"
        result.enter(f"{kind}, backlog", entries)
        result.tables.append(rate_table(f"{kind}, with a backlog", entries, floor=few, unit="jobs/s"))
        slower = entries[f"Holdfast, {many:,} waiting"].latency(0.5).over(entries[few].latency(0.5))
        result.at_most(f"{kind}: p50 flat in the backlog (<= 1.2 x)", slower, 1.2)
