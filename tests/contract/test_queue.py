"""The queue contract on our own backends."""

from holdfast.testing.contract.queue import QueueContract


class TestQueue(QueueContract):
    pass
