"""What an observer is told of an operation: its name, its subject, its cost and how it ended, and never any content."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

OperationOutcome: TypeAlias = Literal["ok", "refused", "failed", "cancelled"]
"""How an operation ended: as asked, refused by a rule, failed for another reason, or given up by its caller."""


class Observation(msgspec.Struct, frozen=True):
    """One operation, after its end. Ids and numbers only: no payload, no token, no text of an error.

    `rows_…` and `bytes_…` count the rows that went to and came from the store's tables, and the encoded content in
    them. Of a transaction that was run again, only the last run counts; `reruns` says how often that was: because
    somebody was in the way, an answer was lost, or what the store remembered was out of date. `returned_rows` is the
    length of what the caller got, None if that is no listing. `error_class` is the name of the error that he got.
    """

    operation: str
    system: str
    store: str
    outcome: OperationOutcome
    duration_ns: int
    error_class: str | None = None
    session_id: str | None = None
    process_id: str | None = None
    transactions: int = 0
    reruns: int = 0
    rows_read: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    returned_rows: int | None = None

    @property
    def duration_ms(self) -> float:
        """How long it took, in milliseconds."""
        return self.duration_ns / 1_000_000
