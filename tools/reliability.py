"""Runs the reliability programme and writes RELIABILITY.md: runs, machine, invariants, violations and bugs found.

Usage: python tools/reliability.py [--minutes 40] [--seed N] [--url URL] [--out RELIABILITY.md] [--again]

Runs the whole programme: every fault of `holdfast.torture` on SQLite and on PostgreSQL, the suites that run random
programs, wrong clocks, damage, migrations and hostile input with the numbers of a release, and every planted bug. Each
row runs once; the time left is then shared in proportion to what each still needs. Without `--url` a private PostgreSQL
server is started, if this machine has the programs of one. The exit code is 1 if anything was violated or a planted bug
went unnoticed. Once the cause is mended, `--again` repeats those rows, and the page names the commit of each.
"""

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, NoReturn

import apsw
import msgspec

from holdfast.torture.catalogue import FAULTS
from holdfast.torture.faults import INVARIANTS, Fault
from holdfast.torture.places import PostgresScratch, Scratch, SqliteScratch
from holdfast.torture.replays import replay
from holdfast.torture.running import Result, Violation, run_fault
from holdfast.torture.servers import Server, found

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "reliability.json"
TRACK_RECORD = ROOT / "docs" / "explanation" / "faults.md"
BACKENDS = {"sqlite": "SQLite", "postgres": "PostgreSQL", "both": "both"}
ENOUGH_RUNS = 3
"""Fewer runs than this give no bound."""

CORES = os.cpu_count() or 1
SUITE_SHARE = 0.4
"""The suites' share of the time. The faults have the rest."""


class Suite(NamedTuple):
    """A row of the programme that tests run: the tests, the number of cases, and the variable for that number."""

    name: str
    backend: str
    invariants: tuple[str, ...]
    unit: str
    wanted: int
    tests: tuple[str, ...]
    variable: str | None = None
    """None if the tests always run as a whole; then a case is a test."""
    probe: int = 0
    """Number of cases that run first, to measure the time of one."""


ALL = tuple(INVARIANTS)
DAMAGE = ("I9", "I10")
SQLITE_TESTS, POSTGRES_TESTS = "tests/backends/sqlite", "tests/backends/postgres"
WHOLE = {"HOLDFAST_WHOLE": "1"}
SUITES = (
    Suite("random programs against the memory reference", "sqlite", ALL, "steps", 500_000,
          ("tests/test_state_machine.py", "-k", "both_backends"), "HOLDFAST_STEPS", 20_000),
    Suite("random programs against the memory reference", "postgres", ALL, "steps", 100_000,
          ("tests/test_state_machine.py", "-k", "all_three"), "HOLDFAST_STEPS_OF_THREE", 5_000),
    Suite("clock of a client an hour ahead or behind", "postgres", ("I5",), "lives", 2_000,
          ("tests/test_clocks.py", "-k", "hour_off"), "HOLDFAST_CLOCK_RUNS", 100),
    Suite("clock that goes backwards", "both", ("I5",), "tests", 1, ("tests/test_clocks.py", "-k", "backwards")),
    Suite("damaged rows: every way in every column", "sqlite", DAMAGE, "tests", 1,
          (f"{SQLITE_TESTS}/test_verify_damage.py", f"{SQLITE_TESTS}/test_damage.py",
           f"{SQLITE_TESTS}/test_loose_damage.py", "tests/backends/test_damaged_files.py")),
    Suite("damaged rows: every way in every column", "postgres", DAMAGE, "tests", 1,
          (f"{POSTGRES_TESTS}/test_verify_damage.py",)),
    Suite("flipped bits of the file", "sqlite", DAMAGE, "flips", 10_000,
          (f"{SQLITE_TESTS}/test_byte_flips.py",), "HOLDFAST_FLIPS", 400),
    Suite("migration interrupted at each statement", "both", ("I10",), "tests", 1,
          (f"{SQLITE_TESTS}/test_interrupted_migration.py", f"{POSTGRES_TESTS}/test_interrupted_migration.py")),
    Suite("sixteen processes opening at once; old code on a new schema", "both", ("I9", "I10"), "tests", 1,
          (f"{SQLITE_TESTS}/test_schema_setup.py", f"{POSTGRES_TESTS}/test_schema_setup.py",
           "tests/contract/test_second_process.py", "-k", "sixteen or newer or older or migration")),
    Suite("deliveries, also when the process dies between two writes", "both", ("I7",), "tests", 1,
          ("tests/contract/test_deliveries.py", "tests/planted/test_planted.py", "-k", "deliver or passes_without")),
    Suite("races of processes and workers, and demos that are killed", "both", ALL, "tests", 1,
          (f"{POSTGRES_TESTS}/test_process_races.py", f"{POSTGRES_TESTS}/test_job_races.py", "tests/cli/test_demo.py")),
    Suite("each statement of the server against its rule", "postgres", ALL, "tests", 1,
          (POSTGRES_TESTS, "-k", "test_statements_of")),
    Suite("a long session costs what a short one costs", "postgres", ("I10",), "tests", 1,
          (f"{POSTGRES_TESTS}/test_growth.py",)),
    Suite("contract, blocking and async", "both", ALL, "tests", 1,
          ("tests/contract", "-k", "sqlite or postgres", "--whole-facade")),
    Suite("contract through PgBouncer in transaction mode", "postgres", ALL, "tests", 1,
          ("tests/contract", "-k", "pooled or listening", "--whole-pooler")),
    Suite("hostile input: junk in every public call", "both", ("I9",), "calls", 20_000,
          ("tests/contract/test_hostile_fuzz.py",), "HOLDFAST_FUZZ", 300),
    Suite("hostile input: names, filters, sizes, depths", "both", ("I9",), "tests", 1,
          ("tests/contract/test_hostile.py",)),
    Suite("hostile input: bytes are never imported or run", "sqlite", ("I9",), "byte strings", 100_000,
          ("tests/test_decoding.py",), "HOLDFAST_HOSTILE_BYTES", 3_000),
    Suite("hostile input: no token, payload or password comes out", "both", ("I9",), "tests", 1,
          ("tests/test_secrets.py",)),
)  # fmt: skip
PLANTED = (
    ("tests/faults/test_planted_bugs.py",),
    ("tests/planted/test_planted.py", "-k", "is_caught"),
    ("tests/test_state_machine.py", "-k", "notices"),
)
NOT_RUN = {
    "clock of the server": "needs a server whose clock can be set; doctor names a clock that differs",
    "every released version's schema": "there is no release yet",
}
"""Rows of the programme that are not run here, and why."""


