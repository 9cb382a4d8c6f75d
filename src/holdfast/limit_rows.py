"""Rows of limits: the declaration of a kind, the slots that claims hold, and the keys that sessions wait for."""

import msgspec

from holdfast.columns import SessionKey, Whole
from holdfast.rows import Row


class LimitRow(Row, frozen=True):
    """The limits and the pause of one kind. All its slots are taken until `opens_at_ms`, if that is in the future."""

    kind: str
    at_once: Whole | None
    per_key: Whole | None
    paused: Whole
    declared_at_ms: Whole
    opens_at_ms: Whole


class SlotRow(Row, frozen=True):
    """The slot of one claim. `limit_key` is the empty text for work without a key."""

    kind: str
    limit_key: str
    session_key: SessionKey
    claim_id: str
    expires_at_ms: Whole


class WaitingKeyRow(Row, frozen=True):
    """A key that sessions wait for. It may have a free slot from `opens_at_ms` on."""

    kind: str
    limit_key: str
    opens_at_ms: Whole


class LimitState(msgspec.Struct, frozen=True):
    """A kind's limits with the live slots of the kind and of one key, and when the first of each ends."""

    limit: LimitRow
    used: int = 0
    first_end_ms: int | None = None
    used_by_key: int = 0
    first_end_of_key_ms: int | None = None


class RunLimit(msgspec.Struct, frozen=True):
    """The limit of a kind of runs with the live claims of its runs, and when the first of them ends."""

    kind: str
    at_once: int
    held: int = 0
    first_end_ms: int | None = None


for _kind in (LimitRow, SlotRow, WaitingKeyRow):
    # As in rows: built at import, by one thread.
    msgspec.json.Decoder(_kind)
