"""A worker claims turns, jobs and runs, calls your handlers on them and settles them by what the handlers did."""

from typing import TYPE_CHECKING

from holdfast.worker.jobs import Job
from holdfast.worker.retries import GiveUp, Retry
from holdfast.worker.tally import Failure, Tally
from holdfast.worker.worker import Worker

if TYPE_CHECKING:
    from holdfast.worker.blocking_run import BlockingRun
    from holdfast.worker.run import ChildFailed, Run, StepConflict

__all__ = [
    "BlockingRun",
    "ChildFailed",
    "Failure",
    "GiveUp",
    "Job",
    "Retry",
    "Run",
    "StepConflict",
    "Tally",
    "Worker",
]


def __getattr__(name: str) -> object:
    """Return a name of the module of runs, which loads asyncio."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{'blocking_run' if name == 'BlockingRun' else 'run'}"), name)
