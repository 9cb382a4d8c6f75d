"""S14: steps of durable runs, replays of long journals, and 100,000 runs that sleep."""

from __future__ import annotations

from typing import Any

from benchmarks import child
from benchmarks.contender import Contender, Running, UnlikeWork
from benchmarks.core import Bench, Entries, Result, Table, race, ratio
from benchmarks.statistics import Spread, number, percentile

ID, QUESTION = "S14", "Durable runs: steps, replays, 100,000 sleepers, runs that come due"
OURS, DBOS = "Holdfast", "DBOS"
SLOTS = 20
SETTLE_S = {True: 0.3, False: 15.0}
MIB = 1024 * 1024


def run(bench: Bench) -> Result:
    """Each part runs on both engines. The sleepers are there while replays and due runs are measured again."""
    result = Result(ID, QUESTION)
    for kind in ("PostgreSQL", "SQLite"):
        for lanes in bench.size((1, 8), (1, 2)):
            steps(bench, result, kind, lanes)
        ours = contender(bench, kind)
        running = Running(ours)
        try:
            running.open()
            replays(bench, result, kind, running)
            sleepers(bench, result, kind, running)
        finally:
            running.close()
    result.notes.append(
        "A step does nothing and is timed in its handler: its cost is that of its record, which both wait for on the "
        "disk. Sleeping runs are due in a day. A replay is timed from the signal that wakes the run to the code behind "
        "its wait: with the claim and the journal."
    )
    return result


def contender(bench: Bench, kind: str, *, peer: bool = False) -> Contender:
    """Return Holdfast or DBOS on a database of its own."""
    url = bench.postgres.database() if kind == "PostgreSQL" else bench.file()
    environment: dict[str, str] = {}
    if kind == "PostgreSQL":
        pid = (bench.postgres.server.folder / "data" / "postmaster.pid").read_text(encoding="utf-8").split()[0]
        environment[child.SERVER_VARIABLE] = pid
    module = "benchmarks.peers.dbos_runs" if peer else "benchmarks.drivers.holdfast_runs"
    return Contender(
        DBOS if peer else OURS, module, {"url": url, "slots": SLOTS}, peer=peer, environment=environment
    )  # fmt: skip


def steps(bench: Bench, result: Result, kind: str, lanes: int) -> None:
    """Measure steps a second, of one run and of several at once."""
    count = bench.size(500, 20)
    both = [contender(bench, kind), contender(bench, kind, peer=True)]
    entries = race(bench, both, "steps", audit=False, warm={"lanes": 1, "count": 3}, lanes=lanes, count=count)
    for name, entry in entries.items():
        if any(each["count"] != lanes * count for each in entry.rounds):
            raise UnlikeWork(f"{name} did not run {lanes * count} steps")
    where = f"{kind}, {lanes} at once"
    result.enter(f"steps, {where}", entries)
    result.tables.append(table(f"{where}: {count} steps each", entries))
    result.at_least(f"{where}: steps a second >= 3 x DBOS", ratio(entries, OURS, DBOS), 3)


def table(title: str, entries: Entries) -> Table:
    """Return rates and latencies of steps."""
    made = Table(title, ("", "steps/s", "of DBOS", "p50 ms", "p99 ms"))
    for name, entry in entries.items():
        if entry.error is not None:
            made.rows.append([name, "-", "-", "-", f"cannot run here: {entry.error}"])
            continue
        of_peer = ratio(entries, name, DBOS)
        latencies = [number(entry.latency(share).median) for share in (0.5, 0.99)]
        made.rows.append([name, entry.rates.show(), "-" if of_peer is None else of_peer.show(), *latencies])
    return made


def replays(bench: Bench, result: Result, kind: str, running: Running) -> None:
    """Measure the wake of a run with a long journal."""
    count, rounds = bench.size(1_000, 50), bench.size(10, 3)
    bench.tell(f"replays of {count} steps on {kind}")
    taken = Spread((percentile(running.ask("replay", count=count, rounds=rounds), 0.5),))
    result.data[f"replay, {kind}"] = taken.data()
    result.at_most(f"{kind}: {count:,} recorded steps replayed <= 100 ms", taken, 100, unit=" ms")


def sleepers(bench: Bench, result: Result, kind: str, running: Running) -> None:
    """Measure an idle worker and due runs, without sleeping runs and with them."""
    count, due, seconds = bench.size(100_000, 500), bench.size(1_000, 50), bench.size(20.0, 0.5)
    made = Table(f"{kind}: one worker", ("sleeping runs", "memory MiB", "% of a core", "late p50 ms", "late p99 ms"))
    result.tables.append(made)
    found: dict[int, dict[str, Any]] = {}
    for asleep in (0, count):
        if asleep:
            bench.tell(f"{asleep} runs go to sleep on {kind}")
            running.ask("sleepers", count=asleep)
        bench.tell(f"an idle worker, {asleep} runs asleep on {kind}")
        rest = running.ask("rest", settle_s=SETTLE_S[bench.quick], seconds=seconds)
        bench.tell(f"{due} runs come due, {asleep} asleep on {kind}")
        late = running.ask("due", count=due, in_ms=bench.size(8_000, 1_500))
        late_ms = [percentile(late, share) for share in (0.5, 0.99)]
        percent = (rest["client"] + rest["server"]) * 100
        made.rows.append(
            [f"{asleep:,}", number(rest["memory"] / MIB), number(percent), *(number(each) for each in late_ms)]
        )
        found[asleep] = rest | {"percent": percent, "late_p50_ms": late_ms[0], "late_p99_ms": late_ms[1]}
    result.data[f"sleepers, {kind}"] = {str(asleep): answer for asleep, answer in found.items()}
    memory = Spread((found[count]["memory"] / found[0]["memory"],))
    more = Spread((found[count]["percent"] - found[0]["percent"],))
    late_p99 = Spread((found[count]["late_p99_ms"],))
    result.at_most(f"{kind}: memory of a worker with {count:,} sleepers <= 1.1 x", memory, 1.1)
    result.at_most(f"{kind}: {count:,} sleepers cost <= 1 % of a core", more, 1, unit=" %")
    result.at_most(f"{kind}: {due:,} due in one second start within 1 s at p99", late_p99, 1_000, unit=" ms")
    if not running.ask("outage", count=bench.size(1_000, 50)):
        raise UnlikeWork(f"{kind}: after an outage the oldest run is not started first")
    result.notes.append(f"{kind}: after an outage, one worker started runs in the order in which they were due.")
