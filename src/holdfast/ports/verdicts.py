"""Answers of a database that judges an operation itself, in one trip.

A verdict is a word; `rules.verdicts` turns the words that refuse into errors.
"""

from __future__ import annotations

import msgspec

from holdfast import rows as r


class WorkVerdict(msgspec.Struct, frozen=True):
    """Enqueued, known or claimed, with the batches by sequence number; or a refusal without any."""

    verdict: str
    rows: tuple[r.BatchRow, ...] = ()


class RenewalVerdict(msgspec.Struct, frozen=True):
    """Renewed, with the new end of the claim; or a refusal."""

    verdict: str
    expires_at_ms: int = 0


class LeaseVerdict(msgspec.Struct, frozen=True):
    """Taken or renewed, with the lease; held, with the other owner's; or ended, with the status of the process."""

    verdict: str
    row: r.LeaseRow | None = None
    process_status: str | None = None
