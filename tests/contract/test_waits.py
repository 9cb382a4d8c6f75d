"""The waiting contract on our own backends."""

from holdfast.testing.contract.waits import WaitContract


class TestWaits(WaitContract):
    pass
