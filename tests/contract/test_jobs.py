"""The contract of jobs on our own backends."""

from holdfast.testing.contract.job_failures import JobFailureContract
from holdfast.testing.contract.job_waits import JobWaitContract
from holdfast.testing.contract.jobs import JobContract


class TestJobs(JobContract):
    pass


class TestJobFailures(JobFailureContract):
    pass


class TestJobWaits(JobWaitContract):
    pass
