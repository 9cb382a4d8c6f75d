"""A fault is a value: what it does, what must hold all the same, where it applies, how often it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from holdfast.torture.places import Scratch

Kind: TypeAlias = Literal["sqlite", "postgres"]

INVARIANTS: Mapping[str, str] = {
    "I1": "durable: what was acknowledged is there after the fault",
    "I2": "atomic: a commit is there as a whole or not at all",
    "I3": "linear: the revisions of a session form one chain",
    "I4": "idempotent: same turn id and content, same receipt, one effect",
    "I5": "fenced: nothing is accepted from a holder once a later one acquired",
    "I6": "exactly once: enqueued = completed + pending + cancelled, one live claim",
    "I7": "delivered: each occurrence starts one process for each subscription",
    "I8": "log: events are gap-free, and a reader that resumes sees each once",
    "I9": "typed: every fault surfaces as a documented error, never as a hang",
    "I10": "no damage: verify is clean afterwards, and work goes on",
}


class Numbers(NamedTuple):
    """How many cases are wanted: on every push, and on release."""

    push: int
    release: int


class Ran(NamedTuple):
    """One run of a fault: how many cases it had, and what was wrong in them, each beginning with its invariant."""

    cases: int
    violations: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    """Why it cannot be told whether everything held, if it cannot: such a run is no case."""


def anywhere(_: Scratch) -> str | None:
    """No obstacle."""
    return None


class Fault(NamedTuple):
    """One way in which the world fails."""

    name: str
    summary: str
    invariants: tuple[str, ...]
    numbers: Mapping[Kind, Numbers]
    run: Callable[[Scratch, int], Ran]
    """Runs it once with a seed, in a scratch place."""
    unit: str = "runs"
    """What a case is."""
    obstacle: Callable[[Scratch], str | None] = anywhere
    """Why it cannot be run here, if it cannot."""
