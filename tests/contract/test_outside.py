"""The contract of bytes outside the database on our own backends."""

from holdfast.testing.contract.outside import OutsideBytesContract


class TestOutsideBytes(OutsideBytesContract):
    pass
