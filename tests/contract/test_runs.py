"""The contract of runs on our own backends."""

from holdfast.testing.contract.run_claims import RunClaimContract
from holdfast.testing.contract.run_waits import RunWaitContract
from holdfast.testing.contract.runs import RunContract
from holdfast.testing.contract.started_runs import StartedRunContract


class TestRuns(RunContract):
    pass


class TestRunClaims(RunClaimContract):
    pass


class TestRunWaits(RunWaitContract):
    pass


class TestStartedRuns(StartedRunContract):
    pass
