"""The contract of streams on our own backends."""

from holdfast.testing.contract.streams import StreamContract


class TestStreams(StreamContract):
    pass
