"""S7: the cost of claiming one job and completing it, alone, among eight workers, in batches, and with a backlog."""

from __future__ import annotations

from benchmarks.contender import Contender
from benchmarks.core import FLOOR, Bench, Entries, Result, race, rate_table, ratio

ID, QUESTION = "S7", "Queue: claim one and complete it; batches of 50; a backlog of 20,000"
FUSED = "floor, completing and claiming in one"
OWN, ONE = "Holdfast, a session for each worker", "Holdfast, all workers on one session"
OURS_FUSED = "Holdfast, a session for each worker, settling and claiming in one"
ONE_FUSED = "Holdfast, all workers on one session, settling and claiming in one"
TURNS = "Holdfast, a session for each worker, settled by a commit"
PROCRASTINATE, PGQUEUER = "procrastinate", "pgqueuer"
FLOOR_MODULE, OUR_MODULE = "benchmarks.drivers.floor_queue", "benchmarks.drivers.holdfast_queue"
STALE = "accepts a completion of a worker that lost its job"
WARM = {"jobs": 16}
WARM_BATCHES = {"jobs": 50}


def run(bench: Bench) -> Result:
    """Holdfast keeps a completed job until retention forgets it; the floor deletes it."""
    result = Result(ID, QUESTION)
    jobs = bench.size(1000, 80)
    for workers in (1, 8):
        # One worker has one session either way.
        chosen = [each for each in on_postgres(bench) if workers > 1 or each.name not in {ONE, ONE_FUSED}]
        entries = race(bench, chosen, "work", audit=False, warm=WARM, workers=workers, jobs=jobs)
        keep(result, entries, f"PostgreSQL, {workers} at work, {jobs:,} jobs a round")
        for ours in (OWN, ONE) if workers > 1 else (OWN,):
            result.at_least(f"{workers} at work, {ours}: >= 0.45 of the floor", ratio(entries, ours, FLOOR), 0.45)
            for peer in (PROCRASTINATE, PGQUEUER):
                result.at_least(f"{workers} at work, {ours}: ahead of {peer}", ratio(entries, ours, peer), 1)
        fused = f"{workers} at work, {OURS_FUSED}: >= 0.6 of the floor in two transactions"
        result.at_least(fused, ratio(entries, OURS_FUSED, FLOOR), 0.6)
    entries = race(bench, on_sqlite(bench), "work", audit=False, warm=WARM, workers=1, jobs=jobs)
    keep(result, entries, f"SQLite, 1 at work, {jobs:,} jobs a round")
    result.at_least("SQLite: >= 0.45 of the floor", ratio(entries, OWN, FLOOR), 0.45)
    batches(bench, result, jobs)
    backlog(bench, result)
    result.notes.append(
        "The workers of the floor and of the peers share one queue. A queue of Holdfast belongs to a session; workers "
        "claim work of any. Claims in one session come one after the other; completions need not wait. Completed work "
        "is kept, with its claim, so that a repeated completion has the same answer; the floor deletes it."
    )
    return result


def on_postgres(bench: Bench) -> list[Contender]:
    """Return all contenders with a queue on PostgreSQL."""
    new = bench.postgres.database
    return [
        Contender(FLOOR, FLOOR_MODULE, {"url": new()}),
        Contender(FUSED, FLOOR_MODULE, {"url": new(), "fused": True}),
        Contender(OWN, OUR_MODULE, {"url": new()}),
        Contender(ONE, OUR_MODULE, {"url": new(), "own_sessions": False}),
        Contender(OURS_FUSED, OUR_MODULE, {"url": new(), "how": "fused"}),
        Contender(ONE_FUSED, OUR_MODULE, {"url": new(), "own_sessions": False, "how": "fused"}),
        Contender(TURNS, OUR_MODULE, {"url": new(), "how": "turns"}),
        Contender(PROCRASTINATE, "benchmarks.peers.procrastinate_queue", {"url": new()}, peer=True, less=STALE),
        Contender(PGQUEUER, "benchmarks.peers.pgqueuer_queue", {"url": new()}, peer=True, less=STALE),
    ]


def on_sqlite(bench: Bench) -> list[Contender]:
    """Return the contenders on a file."""
    return [
        Contender(FLOOR, FLOOR_MODULE, {"path": bench.file()}),
        Contender(OWN, OUR_MODULE, {"url": bench.file()}),
    ]


def keep(result: Result, entries: Entries, title: str) -> None:
    """Add a table and its numbers."""
    result.enter(title, entries)
    result.tables.append(rate_table(title, entries, unit="jobs/s"))


def batches(bench: Bench, result: Result, jobs: int) -> None:
    """Measure batches of fifty."""
    jobs = max(jobs, 200) // 50 * 50
    chosen = [each for each in on_postgres(bench) if each.name in {FLOOR, OWN, PGQUEUER}]
    entries = race(bench, chosen, "work", audit=False, warm=WARM_BATCHES, workers=1, jobs=jobs, batch=50)
    keep(result, entries, f"PostgreSQL, 1 at work, in batches of 50, {jobs:,} jobs a round")


def backlog(bench: Bench, result: Result) -> None:
    """Measure a claim with many batches waiting, in this session or in others."""
    many = bench.size(20_000, 200)
    jobs = bench.size(500, 50)
    for kind in ("PostgreSQL", "SQLite"):
        contenders = []
        asks = {"0 waiting": {}, f"{many:,} waiting": {"backlog": many}, f"{many:,} other sessions": {"idle": many}}
        for name, asked in asks.items():
            url = bench.postgres.database() if kind == "PostgreSQL" else bench.file()
            contenders.append(Contender(f"Holdfast, {name}", OUR_MODULE, {"url": url}, request=asked))
        entries = race(bench, contenders, "work", audit=False, warm=WARM, workers=1, jobs=jobs)
        few = "Holdfast, 0 waiting"
        result.enter(f"{kind}, backlog", entries)
        result.tables.append(rate_table(f"{kind}, with a backlog", entries, floor=few, unit="jobs/s"))
        for name, what in ((f"{many:,} waiting", "the backlog"), (f"{many:,} other sessions", "other sessions")):
            slower = entries[f"Holdfast, {name}"].latency(0.5).over(entries[few].latency(0.5))
            result.at_most(f"{kind}: p50 flat in {what} (<= 1.2 x)", slower, 1.2)
