"""The contract of runs on our own backends."""

from holdfast.testing.contract.runs import RunContract


class TestRuns(RunContract):
    pass
