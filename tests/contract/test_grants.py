"""The grant contract on our own backends."""

from holdfast.testing.contract.grants import GrantContract


class TestGrants(GrantContract):
    pass
