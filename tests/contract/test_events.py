"""The event contract on our own backends."""

from holdfast.testing.contract.events import EventContract


class TestEvents(EventContract):
    pass
