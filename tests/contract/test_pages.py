"""The page contract on our own backends."""

from holdfast.testing.contract.pages import PageContract


class TestPages(PageContract):
    pass
