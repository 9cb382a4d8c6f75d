"""The process contract on our own backends."""

from holdfast.testing.contract.processes import ProcessContract


class TestProcesses(ProcessContract):
    pass
