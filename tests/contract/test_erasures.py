"""The contract of tombstones in a commit, on our own backends."""

from holdfast.testing.contract.erasures import ErasureContract


class TestErasures(ErasureContract):
    pass
