"""`python -m benchmarks.cpu`: processor time of a call, in this process and in the server, in µs.

On a shared machine the clock on the wall measures the others, too. Processor time changes less, and where the
processors are the limit it decides the rate. With `--against`, another checkout of the same drivers takes turns with
this one. Needs Linux.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import child
from benchmarks.contender import Contender, Running
from benchmarks.postgres import Postgres
from benchmarks.statistics import Spread, number

DRIVERS = "benchmarks.drivers."


@dataclass(frozen=True)
class Case:
    """A repeated call: its drivers, the arguments of `open`, and of a round."""

    name: str
    driver: str
    floor: str
    does: str
    asked: dict[str, Any]
    opened_with: dict[str, Any] = field(default_factory=dict[str, Any])
    floor_asked: dict[str, Any] = field(default_factory=dict[str, Any])


def cases(size: float) -> list[Case]:
    """Return every case, for PostgreSQL."""

    def many(count: int) -> int:
        return max(1, int(count * size))

    one, sixteen = {"sessions": 1, "turns": many(320)}, {"sessions": 16, "turns": many(40)}
    apart, eight = {"workers": 1, "jobs": many(320)}, {"workers": 8, "jobs": many(640)}
    alone, hundred = {"writers": 1, "events": many(400)}, {"writers": 100, "events": many(8)}
    lanes = {"writers": 16, "events": many(50)}
    fused, shared = {"how": "fused"}, {"own_sessions": False}
    turns, queue, events = "holdfast_turns", "holdfast_queue", "holdfast_events"
    return [
        Case("turn, 1 session", turns, "floor_postgres", "turns", one),
        Case("turn, 16 sessions", turns, "floor_postgres", "turns", sixteen),
        Case("event, 1 process", events, "floor_events", "append", alone),
        Case("event, 100 processes", events, "floor_events", "append", hundred, floor_asked=lanes),
        Case("enqueue, 1 session", queue, "", "enqueue", apart),
        Case("claim and complete, 1 worker", queue, "floor_queue", "work", apart),
        Case("claim and complete, 8 workers", queue, "floor_queue", "work", eight),
        Case("claim and complete, 8 on one session", queue, "floor_queue", "work", eight, shared),
        Case("settle and take next, 8 workers", queue, "floor_queue", "work", eight, fused),
        Case("settle and take next, 8 on one session", queue, "floor_queue", "work", eight, fused | shared),
    ]


class Entry:
    """A contender of a case, and the µs of a call in each round."""

    def __init__(self, contender: Contender) -> None:
        self.name = contender.name
        self.running = Running(contender)
        self.client: list[float] = []
        self.server: list[float] = []
        self.wall: list[float] = []

    def round(self, case: Case, *, keep: bool) -> None:
        """Run a round."""
        answer = self.running.ask(case.does, **case.asked | self.running.contender.request)
        if keep:
            each = 1e6 / answer["count"]
            self.client.append(answer["client_cpu_s"] * each)
            self.server.append(answer["server_cpu_s"] * each)
            self.wall.append(answer["seconds"] * each)


def measured(case: Case, contenders: list[Contender], rounds: int) -> list[str]:
    """Run the rounds of one case. Return its rows, in Markdown."""
    entries: list[Entry] = []
    try:
        for contender in contenders:
            entries.append(Entry(contender))
            entries[-1].running.open()
            entries[-1].round(case, keep=False)
        for turn in range(rounds):
            for entry in entries if turn % 2 else entries[::-1]:
                entry.round(case, keep=True)
    finally:
        for entry in entries:
            entry.running.close()
    floor = entries[0]
    return [row(case.name, entry, floor) for entry in entries]


def row(case: str, entry: Entry, floor: Entry) -> str:
    """Return the row of a contender: the medians, and the floor's processor time divided by its own."""
    both, its = (Spread(tuple(map(sum, zip(each.client, each.server, strict=True)))).median for each in (entry, floor))
    cells = [
        Spread(tuple(entry.client)).show(0),
        Spread(tuple(entry.server)).show(0),
        Spread(tuple(entry.wall)).show(0),
    ]
    return f"| {case} | {entry.name} | {' | '.join(cells)} | {number(its / both)} |"


def main(arguments: list[str]) -> int:
    """Measure every case, or those whose name holds a text."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--only", default="", help="cases whose name holds one of these, separated by |")
    parser.add_argument("--size", type=float, default=1.0, help="factor on the number of calls")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--against", type=Path, help="another checkout, for example of the version before")
    parser.add_argument("--no-floor", action="store_true")
    options = parser.parse_args(arguments)
    postgres = Postgres()
    print("| call | | client | server | wall | floor / both |\n|---|---|---|---|---|---|", flush=True)
    try:
        pid = (postgres.server.folder / "data" / "postmaster.pid").read_text(encoding="utf-8").split()[0]
        for case in cases(options.size):
            if not any(part in case.name for part in options.only.split("|")):
                continue
            contenders = [Contender("now", DRIVERS + case.driver, case.opened_with)]
            if options.against is not None:
                other = options.against.resolve()
                before = {"PYTHONPATH": str(other / "src")}
                contenders.insert(0, dataclasses.replace(contenders[0], name="before", root=other, environment=before))
            if case.floor and not options.no_floor:
                contenders.insert(0, Contender("floor", DRIVERS + case.floor, request=case.floor_asked))
            for place, each in enumerate(contenders):
                contenders[place] = dataclasses.replace(
                    each,
                    where=each.where | {"url": postgres.database()},
                    environment=each.environment | {child.SERVER_VARIABLE: pid},
                )
            print("\n".join(measured(case, contenders, options.rounds)), flush=True)
    finally:
        postgres.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
