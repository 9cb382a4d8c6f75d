"""The contract of exclusive claims on our own backends."""

from holdfast.testing.contract.exclusive_claims import ExclusiveClaimContract


class TestExclusiveClaims(ExclusiveClaimContract):
    pass
