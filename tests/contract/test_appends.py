"""The contract of appended nodes on our own backends."""

from holdfast.testing.contract.appends import AppendContract


class TestAppends(AppendContract):
    pass
