"""The delivery contract on our own backends."""

from holdfast.testing.contract.deliveries import DeliveryContract


class TestDeliveries(DeliveryContract):
    pass
