"""RELIABILITY.md says what was run, how often, on what, and what was found; nothing in it is written by hand.

Usage: python tools/reliability.py [--minutes 40] [--seed N] [--url URL] [--out RELIABILITY.md]

Runs every fault of `holdfast.torture` on SQLite and on PostgreSQL as often as on a release, bounded by the time, then
the tests that show that each planted bug is noticed. Without `--url` a private PostgreSQL server is started, if this
machine has the programs of one. The exit code is 1 if anything was violated or a planted bug went unnoticed.
"""

import argparse
import platform
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import apsw

from holdfast.torture.catalogue import FAULTS
from holdfast.torture.faults import INVARIANTS, Fault
from holdfast.torture.places import PostgresScratch, Scratch, SqliteScratch
from holdfast.torture.running import Result, run_fault, share
from holdfast.torture.servers import Server, found

ROOT = Path(__file__).resolve().parent.parent
TRACK_RECORD = ROOT / "docs" / "explanation" / "faults.md"
PLANTED = "tests/faults/test_planted_bugs.py"
BACKENDS = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=40.0, help="for the faults; the planted bugs come on top")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--url", help="a PostgreSQL database in which a scratch schema may be made")
    parser.add_argument("--out", type=Path, default=ROOT / "RELIABILITY.md")
    options = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-reliability-") as folder:
        results, server = run_everywhere(Path(folder), options.minutes, options.seed, options.url)
    caught, missed = planted_bugs()
    minutes = (time.monotonic() - began_s) / 60
    options.out.write_text(page(results, server, options.seed, minutes, caught, missed), encoding="utf-8")
    print(f"{options.out} written after {minutes:.1f} minutes")
    return 1 if missed or any(result.violations for result in results) else 0


def run_everywhere(folder: Path, minutes: float, seed: int, url: str | None) -> tuple[list[Result], str]:
    """The results on both backends, and which server it was."""
    server: Server | None = None
    if url is None and found() is not None:
        server = Server()
        server.start()
        url = server.url
    try:
        scratches: list[Scratch] = [SqliteScratch(folder)]
        told = "none"
        if url is not None:
            postgres = PostgresScratch(url, folder)
            scratches.append(postgres)
            told = str(postgres.rows("server_version")[0][0])
        return run_all(scratches, minutes, seed), told
    finally:
        if server is not None:
            server.remove()


def run_all(scratches: list[Scratch], minutes: float, seed: int) -> list[Result]:
    """Every fault on every backend, each with its share of the time."""
    results: list[Result] = []
    todo: list[tuple[Scratch, Fault]] = [(scratch, fault) for scratch in scratches for fault in FAULTS]
    shares = share(minutes)
    for number, (scratch, fault) in enumerate(todo):
        numbers = fault.numbers.get(scratch.kind)
        wanted = 0 if numbers is None else numbers.release
        result = run_fault(scratch, fault, seed=seed, wanted=wanted, most_s=shares(len(todo) - number))
        results.append(result)
        state = f"skipped: {result.skipped}" if result.skipped else f"{result.cases} of {wanted} {result.unit}"
        print(f"{BACKENDS[scratch.kind]:10} {fault.name:26} {state}, {len(result.violations)} violations", flush=True)
    for scratch in scratches:
        scratch.remove()
    return results


def planted_bugs() -> tuple[list[str], list[str]]:
    """Which planted bugs were noticed, and which were not."""
    command = [sys.executable, "-m", "pytest", PLANTED, "-v", "-p", "no:cacheprovider", "--no-header"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    lines = re.findall(r"\[(\w[\w-]*)\] (PASSED|FAILED|ERROR|SKIPPED)", said)
    caught = [name for name, how in lines if how == "PASSED"]
    return caught, [f"{name} ({how.lower()})" for name, how in lines if how != "PASSED"] or ([] if lines else [PLANTED])


def page(
    results: list[Result], server: str, seed: int, minutes: float, caught: list[str], missed: list[str]
) -> str:  # fmt: skip
    """The whole page."""
    commit = git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain") else "")
    run = [result for result in results if result.skipped is None]
    violated = [result for result in run if result.violations]
    lines = [
        "# Reliability",
        "",
        "<!-- Written by tools/reliability.py. -->",
        "",
        f"Run on {time.strftime('%Y-%m-%d', time.gmtime())} at commit `{commit}`: {minutes:.0f} minutes, seed {seed}.",
        f"Python {platform.python_version()}, {platform.system()} {platform.release()} on {platform.machine()}, "
        f"SQLite {apsw.sqlite_lib_version()}, PostgreSQL {server}, asyncpg {version('asyncpg')}.",
        "",
        f"**{len(violated)} of {len(run)} rows were violated.** 0 failures in n runs means, with 95 % confidence, a",
        "probability of failure below 3/n. It does not mean that there is none.",
        "[Faults](docs/explanation/faults.md) says how each one works and what it leaves out.",
        "",
        "| fault | backend | must hold | wanted | reached | | violations | below |",
        "|---|---|---|---|---|---|---|---|",
        *(row(result) for result in run),
        "",
        "The invariants:",
        "",
        *(f"- {name} {meaning}" for name, meaning in INVARIANTS.items()),
        "",
        "## Skipped",
        "",
        *(f"- {result.fault} on {BACKENDS[result.backend]}: {result.skipped}" for result in results if result.skipped),
        *(
            f"- {len(result.unjudged)} runs of {result.fault} on {BACKENDS[result.backend]} could not be judged"
            for result in results
            if result.unjudged
        ),
        "",
        "## Planted bugs",
        "",
        "A test that cannot fail proves nothing: each of these bugs was put in, and its fault noticed it.",
        "",
        *(f"- {name}" for name in caught),
        *(f"- **NOT noticed: {name}**" for name in missed),
        "",
    ]
    for result in violated:
        lines += [f"## Violated: {result.fault} on {BACKENDS[result.backend]}", ""]
        for one in result.violations:
            replay = f"holdfast torture --url URL --fault {result.fault} --seed {one.seed} --cases 1"
            lines += [f"`{replay}`", "", "```", *(problem[:2_000] for problem in one.problems[:5]), "```", ""]
    return "\n".join([*lines, *track_record()]).rstrip() + "\n"


def row(result: Result) -> str:
    """One line of the table."""
    below = "-" if result.violations or not result.cases else f"{min(1.0, 3 / result.cases):.1e}"
    return (
        f"| {result.fault} | {BACKENDS[result.backend]} | {' '.join(result.invariants)} | {result.wanted} | "
        f"{result.cases} | {result.unit} | {len(result.violations)} | {below} |"
    )


def track_record() -> list[str]:
    """What these tests have found in Holdfast itself, as the page on faults tells it."""
    text = TRACK_RECORD.read_text(encoding="utf-8")
    _, heading, rest = text.partition("## What they found")
    return [heading, *rest.split("\n## ", 1)[0].splitlines()]


def git(*arguments: str) -> str:
    told = subprocess.run(
        ["git", *arguments],  # noqa: S607 - whichever git is installed
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
