"""All tables of a store and their keys, for code that must visit every row.

The rows here are those whose everyday form leaves a part of the key or a column out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar, get_type_hints

import msgspec

from holdfast import rows as r
from holdfast.columns import Counter, SessionKey, Whole
from holdfast.label_rows import LabelRow
from holdfast.limit_rows import LimitRow, SlotRow, WaitingKeyRow
from holdfast.records.limits import SMALLEST_INTEGER
from holdfast.schedule_rows import MatchRow, ScheduleRow
from holdfast.stream_rows import StreamRow
from holdfast.worker_rows import WorkerRow

R = TypeVar("R", bound=r.Row)

Key: TypeAlias = tuple[int | str, ...]
"""The columns that a table is ordered by, the first fields of its rows."""


class StoredUsage(r.Row, frozen=True):
    """One counter of one session."""

    session_key: SessionKey
    source: str
    model: str
    input_tokens: Whole
    output_tokens: Whole
    cached_input_tokens: Whole
    reasoning_tokens: Whole
    place: Whole


class StoredBlob(r.Row, frozen=True):
    """One content of one family. `base_hash` is the key frame of a delta, None for a content that is stored whole."""

    family: SessionKey
    hash: str
    encoding: str
    base_hash: str | None
    size: Whole
    body: bytes


class StoredObject(r.Row, frozen=True):
    """The bytes of one attachment of one family."""

    family: SessionKey
    attachment_id: str
    hash: str
    encoding: str
    size: Whole
    body: bytes


class ObjectDeletion(r.Row, frozen=True):
    """A note that bytes outside the database are to be deleted; if not 0, the end of a reservation to do so."""

    family: SessionKey
    attachment_id: str
    deleting_until_ms: Whole


class Setting(r.Row, frozen=True):
    """One number that belongs to the whole store."""

    name: str
    value: Counter


TABLES: Final[dict[type[r.Row], tuple[str, int]]] = {
    r.SessionRow: ("sessions", 1),
    r.RevisionRow: ("revisions", 2),
    r.NodeRow: ("nodes", 1),
    StoredUsage: ("usage", 3),
    StoredBlob: ("blobs", 2),
    r.BatchRow: ("batches", 1),
    r.ReadyRow: ("ready", 1),
    LimitRow: ("limits", 1),
    SlotRow: ("slots", 4),
    WaitingKeyRow: ("waiting_keys", 2),
    r.LeaseRow: ("leases", 2),
    r.AttachmentRow: ("attachments", 2),
    StoredObject: ("attachment_objects", 2),
    ObjectDeletion: ("object_deletions", 3),
    r.ProcessRow: ("processes", 1),
    r.EventRow: ("events", 2),
    r.GrantRow: ("grants", 3),
    r.SubscriptionRow: ("subscriptions", 1),
    r.OccurrenceRow: ("occurrences", 1),
    r.DeliveryRow: ("deliveries", 2),
    ScheduleRow: ("schedules", 1),
    r.ArtifactRow: ("artifacts", 2),
    WorkerRow: ("workers", 1),
    StreamRow: ("stream_blocks", 4),
    LabelRow: ("session_labels", 3),
    Setting: ("settings", 1),
}
"""The table of each kind of row, and the number of its first columns that are its key."""

EVERYDAY: Final[dict[type[r.Row], tuple[str, int]]] = TABLES | {
    r.UsageRow: ("usage", 2),
    r.BlobRow: ("blobs", 1),
    r.ObjectRow: ("attachment_objects", 1),
    r.ArtifactHead: ("artifacts", 2),
    MatchRow: ("subscriptions", 1),
}
"""The same with rows that leave columns out: the number of first columns that identify a row in a message."""


def table_names() -> list[str]:
    """Return the name of every table."""
    return [name for name, _ in TABLES.values()]


def table_of(kind: type[r.Row]) -> str:
    """Return the table that holds rows of this kind."""
    return TABLES[kind][0]


def key_of(row: r.Row) -> Key:
    """Return the key of a row."""
    return msgspec.structs.astuple(row)[: TABLES[type(row)][1]]


def name_of(row: r.Row) -> str:
    """Return the key of a row as a finding writes it."""
    return "/".join(str(part) for part in key_of(row))


@cache
def smallest_key(kind: type[r.Row]) -> Mapping[str, int | str]:
    """Return the columns of a table's key, each with its least possible value."""
    columns = kind.__struct_fields__[: TABLES[kind][1]]
    hints = get_type_hints(kind)
    return {column: "" if hints[column] is str else SMALLEST_INTEGER for column in columns}


def fetched(kind: type[R], record: Sequence[Any]) -> R:
    """Return the row of these columns, checked."""
    values = tuple(record)
    try:
        return msgspec.convert(values, kind, builtin_types=r.DRIVER_TYPES)
    except msgspec.ValidationError:
        table, key_columns = EVERYDAY[kind]
        return r.row_of(kind, values, table=table, key=values[:key_columns])


def all_fetched(kind: type[R], records: Iterable[Sequence[Any]]) -> list[R]:
    """Return the rows of these columns, each checked."""
    table, key_columns = EVERYDAY[kind]
    return r.rows_of(kind, list(map(tuple, records)), table=table, key_columns=key_columns)
