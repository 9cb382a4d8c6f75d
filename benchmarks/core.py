"""Runs contenders in turns, each round beginning with another one, and makes tables with verdicts."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.contender import CannotRun, Contender, Running
from benchmarks.postgres import Postgres
from benchmarks.statistics import Spread, latency, number, rates

T = TypeVar("T")

FLOOR = "floor"
WARM = {"turns": 3}
"""Untimed warm-up of every contender before the first round."""


class Bench:
    """One run: its sizes, its databases and its progress messages."""

    def __init__(self, *, quick: bool, rounds: int, peers: bool, folder: Path) -> None:
        self.quick = quick
        self.rounds = rounds
        self.peers = peers
        self.postgres = Postgres()
        self._folder = folder
        self._numbers = itertools.count(1)
        self._started_s = time.monotonic()
        self.label = ""

    def size(self, full: T, quick: T) -> T:
        """Return the size for a full or a quick run."""
        return quick if self.quick else full

    def file(self) -> str:
        """Return the path of a new database file."""
        return str(Path(tempfile.mkdtemp(dir=self._folder)) / f"{next(self._numbers)}.db")

    def tell(self, text: str) -> None:
        """Print progress."""
        print(f"[{time.monotonic() - self._started_s:6.1f} s] {self.label} {text}", file=sys.stderr, flush=True)

    def wanted(self, contenders: Sequence[Contender]) -> list[Contender]:
        """Return the contenders, without the peers if they were not asked for."""
        return [each for each in contenders if self.peers or not each.peer]


@dataclass
class Entry:
    """Results of one contender: a measurement for each round, or the reason why it was not measured."""

    contender: Contender
    facts: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None

    @property
    def rates(self) -> Spread:
        """Return the calls a second."""
        return rates(self.rounds)

    def latency(self, share: float) -> Spread:
        """Return a percentile, in milliseconds."""
        return latency(self.rounds, share)

    def data(self) -> dict[str, Any]:
        """Return the results for JSON, with the latencies summed up."""
        found: dict[str, Any] = {"does less": self.contender.less, "facts": self.facts, "error": self.error}
        if self.rounds and "latencies_ms" in self.rounds[0]:
            found |= {"per_second": self.rates.data()}
            found |= {f"p{share}_ms": self.latency(share / 100).data() for share in (50, 99)}
        return found


Entries = dict[str, Entry]


def race(
    bench: Bench,
    contenders: Sequence[Contender],
    do: str = "turns",
    *,
    rounds: int | None = None,
    audit: bool = True,
    warm: dict[str, Any] | None = WARM,
    **request: Any,
) -> Entries:
    """Run the same request on all contenders, `rounds` times, taking turns."""
    entries = {each.name: Entry(each) for each in bench.wanted(contenders)}
    running: dict[str, Running] = {}
    count = rounds or bench.rounds
    try:
        bench.tell(f"opens {', '.join(entries)}")
        for name, entry in entries.items():
            with _excused(bench, entry):
                running[name] = Running(entry.contender)
                running[name].send("open", **entry.contender.where)
        for name, entry in entries.items():
            if entry.error is None:
                with _excused(bench, entry):
                    entry.facts = running[name].opened()
        for name, entry in entries.items():
            # Imports, first statements and first pages are not measured here.
            if warm and entry.error is None:
                with _excused(bench, entry):
                    running[name].ask(do, **(request | entry.contender.request | warm))
        names = list(entries)
        for turn in range(count):
            # Rotate the order, so that no contender always runs after the noisiest one.
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                if entries[name].error is None:
                    bench.tell(f"round {turn + 1} of {count}: {name}")
                    with _excused(bench, entries[name]):
                        entries[name].rounds.append(
                            running[name].ask(do, **(request | entries[name].contender.request))
                        )
        for name, entry in entries.items():
            if audit and entry.error is None:
                with _excused(bench, entry):
                    running[name].audit()
    finally:
        for each in running.values():
            each.close()
    return entries


@contextlib.contextmanager
def _excused(bench: Bench, entry: Entry) -> Any:
    """Record the failure of a peer as its row. A failure of Holdfast or of the floor is raised."""
    try:
        yield
    except CannotRun as failure:
        if not entry.contender.peer:
            raise
        entry.error = str(failure).splitlines()[0]
        bench.tell(f"{entry.contender.name} cannot run: {failure}")


# ---------------------------------------------------------------------------- results


@dataclass
class Table:
    """Rows of text below a heading."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)

    def markdown(self) -> str:
        """Return the table as Markdown."""
        head = ["| " + " | ".join(self.columns) + " |", "|---" * len(self.columns) + "|"]
        rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        return "\n".join([f"**{self.title}**", "", *head, *rows])


