"""The wake contract on our own backends."""

from holdfast.testing.contract.wakes import WakeContract


class TestWakes(WakeContract):
    pass
