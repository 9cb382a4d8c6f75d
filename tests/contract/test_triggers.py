"""The trigger contract on our own backends."""

from holdfast.testing.contract.triggers import TriggerContract


class TestTriggers(TriggerContract):
    pass
