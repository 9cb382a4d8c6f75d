"""The contract of the feed of changed sessions on our own backends."""

from holdfast.testing.contract.feeds import FeedContract


class TestFeeds(FeedContract):
    pass
