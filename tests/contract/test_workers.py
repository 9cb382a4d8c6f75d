"""The contract of workers on our own backends."""

from holdfast.testing.contract.workers import WorkerContract


class TestWorkers(WorkerContract):
    pass
