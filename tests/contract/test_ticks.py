"""The tick contract on our own backends."""

from holdfast.testing.contract.ticks import TickContract


class TestTicks(TickContract):
    pass
