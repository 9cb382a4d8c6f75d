"""The contract of retries on our own backends."""

from holdfast.testing.contract.retries import RetryContract


class TestRetries(RetryContract):
    pass
