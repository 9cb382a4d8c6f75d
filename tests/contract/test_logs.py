"""The log contract on our own backends."""

from holdfast.testing.contract.logs import LogContract


class TestLogs(LogContract):
    pass
