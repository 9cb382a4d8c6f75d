"""The contract of attachments that a parent lends, on our own backends."""

from holdfast.testing.contract.inheritance import InheritanceContract


class TestInheritance(InheritanceContract):
    pass
