"""The contract of bounds on our own backends."""

from holdfast.testing.contract.bounds import BoundsContract


class TestBounds(BoundsContract):
    pass
