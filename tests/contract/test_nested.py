"""The contract of nested calls on our own backends."""

from holdfast.testing.contract.nested import NestedCallContract


class TestNestedCalls(NestedCallContract):
    pass
