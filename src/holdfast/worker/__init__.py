"""A worker claims turns, jobs and runs, calls your handlers on them and settles them by what the handlers did."""

from typing import TYPE_CHECKING

from holdfast.worker.jobs import Job
from holdfast.worker.retries import GiveUp, Retry
from holdfast.worker.tally import Failure, Tally
from holdfast.worker.worker import Worker

if TYPE_CHECKING:
    from holdfast.worker.blocking_run import BlockingRun
    from holdfast.worker.children import Child
    from holdfast.worker.facts import RunFacts, run_facts
    from holdfast.worker.journal import JournalUse
    from holdfast.worker.replaying import Difference, Replay, replay
    from holdfast.worker.run import Run
    from holdfast.worker.run_errors import ChildFailed, ChildrenLeft, JournalFull, SignalsLeft, StepConflict, StepFailed

_OF_RUNS = {
    "BlockingRun": "blocking_run",
    "Child": "children",
    "ChildFailed": "run_errors",
    "ChildrenLeft": "run_errors",
    "Difference": "replaying",
    "JournalFull": "run_errors",
    "JournalUse": "journal",
    "Replay": "replaying",
    "Run": "run",
    "SignalsLeft": "run_errors",
    "StepConflict": "run_errors",
    "RunFacts": "facts",
    "StepFailed": "run_errors",
    "replay": "replaying",
    "run_facts": "facts",
}
"""Names that are loaded on first use: the module of runs loads asyncio."""

__all__ = [
    "BlockingRun",
    "Child",
    "ChildFailed",
    "ChildrenLeft",
    "Difference",
    "Failure",
    "GiveUp",
    "Job",
    "JournalFull",
    "JournalUse",
    "Replay",
    "Retry",
    "Run",
    "RunFacts",
    "SignalsLeft",
    "StepConflict",
    "StepFailed",
    "Tally",
    "Worker",
    "replay",
    "run_facts",
]


def __getattr__(name: str) -> object:
    """Return a name of the modules of runs."""
    if name not in _OF_RUNS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_OF_RUNS[name]}"), name)
