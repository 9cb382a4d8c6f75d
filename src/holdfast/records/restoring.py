"""The receipt of a restore from another store."""

from __future__ import annotations

from holdfast.records.common import Receipt


class RestoreReceipt(Receipt, frozen=True):
    """Something of another store now exists here unchanged. `replayed` if it did before, and nothing was written."""

    replayed: bool
