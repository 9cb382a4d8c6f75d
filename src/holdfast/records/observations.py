"""Observations: the name, subject, cost and outcome of an operation, and never any content."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

OperationOutcome: TypeAlias = Literal["ok", "refused", "failed", "cancelled"]
"""The end of an operation: as asked, refused by a rule, failed for another reason, or cancelled by its caller."""


class Observation(msgspec.Struct, frozen=True):
    """One operation, after its end. Ids and numbers only: no payload, no token, no text of an error.

    `rows_…` and `bytes_…` count the rows that went to and came from the store's tables, and the encoded content in
    them. Only the last run of a transaction counts; `reruns` is the number of runs before it, caused by contention, a
    lost answer or an outdated hint. `returned_rows` is the length of the result, None if it is not a listing.
    `error_class` is the name of the error that the caller got.
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
        """The duration in milliseconds."""
        return self.duration_ns / 1_000_000
