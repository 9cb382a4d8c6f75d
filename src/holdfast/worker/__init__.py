"""A worker claims work of any session, runs your handlers on it and settles it: turns by a commit, jobs without one."""

from holdfast.worker.jobs import Job
from holdfast.worker.retries import GiveUp, Retry
from holdfast.worker.worker import Worker

__all__ = ["GiveUp", "Job", "Retry", "Worker"]
