"""The contract of puts of the same bytes on our own backends."""

from holdfast.testing.contract.shared_puts import SharedPutContract


class TestSharedPuts(SharedPutContract):
    pass