@dataclass
class Target:
    """A target, and whether this run reaches it. A quick run judges nothing."""

    text: str
    value: str
    reached: bool | None

    @property
    def mark(self) -> str:
        """Return the verdict as text."""
        return {True: "reached", False: "**not reached**", None: "not judged"}[self.reached]


@dataclass
class Result:
    """The answer to one question."""

    id: str
    question: str
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    plots: dict[str, str] = field(default_factory=dict)

    def at_least(self, text: str, ratio: Spread | None, least: float) -> None:
        """Add a target that is reached from `least` on."""
        self._judge(text, ratio, ratio is not None and ratio.median >= least)

    def at_most(self, text: str, value: Spread | None, most: float, *, unit: str = "") -> None:
        """Add a target that is reached up to `most`."""
        self._judge(text, value, value is not None and value.median <= most, unit=unit)

    def _judge(self, text: str, value: Spread | None, reached: bool, *, unit: str = "") -> None:
        shown = "no measurement" if value is None else value.show() + unit
        self.targets.append(Target(text, shown, None if value is None else reached))

    def judge_nothing(self) -> None:
        """Keep the numbers and drop the verdicts: the sizes were too small."""
        for target in self.targets:
            target.reached = None

    def enter(self, key: str, entries: Entries) -> None:
        """Keep the numbers."""
        self.data[key] = {name: entry.data() for name, entry in entries.items()}

    def markdown(self) -> str:
        """Return the answer as Markdown."""
        parts = [f"## {self.id}. {self.question}", *(table.markdown() for table in self.tables)]
        if self.targets:
            rows = [[target.text, target.value, target.mark] for target in self.targets]
            parts.append(Table("Targets", ("target", "measured", ""), rows).markdown())
        parts += [f"- {note}" for note in self.notes]
        return "\n\n".join(parts)

    def json(self) -> str:
        """Return the answer as JSON."""
        targets = [{"target": each.text, "measured": each.value, "reached": each.reached} for each in self.targets]
        return json.dumps({"id": self.id, "question": self.question, "targets": targets} | self.data, indent=1)


def ratio(entries: Entries, name: str, against: str) -> Spread | None:
    """Return a contender's rate as a multiple of that of `against`; None if either has none."""
    mine, theirs = entries.get(name), entries.get(against)
    if mine is None or theirs is None or mine.error or theirs.error:
        return None
    return mine.rates.over(theirs.rates)


def whole_way(entries: Entries, name: str, against: str) -> Spread | None:
    """Return the ratio over all rounds together: for a contender that slows down, the median round misleads."""
    mine, theirs = entries.get(name), entries.get(against)
    if mine is None or theirs is None or mine.error or theirs.error:
        return None
    seconds = [sum(each["seconds"] for each in entry.rounds) for entry in (mine, theirs)]
    return Spread((seconds[1] / seconds[0],))


def rate_table(title: str, entries: Entries, *, floor: str = FLOOR, unit: str = "turns/s") -> Table:
    """Return a table of rates, latencies, and the ratio to the floor."""
    table = Table(title, ("", unit, "of the floor", "p50 ms", "p99 ms", "does less"))
    for name, entry in entries.items():
        if entry.error is not None:
            table.rows.append([name, "-", "-", "-", "-", f"cannot run here: {entry.error}"])
            continue
        of_floor = ratio(entries, name, floor)
        table.rows.append(
            [
                name,
                entry.rates.show(),
                "-" if of_floor is None else of_floor.show(),
                number(entry.latency(0.5).median),
                number(entry.latency(0.99).median),
                entry.contender.less,
            ]
        )
    return table
