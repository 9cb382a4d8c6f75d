"""The contract on hostile input, on our own backends."""

from holdfast.testing.contract.hostile import HostileInputContract


class TestHostileInput(HostileInputContract):
    pass
