"""S13: jobs that do nothing, run by worker processes: the cost of the worker itself."""

from __future__ import annotations

from typing import Any

from benchmarks import child
from benchmarks.contender import Contender, UnlikeWork
from benchmarks.core import FLOOR, Bench, Entries, Result, Table, race, ratio
from benchmarks.statistics import Spread, number

ID, QUESTION = "S13", "Jobs with the worker, 1 and 8 processes"
SLOTS = 4
"""Jobs that each process may run at once."""
FUSED = "floor, completing and claiming in one"
OURS, ONE = "Holdfast", "Holdfast, all jobs in one session"
PROCRASTINATE, PGQUEUER, DBOS = "procrastinate", "pgqueuer", "DBOS"
DRIVERS, PEERS = "benchmarks.drivers.", "benchmarks.peers."
STALE = "accepts a completion of a worker that lost its job; keeps no order"
FEWER = "runs an eighth of the jobs: polling every 100 ms limits its rate, whatever their number"
BUFFERED = f"{STALE}; claims several jobs at once, and completes them later, together"


def run(bench: Bench) -> Result:
    """Each job is checked to have been run once and settled. The floor and the peers share one queue."""
    result = Result(ID, QUESTION)
    jobs = bench.size(4_000, 100)
    for kind in ("PostgreSQL", "SQLite"):
        for processes in bench.size((1, 8), (1, 2)):
            contenders = on_postgres(bench) if kind == "PostgreSQL" else on_sqlite(bench)
            entries = race(bench, contenders, "work", audit=False, warm=None, processes=processes, jobs=jobs)
            require_all_done(entries)
            where = f"{kind}, {processes} at work"
            result.data[where] = {name: answer(entry.rounds) for name, entry in entries.items()}
            result.tables.append(table(f"{where}, {jobs:,} jobs a round, {SLOTS} at once in each process", entries))
            judge(result, where, entries)
    result.notes.append(
        "From the moment at which all processes run their first job until the last job runs. Holdfast settles a job "
        "and takes the next in one trip, renews claims, keeps the order of each session, and keeps settled jobs with "
        "their claims; the floor deletes them and renews nothing. On SQLite a process of the floor runs one job at a "
        "time, with two syncs; calls of Holdfast that wait at the same time share a sync."
        " DBOS polls every 100 ms here, ten times its default rate. It has an eighth of the jobs: each poll takes "
        "as many as it has slots, so its rate stays the same."
    )
    return result


def on_postgres(bench: Bench) -> list[Contender]:
    """Return the contenders on PostgreSQL."""
    pid = (bench.postgres.server.folder / "data" / "postmaster.pid").read_text(encoding="utf-8").split()[0]

    def of(name: str, module: str, *, peer: bool = False, less: str = "", **more: Any) -> Contender:
        where = {"url": bench.postgres.database(), "slots": SLOTS} | more
        return Contender(name, module, where, peer=peer, less=less, environment={child.SERVER_VARIABLE: pid})

    return [
        of(FLOOR, DRIVERS + "floor_worker"),
        of(FUSED, DRIVERS + "floor_worker", fused=True),
        of(OURS, DRIVERS + "holdfast_worker"),
        of(ONE, DRIVERS + "holdfast_worker", sessions=1),
        of(PROCRASTINATE, PEERS + "procrastinate_worker", peer=True, less=STALE),
        of(PGQUEUER, PEERS + "pgqueuer_worker", peer=True, less=BUFFERED),
        of(DBOS, PEERS + "dbos_worker", peer=True, less=FEWER),
    ]


def on_sqlite(bench: Bench) -> list[Contender]:
    """Return the contenders on a file."""
    return [
        Contender(FLOOR, DRIVERS + "floor_worker", {"url": bench.file(), "slots": SLOTS}),
        Contender(OURS, DRIVERS + "holdfast_worker", {"url": bench.file(), "slots": SLOTS}),
        Contender(DBOS, PEERS + "dbos_worker", {"url": bench.file(), "slots": SLOTS}, peer=True, less=FEWER),
    ]


def require_all_done(entries: Entries) -> None:
    """Refuse a round in which a job was not run once, or not settled."""
    for name, entry in entries.items():
        for each in entry.rounds:
            if not each["once"] or each["left"]:
                raise UnlikeWork(f"{name} ran jobs not once ({each['once']}), or left {each['left']} unsettled")


def answer(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers for JSON."""
    names = {"per_second": lambda one: one["count"] / one["seconds"]}
    names |= {
        f"{side}_us": lambda one, side=side: one[f"{side}_cpu_s"] / one["count"] * 1e6 for side in ("client", "server")
    }
    return {name: spread(rounds, of).data() for name, of in names.items()} if rounds else {}


def spread(rounds: list[dict[str, Any]], of: Any) -> Spread:
    """Return a number of each round."""
    return Spread(tuple(of(each) for each in rounds))


def table(title: str, entries: Entries) -> Table:
    """Return the rates, the ratio to the floor, and the processor time of a job."""
    made = Table(title, ("", "jobs/s", "of the floor", "worker µs/job", "server µs/job", "does less"))
    for name, entry in entries.items():
        if entry.error is not None:
            made.rows.append([name, "-", "-", "-", "-", f"cannot run here: {entry.error}"])
            continue
        of_floor = ratio(entries, name, FLOOR)
        costs = [
            spread(entry.rounds, lambda one, side=side: one[f"{side}_cpu_s"] / one["count"] * 1e6)
            for side in ("client", "server")
        ]
        shown = [number(each.median) for each in costs]
        made.rows.append(
            [name, entry.rates.show(), "-" if of_floor is None else of_floor.show(), *shown, entry.contender.less]
        )
    return made


def judge(result: Result, where: str, entries: Entries) -> None:
    """Compare with the floor and the peers."""
    result.at_least(f"{where}: >= 0.6 of the floor in two transactions", ratio(entries, OURS, FLOOR), 0.6)
    for ours in (OURS, ONE) if ONE in entries else (OURS,):
        for peer in (PROCRASTINATE, PGQUEUER, DBOS):
            if peer in entries:
                result.at_least(f"{where}, {ours}: ahead of {peer}", ratio(entries, ours, peer), 1)
