"""The type of a fault: its action, its invariants, its backends and its number of cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from holdfast.torture.places import Scratch

Kind: TypeAlias = Literal["sqlite", "postgres"]

INVARIANTS: Mapping[str, str] = {
    "I1": "durable: acknowledged writes are there after the fault",
    "I2": "atomic: a commit is there as a whole or not at all",
    "I3": "linear: the revisions of a session form one chain",
    "I4": "idempotent: a repeated turn returns the same receipt and has one effect",
    "I5": "fenced: after a takeover, writes of the old holder are refused",
    "I6": "exactly once: enqueued = completed + pending + cancelled, one live claim",
    "I7": "delivered: each occurrence starts one process for each subscription",
    "I8": "log: events are gap-free, and a reader that resumes sees each once",
    "I9": "typed: every fault surfaces as a documented error, never as a hang",
    "I10": "no damage: verify is clean afterwards, and work continues",
}


class Numbers(NamedTuple):
    """Numbers of cases: on every push, and on release."""

    push: int
    release: int


class Ran(NamedTuple):
    """Result of one run: the number of cases, and the violations, each of which begins with its invariant."""

    cases: int
    violations: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    """Reasons why the run could not be judged. Such a run is not a case."""


def anywhere(_: Scratch) -> str | None:
    """Return None: there is no skip_reason."""
    return None


class Fault(NamedTuple):
    """One way in which the environment fails."""

    name: str
    summary: str
    invariants: tuple[str, ...]
    numbers: Mapping[Kind, Numbers]
    run: Callable[[Scratch, int], Ran]
    """Runs it once with a seed, in a scratch place."""
    unit: str = "runs"
    """Noun for a case."""
    skip_reason: Callable[[Scratch], str | None] = anywhere
    """Returns why it cannot run here, or None."""
