"""The claim contract on our own backends."""

from holdfast.testing.contract.claims import ClaimContract


class TestClaims(ClaimContract):
    pass
