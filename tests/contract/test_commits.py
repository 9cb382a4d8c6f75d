"""The commit contract on our own backends."""

from holdfast.testing.contract.commits import CommitContract


class TestCommits(CommitContract):
    pass
