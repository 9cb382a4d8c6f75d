"""Runs the demo with a live timeline. Exits non-zero unless the final count is right."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.cli.commands import Command, argument, whole
from holdfast.cli.running import POSTGRES, Call, Misused, Refused, has_password
from holdfast.cli.terminal import counted

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.demo.scenario import Entry, Report

SCHEMA = "holdfast_demo"
CONNECTIONS = 4
INTRODUCTION = (
    "An agent with a scripted model answers messages and runs builds, in two worker",
    "processes on one database. Two workers are killed with SIGKILL, others take",
    "over, and at the end the demo counts what is stored.",
)
PREFIX_COLUMNS = 20
LONGEST = 1_000
"""Without a terminal no line is wrapped."""
WHO = {"user": "bold", "clock": "bold", "worker-1": "cyan", "worker-2": "green", "worker-3": "yellow"}


def demo(call: Call) -> int:
    """Run once, from an empty session to the count."""
    from holdfast.demo.scenario import Scenario, Stalled

    # HOLDFAST_URL is ignored: the demo must not write into a store that was meant for something else.
    if call.options.url == "":
        raise Misused("--url is empty: name a store, or leave it out")
    url = call.options.url or _fresh_file()
    if url == "memory:":
        raise Misused("the demo needs a store that two processes can open: leave --url out, or name a file")
    settings = _settings(call, url)
    options = holdfast.PostgresOptions(**settings) if settings else None

    def show(entry: Entry) -> None:
        if not call.options.json:
            _line(call, entry)

    if not call.options.json:
        for line in INTRODUCTION:
            call.terminal.line(line)
        call.terminal.line("")

    with holdfast.open_blocking(url, options=options) as store:
        scenario = Scenario(store, {"url": url, "postgres": settings}, seed=call.options.seed, show=show)
        try:
            report = scenario.run()
        except Stalled as stalled:
            raise Refused(str(stalled)) from None
    if call.options.json:
        call.terminal.json(_document(url, report))
    else:
        _sum_up(call, url, report)
    return 0 if report.ok else 1


def _fresh_file() -> str:
    from pathlib import Path
    from tempfile import mkdtemp

    return str(Path(mkdtemp(prefix="holdfast-demo-")) / "agent.db")


def _settings(call: Call, url: str) -> dict[str, Any] | None:
    """Return the options with which every process opens the store; None for the defaults of SQLite."""
    if not url.startswith(POSTGRES):
        call.settings(url, migrate=True)
        return None
    schema, pooler = call.options.schema or SCHEMA, call.options.pooler or "none"
    return {"schema": schema, "pooler": pooler, "max_connections": CONNECTIONS}


def _line(call: Call, entry: Entry) -> None:
    from textwrap import wrap

    columns = max((call.terminal.columns or LONGEST) - PREFIX_COLUMNS, PREFIX_COLUMNS)
    first, *rest = wrap(entry.what, columns)
    who = (f"{entry.who:9} ", WHO.get(entry.who, "dim"))
    call.terminal.line((f"{entry.at_s:6.2f} s  ", "dim"), who, (first, entry.style) if entry.style else first)
    for line in rest:
        call.terminal.line(" " * PREFIX_COLUMNS, (line, entry.style) if entry.style else line)
    call.terminal.flush()


def _sum_up(call: Call, url: str, report: Report) -> None:
    from holdfast.demo.script import LINES

    line = call.terminal.line
    line("")
    line(("counted in the store", "bold"))
    for name, expected in report.expected.items():
        found = report.counted[name]
        right = found == expected
        line(
            f"  {name:36}{found:>5}  ",
            ("ok" if right else f"WRONG, {expected} expected", "green" if right else "red"),
        )
    answers = len(LINES)
    line("")
    line(
        f"{counted(len(report.kills), 'worker')} killed, {_leases(report)}, "
        f"{counted(report.kept, 'recorded step')} kept,"
    )
    line(f"model asked {counted(report.model_calls, 'time')} for {counted(answers, 'answer')}, {report.seconds:.1f} s")
    if report.ok:
        line(("nothing was lost, and nothing was done twice", "green"))
    else:
        line(("the count is wrong", "red"))
    line("")
    given, where = _where(call, url)
    line((f"look into it{given}:", "dim"))
    for command in (f"sessions graph {report.session_id}", "processes list --status any", "status"):
        line((f"  {_program()} {command}{where}", "dim"))


def _where(call: Call, url: str) -> tuple[str, str]:
    """Return what to do before the commands, and the options with which they find the store. Prints no password."""
    named = f" --url {shlex.quote(url)}"
    if not url.startswith(POSTGRES):
        return "", named
    options = f" --schema {shlex.quote(call.options.schema or SCHEMA)}"
    if call.options.pooler:
        options += f" --pooler {call.options.pooler}"
    return (", with its URL in HOLDFAST_URL", options) if has_password(url) else ("", named + options)


def _leases(report: Report) -> str:
    if not report.leases:
        return "no claim of theirs was alive"
    held, lost = (sum(one.refused for one in report.leases), sum(one.late_write_refused for one in report.leases))
    return f"{counted(held, 'intruder')} and {counted(lost, 'late write')} refused"


def _program() -> str:
    """Return the command line that starts this program. In a clone it is not on the PATH."""
    import shutil
    import sys
    from pathlib import Path

    started = Path(sys.argv[0]).absolute()
    if started.name == "holdfast":
        return "holdfast" if shutil.which("holdfast") == str(started) else _reachable(started)
    python = Path(sys.executable)
    return f"{'python' if shutil.which('python') == str(python) else _reachable(python)} -m holdfast"


def _reachable(program: Path) -> str:
    """Return a path that a shell in this folder runs, quoted."""
    from pathlib import Path

    if not program.is_relative_to(Path.cwd()):
        return shlex.quote(str(program))
    return shlex.quote(f"./{program.relative_to(Path.cwd())}")


def _document(url: str, report: Report) -> dict[str, object]:
    return {
        "ok": report.ok,
        "session_id": report.session_id,
        "file": None if url.startswith(POSTGRES) else url,
        "seconds": report.seconds,
        "kills": [one._asdict() for one in report.kills],
        "leases": [
            {
                "worker": one.worker,
                "on": "session" if isinstance(one.proof, holdfast.queue.WorkCompletion) else "process",
                "fence": one.proof.fence,
                "refused": one.refused,
                "late_write_refused": one.late_write_refused,
            }
            for one in report.leases
        ],
        "kept": report.kept,
        "model_calls": report.model_calls,
        "expected": report.expected,
        "counted": report.counted,
        "timeline": [{"at_s": one.at_s, "who": one.who, "what": one.what} for one in report.timeline],
    }


COMMANDS = (
    Command(
        "demo",
        "kill the workers of an agent, then check that nothing was lost or done twice",
        demo,
        (
            argument("--seed", metavar="N", type=whole, help="seed for random kill points"),
            argument(
                "--url",
                metavar="URL",
                # Also accepted before the command.
                default=argparse.SUPPRESS,
                help="the store to use: a path, sqlite:<path> or postgresql://… (default: a new file)",
            ),
            argument(
                "--schema",
                metavar="NAME",
                default=argparse.SUPPRESS,
                help="the schema of a PostgreSQL store (default holdfast_demo)",
            ),
        ),
        ("holdfast demo", "holdfast demo --seed 7", "holdfast demo --url postgresql://app@db/agents"),
        "An object: `ok`, `session_id`, `file` (null on PostgreSQL), `seconds`, `kills` (each with `worker`, "
        "`place`, `name`, `race`, `at_s`), `leases` (what the dead held, each with `worker`, `on`, `fence`, "
        "`refused`, `late_write_refused`), `kept` (recorded steps), `model_calls`, `expected` "
        "and `counted` (numbers by name), `timeline` (each with `at_s`, `who`, `what`).",
        "Without --url, creates a file in a temporary folder and keeps it. Ignores HOLDFAST_URL. On PostgreSQL, uses\n"
        "the schema holdfast_demo, or that of --schema. Needs no API key and no network: the model is scripted. The\n"
        "exit code is 1 if the count is wrong.",
        opens_a_store=False,
        without=("--attachments", "--lock-timeout"),
    ),
)