class Report(msgspec.Struct, frozen=True):
    """The results of a run, kept so that rows of it can be repeated."""

    results: tuple[Result, ...]
    server: str
    seed: int
    minutes: float
    caught: tuple[str, ...]
    missed: tuple[str, ...]
    commit: str
    day: str
    again: tuple[str, ...] = ()
    """Rows that were repeated at a later commit, and that commit."""

    @property
    def violated(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.violations)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=40.0, help="for what is repeated: faults and counted suites")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--url", help="a PostgreSQL database in which a scratch schema may be made")
    parser.add_argument("--out", type=Path, default=ROOT / "RELIABILITY.md")
    parser.add_argument("--again", action="store_true", help="repeat the violated rows of the last run, and no others")
    options = parser.parse_args()
    # On SIGTERM, still remove the servers and the folders.
    signal.signal(signal.SIGTERM, asked_to_stop)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-reliability-") as folder:
        if options.again:
            kept = msgspec.json.decode(KEPT.read_bytes(), type=Report)
            report = run_again(Path(folder), kept, options.url)
        else:
            report = run_all(Path(folder), options.minutes * 60, options.seed, options.url)
    report = msgspec.structs.replace(report, minutes=report.minutes + (time.monotonic() - began_s) / 60)
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_bytes(msgspec.json.encode(report))
    options.out.write_text(page(report), encoding="utf-8")
    print(f"{options.out} written after {report.minutes:.1f} minutes")
    return 1 if report.missed or report.violated else 0


def run_all(folder: Path, most_s: float, seed: int, url: str | None) -> Report:
    """Run the whole programme."""
    commit = current_commit()
    suites = run_suites(folder, most_s * SUITE_SHARE, seed)
    with servers(folder, url) as (scratches, server):
        faults = run_faults(scratches, most_s * (1 - SUITE_SHARE), seed)
    caught, missed = run_planted(folder)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return Report((*faults, *suites), server, seed, 0.0, caught, missed, commit, day)


def run_again(folder: Path, kept: Report, url: str | None) -> Report:
    """Repeat the rows that were violated, as often as they ran, and the planted bugs if one was missed."""
    commit = current_commit()
    repeated: dict[tuple[str, str], Result] = {}
    with servers(folder, url) as (scratches, _):
        for result in kept.violated:
            repeated[result.fault, result.backend] = run_row(folder, scratches, result)
            print_result(repeated[result.fault, result.backend])
    results = tuple(repeated.get((result.fault, result.backend), result) for result in kept.results)
    caught, missed = run_planted(folder) if kept.missed else (kept.caught, kept.missed)
    notes = [*(f"{fault} on {BACKENDS[backend]}" for fault, backend in repeated)]
    if kept.missed:
        notes.append("the planted bugs")
    again = (*kept.again, *(f"{note}, at `{commit}`" for note in notes))
    return msgspec.structs.replace(kept, results=results, caught=caught, missed=missed, again=again)


