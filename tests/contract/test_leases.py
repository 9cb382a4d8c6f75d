"""The lease contract on our own backends."""

from holdfast.testing.contract.leases import LeaseContract


class TestLeases(LeaseContract):
    pass
