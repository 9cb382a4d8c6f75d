"""Names of the steps that a run records by itself. A step of a handler never begins with `~`."""

from __future__ import annotations

from typing import Final

OWN: Final = "~"
"""The first character of steps that a run records by itself."""
RETRIED: Final = f"{OWN}retried:"
"""Begins the name of a failed attempt."""
FAILED: Final = f"{OWN}failed:"
"""Begins the name of a call that failed and ended the attempt of its run. The next attempt makes the call again."""
STARTED: Final = f"{OWN}started:"
"""Begins the name of a child that was started."""
RESULT: Final = f"{OWN}result:"
"""Begins the name of the outcome of a child."""
WAITED: Final = f"{OWN}signal:"
"""Begins the name of the deadline of a wait for a signal, and of its end without one."""
TAKEN: Final = f"{OWN}took:"
"""Begins the name of the number of a signal that was taken in a branch of `run.gather`, or has a declared type."""
REJECTED: Final = f"{OWN}rejected:"
"""Begins the name of a signal whose payload was not of the declared type."""
DETACHED: Final = f"{OWN}detached:"
"""Begins the name of a child that was started and is not cancelled with the run."""
INHERITED: Final = f"{OWN}children"
"""The step that lists the children of the run that this one continues. No handler asks for it."""
COPIED: Final = f"{OWN}copied"
"""The step that ends the copy of another run's steps. No handler asks for it."""

HELD: Final = f"{OWN}held:"
"""Begins the name of the first time at which the handler did not ask for what a step recorded."""

HANDED_OVER: Final = f"{OWN}handed-over"
"""The step that ends the handler of an `external` run. The work continues outside, and no handler asks for it."""


def replay_key(step: str) -> str:
    """Return the key under which a step is recorded once."""
    return f"step:{step}"


def shown_step(step: str) -> str:
    """Return a step in the words of the handler: the call of the run that recorded it.

    >>> from holdfast.step_names import shown_step
    >>> shown_step("plan"), shown_step("~sleep:2"), shown_step("~started:writer-1")
    ("step 'plan'", 'call 2 of run.sleep', "run.start of child 'writer-1'")
    """
    for prefix, call in ((STARTED, "run.start of"), (DETACHED, "run.start of"), (RESULT, "result() of")):
        if step.startswith(prefix):
            return f"{call} child {step.removeprefix(prefix)!r}"
    for prefix in (WAITED, TAKEN):
        if step.startswith(prefix):
            name, _, number = step.removeprefix(prefix).partition(":")
            return f"call {number.removesuffix(':timeout')} of run.signal({name!r})"
    name, _, number = step.removeprefix(OWN).partition(":")
    return f"call {number} of run.{name}" if step.startswith(OWN) and number else f"step {step!r}"
