"""The contract of attachments that a child inherits, on our own backends."""

from holdfast.testing.contract.inheritance import InheritanceContract


class TestInheritance(InheritanceContract):
    pass