def run_row(folder: Path, scratches: list[Scratch], result: Result) -> Result:
    """Repeat one row with the seed that was violated."""
    seed = result.violations[0].seed
    for suite in SUITES:
        if (suite.name, suite.backend) == (result.fault, result.backend):
            if suite.variable is None:
                return result_of(suite, run_tests(folder, suite.tests, WHOLE, at_once=CORES), 0, seed)
            return result_of(suite, probe(folder, suite, result.cases, seed), result.cases, seed)
    [scratch] = [scratch for scratch in scratches if scratch.kind == result.backend]
    [fault] = [fault for fault in FAULTS if fault.name == result.fault]
    more = run_fault(scratch, fault, seed=seed, wanted=max(1, result.cases))
    return msgspec.structs.replace(more, wanted=result.wanted)


def run_planted(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the planted bugs that were noticed, and those that were not."""
    planted = [run_tests(folder, words, WHOLE) for words in PLANTED]
    caught = [name for one in planted for name in one.passed]
    missed = [name for one in planted for name in (*one.failed, *(f"{name} (skipped)" for name in one.skipped))]
    missed += [f"{words[0]}: nothing was run" for words, one in zip(PLANTED, planted, strict=True) if not one.run]
    return tuple(caught), tuple(missed)


def asked_to_stop(*_: object) -> NoReturn:
    sys.exit(143)


# Faults.


@contextmanager
def servers(folder: Path, url: str | None) -> Generator[tuple[list[Scratch], str], None, None]:
    """Yield a place for stores on each backend, and the server's version."""
    server: Server | None = None
    if url is None and found() is not None:
        server = Server()
        server.start()
        url = server.url
    try:
        scratches: list[Scratch] = [SqliteScratch(folder)]
        version = "none"
        if url is not None:
            postgres = PostgresScratch(url, folder)
            scratches.append(postgres)
            version = str(postgres.rows("server_version")[0][0])
        yield scratches, version
        for scratch in scratches:
            scratch.remove()
    finally:
        if server is not None:
            server.remove()


def run_faults(scratches: list[Scratch], most_s: float, seed: int) -> list[Result]:
    """Run every fault on every backend: once, and then as often as the rest of the time allows."""
    end_s = time.monotonic() + most_s
    rows = [(scratch, fault) for scratch in scratches for fault in FAULTS]
    results = [run_fault(scratch, fault, seed=seed, wanted=min(1, wanted(scratch, fault))) for scratch, fault in rows]
    results = [
        msgspec.structs.replace(result, wanted=wanted(scratch, fault))
        for result, (scratch, fault) in zip(results, rows, strict=True)
    ]
    for number, (scratch, fault) in enumerate(rows):
        share_s = shared([needed_s(result) for result in results[number:]], end_s - time.monotonic())
        first = results[number]
        if share_s > 0 and not first.violations:
            more = run_fault(
                scratch, fault, seed=seed + first.runs, wanted=first.wanted - first.cases, most_s=share_s
            )  # fmt: skip
            results[number] = together(first, more)
        print_result(results[number])
    return results


def wanted(scratch: Scratch, fault: Fault) -> int:
    """Return the number of cases for a release."""
    numbers = fault.numbers.get(scratch.kind)
    return 0 if numbers is None else numbers.release


def needed_s(result: Result) -> float:
    """Estimate the time that the rest of a row would take."""
    if result.skipped is not None or result.violations or result.runs == 0:
        return 0.0
    # A run that could not be judged takes time, but adds no case.
    return max(0, result.wanted - result.cases) * result.spent_s / max(result.cases, result.runs)


def shared(needs_s: list[float], left_s: float) -> float:
    """Return the time for the first row: all that it needs, or its proportional share if the time is short."""
    total_s = sum(needs_s)
    return 0.0 if total_s == 0 or left_s <= 0 else needs_s[0] * min(1.0, left_s / total_s)


def together(first: Result, more: Result) -> Result:
    """Merge two results of one row."""
    return msgspec.structs.replace(
        first,
        cases=first.cases + more.cases,
        runs=first.runs + more.runs,
        violations=first.violations + more.violations,
        spent_s=first.spent_s + more.spent_s,
        unjudged=first.unjudged + more.unjudged,
    )


# Suites.


class Tested(NamedTuple):
    """The results of some tests."""

    passed: list[str]
    failed: list[str]
    skipped: list[str]
    problems: list[str]
    reasons: list[str]
    spent_s: float

    @property
    def run(self) -> int:
        """Return the number of tests that ran."""
        return len(self.passed) + len(self.failed)


def run_tests(folder: Path, words: tuple[str, ...], variables: dict[str, str], *, at_once: int = 0) -> Tested:
    """Run tests, one after another or so many at a time, and read the result of each."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    options = ("-q", "-n", str(at_once), "-p", "no:cacheprovider", f"--junitxml={report}")
    command = [sys.executable, "-m", "pytest", *words, *options]
    began_s = time.monotonic()
    said = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    tested = Tested([], [], [], [], [], time.monotonic() - began_s)
    if not report.exists():
        tested.failed.append(" ".join(words))
        tested.problems.append((said.stdout + said.stderr)[-2_000:])
        return tested
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our own tests wrote it
        name = case.get("name", "").removeprefix("test_")
        wrong = [*case.findall("failure"), *case.findall("error")]
        skips = case.findall("skipped")
        (tested.failed if wrong else tested.skipped if skips else tested.passed).append(name)
        tested.problems.extend(f"{name}: {one.get('message', '')}\n{(one.text or '')[-1_500:]}" for one in wrong)
        tested.reasons.extend(one.get("message", "") for one in skips)
    return tested


def run_suites(folder: Path, most_s: float, seed: int) -> list[Result]:
    """Run every suite: whole, or with as many cases as fit into its share of the time."""
    results: list[Result] = []
    counted = [suite for suite in SUITES if suite.variable is not None]
    for suite in SUITES:
        if suite.variable is None:
            results.append(result_of(suite, run_tests(folder, suite.tests, WHOLE, at_once=CORES), 0, seed))
            print_result(results[-1])
    end_s = time.monotonic() + most_s
    probes = [result_of(suite, probe(folder, suite, suite.probe, seed), suite.probe, seed) for suite in counted]
    for number, suite in enumerate(counted):
        first = probes[number]
        needs_s = [needed_s(result) for result in probes[number:]]
        share_s = shared(needs_s, end_s - time.monotonic())
        if share_s > 0:
            count = max(1, int((suite.wanted - suite.probe) * share_s / needs_s[0]))
            first = together(first, result_of(suite, probe(folder, suite, count, seed + 1), count, seed + 1))
        results.append(first)
        print_result(first)
    return results


def probe(folder: Path, suite: Suite, count: int, seed: int) -> Tested:
    """Run a suite with a number of cases."""
    assert suite.variable is not None
    variables = {**WHOLE, suite.variable: str(count), "HOLDFAST_SEED": str(seed)}
    return run_tests(folder, suite.tests, variables, at_once=CORES)


def result_of(suite: Suite, tested: Tested, count: int, seed: int) -> Result:
    """Return a suite as a row of the table."""
    skipped = None
    if not tested.run:
        skipped = tested.reasons[0] if tested.reasons else "no test of this machine fits"
    violations = (Violation(seed, tuple(tested.problems)),) if tested.failed else ()
    cases = 0 if skipped else count if suite.variable else tested.run
    asked = suite.wanted if suite.variable else tested.run + len(tested.skipped)
    return Result(
        suite.name, suite.backend, suite.invariants, suite.unit, asked, cases, 1, violations, skipped, tested.spent_s
    )


def print_result(result: Result) -> None:
    state = f"skipped: {result.skipped}" if result.skipped else f"{result.cases} of {result.wanted} {result.unit}"
    line = f"{BACKENDS[result.backend]:10} {result.fault:26} {state}, {len(result.violations)} violations"
    print(f"{line}, {result.spent_s:.0f} s", flush=True)
    for violation in result.violations:
        for problem in violation.problems:
            print(f"    seed {violation.seed}: {problem}", flush=True)


# The page.


def page(report: Report) -> str:
    """Return the whole page."""
    results = report.results
    run = [result for result in results if result.skipped is None]
    short = [result for result in run if result.cases < result.wanted and not result.violations]
    violated = [result for result in run if result.violations]
    whole = len(run) - len(short) - len(violated)
    lines = [
        "# Reliability",
        "",
        "<!-- Written by tools/reliability.py. -->",
        "",
        f"Run on {report.day} at commit `{report.commit}`: {report.minutes:.0f} minutes, seed {report.seed}.",
        *(f"Failed at first, repeated after a fix: {note}." for note in report.again),
        f"Python {platform.python_version()}, {platform.system()} {platform.release()} on {platform.machine()}, "
        f"{os.cpu_count()} cores, SQLite {apsw.sqlite_lib_version()}, PostgreSQL {report.server}, "
        f"asyncpg {version('asyncpg')}.",
        "",
        f"**Of {rows(len(run))}, {whole} held with all cases that a release asks for, {len(short)} held with fewer,",
        f"and {len(violated)} were violated.** Fewer cases are weaker evidence. Skipped: {len(results) - len(run)}.",
        "",
        "A run is one seed on a new store. Its cases depend on each other: they are images of one recording, or kills",
        "on one store. So the last column counts runs: after n runs without a violation, fewer than 3/n of such runs",
        "would show one, with 95 % confidence. With fewer than three runs there is no bound.",
        "[Faults](docs/explanation/faults.md) describes each fault and its limits.",
        "",
        "| test | on | must hold | cases, of those for a release | runs | violations | violated runs, at most |",
        "|---|---|---|---|---|---|---|",
        *(row(result) for result in run),
        "",
        "The invariants:",
        "",
        *(f"- {name} {meaning}" for name, meaning in INVARIANTS.items()),
        "",
        "## Skipped and not run",
        "",
        *skips(results),
        *(f"- {reason}: {name}" for name, reason in NOT_RUN.items()),
        *(
            f"- {len(result.unjudged)} runs of {result.fault} on {BACKENDS[result.backend]} could not be judged"
            for result in results
            if result.unjudged
        ),
        "",
        "## Planted bugs",
        "",
        f"{len(report.caught)} bugs were planted, one at a time, and noticed. By test:",
        "",
        *by_test(report.caught),
        *(f"- **NOT noticed: {name}**" for name in report.missed),
        "",
    ]
    for result in violated:
        lines += [f"## Violated: {result.fault} on {BACKENDS[result.backend]}", ""]
        for one in result.violations:
            shown = (problem.replace(f"{ROOT}{os.sep}", "")[:2_000] for problem in one.problems[:5])
            lines += [f"`{again(result, one)}`", "", "```", *shown, "```"]
            lines.append("")
    return "\n".join([*lines, *track_record()]).rstrip() + "\n"


def skips(results: Sequence[Result]) -> list[str]:
    """Return the skipped rows, one line for each reason."""
    names: dict[str, list[str]] = {}
    for result in results:
        if result.skipped:
            names.setdefault(result.skipped, []).append(result.fault)
    return [f"- {reason}: {', '.join(faults)}" for reason, faults in names.items()]


def by_test(caught: Sequence[str]) -> list[str]:
    """Return the planted bugs, one line for each test that noticed some."""
    bugs: dict[str, list[str]] = {}
    for name in caught:
        test, _, bug = name.removesuffix("]").partition("[")
        bugs.setdefault(test, []).append(bug)
    return [
        f"- {test}: {', '.join(f'`{bug}`' for bug in found if bug)}".removesuffix(": ") for test, found in bugs.items()
    ]


def again(result: Result, violation: Violation) -> str:
    """Return the command that runs a violated row again."""
    for suite in SUITES:
        if (suite.name, suite.backend) == (result.fault, result.backend):
            number = f" {suite.variable}={result.wanted}" if suite.variable else ""
            return f"HOLDFAST_WHOLE=1 HOLDFAST_SEED={violation.seed}{number} python -m pytest {' '.join(suite.tests)}"
    return replay("URL", result.fault, violation.seed)


def rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def row(result: Result) -> str:
    """Return one line of the table."""
    judged = result.runs - len(result.unjudged)
    bound = f"{3 / judged:.1%}" if judged >= ENOUGH_RUNS and not result.violations else "-"
    reached = f"{result.cases:,} of {result.wanted:,} {result.unit}"
    return (
        f"| {result.fault} | {BACKENDS[result.backend]} | {' '.join(result.invariants)} | {reached} | "
        f"{result.runs} | {len(result.violations)} | {bound} |"
    )


def track_record() -> list[str]:
    """Return the bugs that these tests have found in Holdfast itself, from the page on faults."""
    text = TRACK_RECORD.read_text(encoding="utf-8")
    _, heading, rest = text.partition("## What they found")
    return [heading, *rest.split("\n## ", 1)[0].splitlines()]


def current_commit() -> str:
    return git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain") else "")


def git(*arguments: str) -> str:
    process = subprocess.run(
        ["git", *arguments],  # noqa: S607 - any installed git will do
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return process.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
