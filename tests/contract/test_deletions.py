"""The deletion contract on our own backends."""

from holdfast.testing.contract.deletions import DeletionContract


class TestDeletions(DeletionContract):
    pass
