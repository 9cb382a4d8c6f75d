"""`python -m benchmarks.profiles`: profiles the calls that a target speaks of, and writes PROFILES.md.

py-spy samples from outside, many times a second, where each thread is, without stopping it. Times are wall-clock times,
waiting included: for the disk in a COMMIT, for the server in the event loop. Idle threads are left out. A separate
writer thread works while the event loop waits for it, so that the parts add up to more than the whole. Sampling makes
no function look slower than it is, however short.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.contender import PEERS, ROOT, Contender, Running, install_peers
from benchmarks.postgres import Postgres

OUT = ROOT / "benchmarks" / "PROFILES.md"
RATE = 500
FEW = 10
LAST_WORDS_S = 60.0
PARTS = (
    ("/holdfast/rules/", "rules: checks and judgements"),
    ("/holdfast/codec.py", "codec: encoding, hashing, compression"),
    ("StatementRunner.control (", "SQLite: BEGIN and COMMIT, with the wait for the disk"),
    ("/holdfast/backends/sqlite/connection.py", "SQLite: statements, with what the library does in them"),
    ("/holdfast/backends/sqlite/writer", "SQLite: turns of the writer"),
    ("/holdfast/backends/sqlite/", "SQLite: between values and rows"),
    ("/holdfast/backends/postgres/", "PostgreSQL: between values and statements"),
    ("/asyncpg/", "asyncpg"),
    ("/holdfast/operations/", "operations"),
    ("/holdfast/wait.py", "waiting and waking"),
    ("/holdfast/signals.py", "waiting and waking"),
    ("/holdfast/", "public calls, records, and what joins the parts"),
    ("/selectors.py", "waiting in the event loop: for the server, or for the thread that writes"),
    ("_SelectorSocketTransport.write (", "sending"),
    ("/asyncio/", "event loop"),
    ("/benchmarks/", "the benchmark itself"),
)
"""Part of the work for each frame, `name (path:line)`. The innermost listed frame decides."""
PREPARING = ("/benchmarks/work.py", "commit_of (", "_fill (")
"""Untimed work of the caller before it calls."""
PARKED = ("_worker (", "Writer._run (", "wait (", "acquire (", "get (")
"""Ends of the stacks of idle threads."""


class Case(NamedTuple):
    """A repeated call: its driver, the arguments of `open`, and those of the warm-up and of the measured request."""

    question: str
    driver: str
    opened_with: dict[str, Any]
    does: str
    warm: dict[str, Any]
    asked: dict[str, Any]

    @property
    def with_server(self) -> bool:
        """Return whether it is about PostgreSQL."""
        return self.question.endswith("PostgreSQL")


def cases(size: float) -> list[Case]:
    """Return every question with a target about time."""

    def many(number: int) -> int:
        return max(10, int(number * size))

    one, sixteen = {"sessions": 1, "turns": 10}, {"sessions": 16, "turns": 5}
    turns, more = one | {"turns": many(4_000)}, sixteen | {"turns": many(300)}
    nodes, read, reads = {"nodes": many(20_000)}, {"reads": 3}, {"reads": many(1_500)}
    job, jobs = {"workers": 1, "jobs": 16}, {"workers": 1, "jobs": many(2_000)}
    eight, shared = {"workers": 8, "jobs": 16}, {"own_sessions": False}
    event, events = {"writers": 1, "events": 10}, {"writers": 1, "events": many(5_000)}
    hundred, for_each = {"writers": 100, "events": 2}, {"writers": 100, "events": many(60)}
    return [
        Case("S1: a turn, blocking, SQLite", "turns", {"blocking": True}, "turns", one, turns),
        Case("S1: a turn, async, SQLite", "turns", {}, "turns", one, turns),
        Case("S2: turns of 16 sessions, SQLite", "turns", {}, "turns", sixteen, more),
        Case("S3: a turn, PostgreSQL", "turns", {}, "turns", one, turns),
        Case("S3: turns of 16 sessions, PostgreSQL", "turns", {}, "turns", sixteen, more),
        Case("S6: a path of 200, SQLite", "reads", nodes, "path", read, reads),
        Case("S6: a path of 200, PostgreSQL", "reads", nodes, "path", read, reads),
        Case("S7: claim and complete, SQLite", "queue", {}, "work", job, jobs),
        Case("S7: claim and complete, PostgreSQL", "queue", {}, "work", job, jobs),
        Case("S7: 8 workers on one session, PostgreSQL", "queue", shared, "work", eight, eight | {"jobs": many(2_000)}),
        Case("S9: an event, SQLite", "events", {}, "append", event, events),
        Case("S9: events of 100 processes, PostgreSQL", "events", {}, "append", hundred, for_each),
    ]


class Profile(NamedTuple):
    """The time of one case, and the number of samples in each part and each function."""

    question: str
    count: int
    wall_us: float
    parts: Counter[str]
    functions: Counter[str]

    @property
    def samples(self) -> int:
        """Return the number of samples of busy threads."""
        return sum(self.parts.values())

    def each_us(self, samples: int) -> float:
        """Return the time of this many samples, per call."""
        return samples / RATE / self.count * 1e6


def profile(case: Case, url: str, folder: Path) -> Profile:
    """Repeat the call under py-spy."""
    driver = f"benchmarks.drivers.holdfast_{case.driver}"
    running = Running(Contender(case.question, driver, {"url": url} | case.opened_with))
    stacks = folder / "stacks"
    try:
        running.open()
        running.ask(case.does, **case.warm)
        with subprocess.Popen(
            [PEERS / "bin" / "py-spy", "record", "--pid", str(running.pid), "--rate", str(RATE), "--format", "raw",
             "--full-filenames", "--idle", "--nonblocking", "--output", stacks],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as looking:  # fmt: skip
            assert looking.stdout is not None
            said = [looking.stdout.readline()]
            while "Sampling" not in said[-1]:
                if not said[-1]:
                    raise SystemExit("py-spy ended: " + "".join(said))
                said.append(looking.stdout.readline())
            answer = running.ask(case.does, **case.asked)
            looking.send_signal(signal.SIGINT)
            looking.communicate(timeout=LAST_WORDS_S)
    finally:
        running.close()
    parts, functions = counted(stacks.read_text(encoding="utf-8"))
    return Profile(case.question, answer["count"], answer["seconds"] / answer["count"] * 1e6, parts, functions)


def counted(stacks: str) -> tuple[Counter[str], Counter[str]]:
    """Count the samples of each part and function, from lines of frames, outermost first, with a number at the end."""
    parts: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for line in stacks.splitlines():
        frames, _, number = line.rpartition(" ")
        innermost = frames.rpartition(";")[2]
        if any(piece in frames for piece in PREPARING) or any(piece in innermost for piece in PARKED):
            continue
        part, function = place_of(frames.split(";"))
        parts[part] += int(number)
        functions[function] += int(number)
    return parts, functions


def place_of(frames: list[str]) -> tuple[str, str]:
    """Return the part of the work, and the function, in which a stack ends."""
    for frame in reversed(frames):
        for piece, part in PARTS:
            if piece in frame:
                name, _, place = frame.partition(" (")
                return part, f"{place.partition(':')[0].rpartition('/')[2]}: {name}"
    return "anything else", frames[-1].partition(" (")[0]


def table(found: Profile) -> list[str]:
    """Return a profile as Markdown."""
    lines = [
        f"## {found.question}",
        "",
        f"{found.wall_us:,.0f} us each on the clock ({found.count:,} times, {found.samples:,} samples).",
        "",
        "| part | us each | share |",
        "|---|---|---|",
    ]
    for part, number in found.parts.most_common():
        lines.append(f"| {part} | {found.each_us(number):,.0f} | {number / found.samples:.0%} |")
    lines += ["", "| function | |", "|---|---|"]
    for function, number in found.functions.most_common(FEW):
        lines.append(f"| `{function}` | {number / found.samples:.1%} |")
    return [*lines, ""]


def imports() -> list[str]:
    """Return the time of an import by package, as Markdown."""
    command = [sys.executable, "-X", "importtime", "-c", "import holdfast; holdfast.open"]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    spent: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for line in subprocess.run(command, env=kept, capture_output=True, text=True, check=True).stderr.splitlines():
        own, _, name = (piece.strip() for piece in line.removeprefix("import time:").split("|"))
        if own.isdigit():
            package = name.partition(".")[0]
            spent[package] += int(own)
            modules[package] += 1
    return [
        "## S11: `import holdfast; holdfast.open`",
        "",
        f"{spent.total() / 1000:,.0f} ms in {modules.total()} modules, the interpreter's own included.",
        "",
        "| package | ms | modules |",
        "|---|---|---|",
        *(f"| {name} | {us / 1000:.1f} | {modules[name]} |" for name, us in spent.most_common(FEW)),
        "",
    ]


def main(arguments: list[str]) -> int:
    """Profile every case, or those whose name contains a text."""
    about, _, how = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiles", description=about)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--size", type=float, default=1.0, help="factor on the number of calls")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    install_peers()
    facts = machine.describe()
    measured = (
        f"Measured {facts['date']} at {facts['commit']}, {facts['processor']}, load {facts['load at the start']}. "
        "Modules and functions have the names of that commit."
    )
    lines = ["# Profiles", "", how.strip(), "", measured, ""]
    postgres = Postgres()
    with tempfile.TemporaryDirectory(prefix="holdfast-profiles-") as folder:
        try:
            for number, case in enumerate(cases(options.size)):
                if options.only in case.question:
                    url = postgres.database() if case.with_server else str(Path(folder) / f"{number}.db")
                    answer = table(profile(case, url, Path(folder)))
                    print("\n".join(answer), flush=True)
                    lines += answer
        finally:
            postgres.close()
    lines += imports()
    options.out.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(f"{options.out} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
