"""Runs faults one after another until each has had its cases or its time. Any exception in one becomes a result."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

import msgspec

from holdfast.torture.children import Broken, Silent
from holdfast.torture.faults import Fault, Ran
from holdfast.torture.places import Scratch

VIOLATIONS_A_FAULT = 3
"""A fault stops after this many runs with violations: more of them send nothing new."""


MOST_UNJUDGED = 20
"""A fault stops after this many runs that cannot be judged."""


class Violation(msgspec.Struct, frozen=True):
    """An invariant that did not hold, and the seed of the run."""

    seed: int
    problems: tuple[str, ...]


class Result(msgspec.Struct, frozen=True):
    """The result of one fault."""

    fault: str
    backend: str
    invariants: tuple[str, ...]
    unit: str
    wanted: int
    cases: int
    runs: int
    violations: tuple[Violation, ...]
    skipped: str | None
    spent_s: float
    unjudged: tuple[str, ...] = ()
    """Runs that could not be judged, and why. They count neither as held nor as violated."""

    @property
    def passed(self) -> bool:
        """Return whether it ran, and held."""
        return self.skipped is None and not self.violations and self.cases > 0


Progress = Callable[[Fault, int, int], None]
"""Called after each run with the cases so far and the wanted number."""


def nothing(_: Fault, _done: int, _wanted: int) -> None:
    """Show no progress."""


def share(minutes: float | None) -> Callable[[int], float | None]:
    """Return a function that divides the time left equally among the remaining faults; None means no limit."""
    if minutes is None:
        return lambda _: None
    end_s = time.monotonic() + minutes * 60
    return lambda left: max(0.0, end_s - time.monotonic()) / left


def run_fault(
    scratch: Scratch, fault: Fault, *, seed: int, wanted: int, most_s: float | None = None, progress: Progress = nothing
) -> Result:
    """Run one fault until it has had its cases or its time."""
    began_s = time.monotonic()
    skipped = skip_reason(scratch, fault)
    cases = runs = 0
    violations: list[Violation] = []
    unjudged: list[str] = []
    while skipped is None and cases < wanted and len(violations) < VIOLATIONS_A_FAULT:
        late = runs and most_s is not None and time.monotonic() - began_s >= most_s
        if late or len(unjudged) >= MOST_UNJUDGED:
            break
        try:
            ran = fault.run(scratch, seed + runs)
        except Silent as silent:
            ran = Ran(1, (f"I9: {silent}",))
        except Broken as broken:
            ran = Ran(1, (f"I9: a process failed in a way that no caller expects:\n{broken}",))
        except Exception:
            ran = Ran(1, (f"I9: the run failed in a way that no caller expects:\n{traceback.format_exc()}",))
        if ran.violations:
            violations.append(Violation(seed + runs, ran.violations))
            scratch.dismiss()
        unjudged += [f"seed {seed + runs}: {one}" for one in ran.unjudged]
        cases += 0 if ran.unjudged and not ran.violations else ran.cases
        runs += 1
        progress(fault, cases, wanted)
    spent_s = time.monotonic() - began_s
    return Result(
        fault.name, scratch.kind, fault.invariants, fault.unit, wanted, cases, runs, tuple(violations), skipped,
        spent_s, tuple(unjudged),
    )  # fmt: skip


def skip_reason(scratch: Scratch, fault: Fault) -> str | None:
    """Return why a fault cannot run here, or None."""
    if scratch.kind not in fault.numbers:
        return f"it does not apply to {'SQLite' if scratch.kind == 'sqlite' else 'PostgreSQL'}"
    return fault.skip_reason(scratch)
