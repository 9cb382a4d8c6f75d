"""The fork contract on our own backends."""

from holdfast.testing.contract.forks import ForkContract


class TestForks(ForkContract):
    pass
