"""S15: the wake of an idle worker by new work, and the processor time of twenty idle workers."""

from __future__ import annotations

from benchmarks import child
from benchmarks.contender import CannotRun, Contender, Running
from benchmarks.core import Bench, Result, Table
from benchmarks.statistics import Spread, number, percentile

ID, QUESTION = "S15", "Wake of an idle worker by new work, and the CPU of 20 idle workers"
PAUSE_MS = 30.0
OURS = "Holdfast"
SETTLE_S = {True: 6.0, False: 15.0}
MOST_MS = {"PostgreSQL": 5.0, "SQLite": 8.0}
MOST_PERCENT = {"PostgreSQL": 1.0, "SQLite": 5.0}


def run(bench: Bench) -> Result:
    """Measure from the call that enqueues a job to the call of its handler in another process."""
    result = Result(ID, QUESTION)
    count, workers = bench.size(300, 20), bench.size(20, 3)
    for kind in ("PostgreSQL", "SQLite"):
        table = Table(f"{kind}: {count} wakes a round", ("", "p50 ms", "p99 ms"))
        result.tables.append(table)
        for contender in bench.wanted(contenders(bench, kind)):
            try:
                found = wakes(bench, contender, count)
            except CannotRun as failure:
                if not contender.peer:
                    raise
                table.rows.append([contender.name, "-", f"cannot run here: {str(failure).splitlines()[0]}"])
                continue
            p50, p99 = (Spread(tuple(percentile(each, share) for each in found)) for share in (0.5, 0.99))
            table.rows.append([contender.name, p50.show(), p99.show()])
            result.data[f"{kind}, {contender.name}"] = {"p50_ms": p50.data(), "p99_ms": p99.data()}
            if contender.name == OURS:
                most_ms = MOST_MS[kind]
                result.at_most(f"{kind}: p50 <= {most_ms:g} ms", p50, most_ms, unit=" ms")
        idle(bench, result, kind, workers)
    result.notes.append(
        "DBOS takes several jobs with one poll and starts them in any order. Its times are paired in order: they may "
        "be below zero, and say nothing below the poll's interval."
    )
    return result


def contenders(bench: Bench, kind: str) -> list[Contender]:
    """Return the contenders on a database, each with one process that waits."""

    def of(name: str, module: str, *, peer: bool = False) -> Contender:
        url = bench.postgres.database() if kind == "PostgreSQL" else bench.file()
        return Contender(name, f"benchmarks.{module}", {"url": url, "slots": 4}, peer=peer)

    found = [of(OURS, "drivers.holdfast_worker")]
    if kind == "PostgreSQL":
        found.append(of("procrastinate", "peers.procrastinate_worker", peer=True))
        found.append(of("pgqueuer", "peers.pgqueuer_worker", peer=True))
    return [*found, of("DBOS, polling every 100 ms", "peers.dbos_worker", peer=True)]


def wakes(bench: Bench, contender: Contender, count: int) -> list[list[float]]:
    """Return the milliseconds of each wake, of each round."""
    running = Running(contender)
    try:
        running.open()
        rounds: list[list[float]] = []
        for turn in range(bench.rounds):
            bench.tell(f"round {turn + 1} of {bench.rounds}: {contender.name}")
            rounds.append(running.ask("wake", count=count + 3, pause_ms=PAUSE_MS)[3:])
        return rounds
    finally:
        running.close()


def idle(bench: Bench, result: Result, kind: str, workers: int) -> None:
    """Measure idle workers of Holdfast, and their server."""
    contender = contenders(bench, kind)[0]
    if kind == "PostgreSQL":
        pid = (bench.postgres.server.folder / "data" / "postmaster.pid").read_text(encoding="utf-8").split()[0]
        contender.environment[child.SERVER_VARIABLE] = pid
    running = Running(contender)
    try:
        running.open()
        bench.tell(f"{workers} idle workers on {kind}")
        answer = running.ask("idle", processes=workers, settle_s=SETTLE_S[bench.quick], seconds=bench.size(60.0, 5.0))
    finally:
        running.close()
    result.data[f"{kind}, idle"] = answer
    percent = (answer["client"] + answer["server"]) * 100
    most = MOST_PERCENT[kind]
    result.at_most(f"{kind}: {workers} idle workers <= {most:g} % of a core", Spread((percent,)), most, unit=" %")
    result.notes.append(
        f"{kind}: {workers} idle workers take {number(answer['client'] * 100)} % of a core, and their server "
        f"{number(answer['server'] * 100)} %."
    )
