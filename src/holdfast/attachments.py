"""Values of `session.attachments` and `store.attachments`, and where their bytes may live."""

from holdfast.folder import Folder
from holdfast.ports import AttachmentBytes
from holdfast.records.attachments import Attachment, AttachmentEntry, AttachmentRef, SweepReport

__all__ = ["Attachment", "AttachmentBytes", "AttachmentEntry", "AttachmentRef", "Folder", "SweepReport"]
