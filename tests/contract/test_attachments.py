"""The attachment contract on our own backends."""

from holdfast.testing.contract.attachments import AttachmentContract


class TestAttachments(AttachmentContract):
    pass
