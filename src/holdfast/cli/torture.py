"""Runs the faults in a scratch file or schema next to the named database, and removes it at the end."""

from __future__ import annotations

import argparse
import secrets
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.cli.commands import Command, argument, whole
from holdfast.cli.running import POSTGRES, Call, Misused, Refused

if TYPE_CHECKING:
    from holdfast.torture.faults import Fault
    from holdfast.torture.places import Scratch
    from holdfast.torture.running import Result

MOST_CASES = 100_000_000
MOST_MINUTES = 7 * 24 * 60.0
ENDING = ("SIGTERM", "SIGHUP")
"""Signals that end a process which does not handle them; not every operating system has all of them."""


def torture(call: Call) -> int:
    """Run the faults that apply, and report which invariants held."""
    from holdfast.torture.catalogue import FAULTS
    from holdfast.torture.places import Unusable, scratch_at

    chosen = _chosen(call, FAULTS)
    if call.options.list:
        return _list(call, chosen)
    if call.options.schema:
        raise Misused("a torture makes a schema of its own: leave --schema out")
    url = call.url()
    if call.options.pooler and not url.startswith(POSTGRES):
        raise Misused("--pooler is for PostgreSQL: leave it out")
    given: int | None = call.options.seed
    seed = secrets.randbelow(10**9) if given is None else given
    with _ended_in_order():
        try:
            scratch = scratch_at(url, pooler=call.options.pooler or "none")
        except Unusable as error:
            raise Misused(str(error)) from None
        with scratch:
            for text in scratch.sweep():
                call.terminal.note(text)
            # Fail here if no store can be made at all: that is not a violation.
            scratch.fresh()
            results = _run(call, scratch, chosen, seed)
    _show(call, seed, results)
    if all(result.skipped for result in results):
        raise Refused("nothing was run: everything was skipped")
    return 1 if any(result.violations for result in results) else 0


@contextmanager
def _ended_in_order() -> Generator[None, None, None]:
    """Turn signals that end the process into `KeyboardInterrupt`, so that the scratch is removed first."""

    def end(_number: int, _frame: object) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before: dict[int, object] = {}
    if threading.current_thread() is threading.main_thread():
        for name in ENDING:
            number: int | None = getattr(signal, name, None)
            # Leave a signal ignored that the parent set to be ignored, as nohup does.
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def _chosen(call: Call, faults: tuple[Fault, ...]) -> list[Fault]:
    names: list[str] | None = call.options.fault
    known = {fault.name: fault for fault in faults}
    for name in names or ():
        if name not in known:
            raise Misused(f"there is no fault {name!r}: use one of {', '.join(known)}")
    return [known[name] for name in names] if names else list(faults)


def _list(call: Call, faults: list[Fault]) -> int:
    if call.options.json:
        call.terminal.json(
            [
                {"fault": one.name, "summary": one.summary, "invariants": one.invariants, "backends": [*one.numbers]}
                for one in faults
            ]
        )
    else:
        rows = [(one.name, ", ".join(one.numbers), " ".join(one.invariants), one.summary) for one in faults]
        call.terminal.table(("fault", "backends", "must hold", "what happens"), rows)
    return 0


def _run(call: Call, scratch: Scratch, faults: list[Fault], seed: int) -> list[Result]:
    from holdfast.torture.running import run_fault, share

    minutes: float | None = call.options.minutes
    cases: int | None = call.options.cases
    results: list[Result] = []
    shares = share(minutes)
    for number, fault in enumerate(faults):
        numbers = fault.numbers.get(scratch.kind)
        usual = 0 if numbers is None else max(1, numbers.push if minutes is None else numbers.release)
        wanted = usual if cases is None else cases
        with call.terminal.progress(fault.name, wanted) as bar:
            seen = 0

            def progress(_: Fault, done: int, _wanted: int) -> None:
                nonlocal seen
                bar.step(done - seen)
                seen = done

            most_s = shares(len(faults) - number)
            results.append(run_fault(scratch, fault, seed=seed, wanted=wanted, most_s=most_s, progress=progress))
    return results


def _show(call: Call, seed: int, results: list[Result]) -> None:
    if call.options.json:
        call.terminal.json({"seed": seed, "results": results})
        return
    from holdfast.torture.replays import replay

    call.terminal.line(f"seed {seed}, {results[0].backend}")
    rows = [
        (
            one.fault,
            " ".join(one.invariants),
            "-" if one.skipped else f"{one.cases} {one.unit}",
            "-" if one.skipped else len(one.violations),
            f"skipped: {one.skipped}" if one.skipped else _verdict(one),
        )
        for one in results
    ]
    call.terminal.table(("fault", "must hold", "runs", "violations", ""), rows)
    for one in results:
        for violation in one.violations:
            call.terminal.line(("VIOLATION", "red"), f" {one.fault}, seed {violation.seed}")
            for problem in violation.problems:
                for line in problem.splitlines():
                    call.terminal.line(f"  {line}")
            again = replay(call.options.url, one.fault, violation.seed, pooler=call.options.pooler)
            call.terminal.line(f"  replay: {again}")


def _verdict(result: Result) -> str:
    if result.violations:
        return "VIOLATED"
    unjudged = f"; {len(result.unjudged)} could not be judged" if result.unjudged else ""
    if not result.cases and unjudged:
        return f"unknown{unjudged}"
    if result.cases < result.wanted:
        return f"held (time was up before {result.wanted}{unjudged})"
    return f"held{unjudged}"


def some(text: str) -> int:
    """Parse a whole number from 1 on."""
    number = whole(text)
    if not 1 <= number <= MOST_CASES:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {MOST_CASES}")
    return number


def minutes(text: str) -> float:
    """Parse a number of minutes above 0 and up to `MOST_MINUTES`."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < number <= MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {MOST_MINUTES:.0f}")
    return number


COMMANDS = (
    Command(
        "torture",
        "inject faults around a scratch store and check its guarantees",
        torture,
        (
            argument("--fault", metavar="NAME", action="append", help="only this fault; may be given several times"),
            argument("--seed", metavar="N", type=whole, help="random seed (default: a new one)"),
            argument("--minutes", metavar="N", type=minutes, help="run as much as fits into this time"),
            argument("--cases", metavar="N", type=some, help="number of cases of each fault"),
            argument("--list", action="store_true", help="only list the faults"),
        ),
        (
            "holdfast torture --url agent.db",
            "holdfast torture --url postgresql://db/app --minutes 30",
            "holdfast torture --url agent.db --fault kill-writer --seed 7 --cases 1",
        ),
        "An object: `seed` and `results`, each with `fault`, `backend`, `invariants`, `wanted`, `cases`, `runs`,\n"
        "  `violations` (each with `seed` and `problems`), `skipped` (the reason, or null), `spent_s`\n"
        "  and `unjudged` (runs with too many orders of calls to tell whether they hold).",
        "Works in a scratch file beside the file of --url, or a scratch schema in its database, and removes it at the\n"
        "end. Existing data is neither read nor written. A fault that cannot run here is reported as\n"
        "skipped. A violation is printed with a command that repeats it: the same seed makes the same program, but\n"
        "the operating system may schedule it differently. The exit code is 1 after a violation, or if nothing ran.\n"
        "First removes scratch data of earlier runs that were killed.",
        without=("--attachments", "--lock-timeout"),
    ),
)
