"""The contract of interrupts on our own backends."""

from holdfast.testing.contract.interrupts import InterruptContract


class TestInterrupts(InterruptContract):
    pass
