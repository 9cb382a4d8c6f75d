"""The delta contract on our own backends."""

from holdfast.testing.contract.deltas import DeltaContract


class TestDeltas(DeltaContract):
    pass
