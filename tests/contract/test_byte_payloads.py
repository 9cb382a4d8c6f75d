"""The contract of payloads of bytes, on our own backends."""

from holdfast.testing.contract.byte_payloads import BytePayloadContract


class TestBytePayloads(BytePayloadContract):
    pass
