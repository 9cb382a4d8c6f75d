"""The contract of groups of nodes on our own backends."""

from holdfast.testing.contract.groups import GroupContract


class TestGroups(GroupContract):
    pass
