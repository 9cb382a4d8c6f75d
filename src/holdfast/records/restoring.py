"""What was moved from another store arrived now, or was here before."""

from __future__ import annotations

from holdfast.records.common import Record


class RestoreReceipt(Record, frozen=True):
    """Something of another store is here as it was there; `replayed` if it was here before, and nothing was written."""

    replayed: bool
