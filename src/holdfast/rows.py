"""The rows of a database: plain scalars in a fixed column order, without behaviour.

A backend stores and returns these values and never looks inside `bytes`. Columns are in the order of the fields.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import msgspec

from holdfast import columns
from holdfast.columns import Counter, Position, RevisionNumber, SessionKey, Small, Whole
from holdfast.errors import Corrupt

POSITION_BITS = columns.POSITION_BITS

LIVE, TOMBSTONED, VACUUMED = 0, 1, 2
"""A node's mark. A vacuumed node has lost its content; its id and place stay, because history is append-only."""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One row of a table."""


R = TypeVar("R", bound=Row)

DRIVER_TYPES = (bytes,)
"""Types that a driver returns, and JSON does not have."""


def row_of(kind: type[R], values: tuple[object, ...], *, table: str, key: object) -> R:
    """Return a row of the database, with the type of every column checked: damage does not get past this point."""
    try:
        return msgspec.convert(values, kind, builtin_types=DRIVER_TYPES)
    except msgspec.ValidationError as error:
        raise Corrupt(table, str(key), f"a column has the wrong type: {error}") from error


def rows_of(kind: type[R], found: Sequence[tuple[object, ...]], *, table: str, key_columns: int) -> list[R]:
    """Return several rows, checked: many at once in a fifth of the time, one by one to name a damaged row."""
    with contextlib.suppress(msgspec.ValidationError):
        if len(found) > 3:
            parts = (found[at : at + columns.ROWS_AT_ONCE] for at in range(0, len(found), columns.ROWS_AT_ONCE))
            rows = (msgspec.convert(part, list[kind], builtin_types=DRIVER_TYPES) for part in parts)  # type: ignore[valid-type]
            return [row for part in rows for row in part]
    return [row_of(kind, values, table=table, key=values[:key_columns]) for values in found]


class Segment(Row, frozen=True):
    """Nodes of one session that a view includes: those of `epoch`, up to and including position `upto`."""

    session_key: SessionKey
    epoch: Position
    upto: Position

    @property
    def first_key(self) -> int:
        """The key of the first node that can belong to it."""
        return (self.session_key << POSITION_BITS) + self.epoch + 1

    @property
    def last_key(self) -> int:
        """The key of the last node that can belong to it."""
        return (self.session_key << POSITION_BITS) + self.upto


class SessionRow(Row, frozen=True):
    """One incarnation of a session. `created_at_ms` is None while it has no metadata."""

    session_key: SessionKey
    session_id: str
    incarnation: Counter
    family: SessionKey
    revision: RevisionNumber
    node_count: Position
    epoch: Position
    lineage: bytes
    changed_at_ms: Whole
    deleted_at_ms: Whole | None = None
    created_at_ms: Whole | None = None
    name: str | None = None
    owner: str | None = None
    model: str | None = None
    cwd: str | None = None
    parent_session_id: str | None = None
    caused_by: bytes | None = None


class RevisionRow(Row, frozen=True):
    """One accepted turn. `refs` is the JSON list of every blob that it needs."""

    session_key: SessionKey
    revision: RevisionNumber
    family: SessionKey
    turn_id: str | None
    fingerprint: str | None
    epoch: Position
    node_count: Position
    leaf_key: Whole | None
    leaf_id: str | None
    checkpoint_ref: str | None
    refs: bytes
    body: bytes
    committed_at_ms: Whole


class NodeRow(Row, frozen=True):
    """One node. `parent_id` is read with it and not stored: the parent's own row holds it."""

    node_key: Whole
    session_key: SessionKey
    epoch: Position
    node_id: str
    parent_key: Whole | None
    kind: str
    frame_id: str | None
    caused_by: bytes | None
    created_at_ms: Whole
    payload: bytes
    mark: Whole
    revision: Counter | None
    parent_id: str | None = None


class UsageRow(Row, frozen=True):
    """One counter of a session's ledger. Listed by `place`."""

    source: str
    model: str
    input_tokens: Whole
    output_tokens: Whole
    cached_input_tokens: Whole
    reasoning_tokens: Whole
    place: Whole


class BlobRow(Row, frozen=True):
    """One content of a family. The hash is a whole ref, which names the format, too; so is a key frame's."""

    hash: str
    encoding: str
    size: Whole
    body: bytes
    base_hash: str | None = None


class ObjectRow(Row, frozen=True):
    """The bytes of one attachment of a family."""

    hash: str
    encoding: str
    size: Whole
    body: bytes


class BatchRow(Row, frozen=True):
    """One batch of work with its claim, which it keeps when it is settled. `claim_size` counts that claim's batches.

    `attempts` counts the claims that were not given back.
    """

    enqueue_seq: Counter
    batch_id: str
    session_key: SessionKey
    family: SessionKey
    source_key: str | None
    draft_hash: str
    delivery: str
    slot: str
    merge_key: str
    kind: str
    priority: Small
    available_at_ms: Whole
    enqueued_at_ms: Whole
    payloads: bytes
    settled_state: str | None = None
    settled_at_ms: Whole | None = None
    settled_revision: Counter | None = None
    claim_id: str | None = None
    claim_owner: str | None = None
    claim_token_hash: str | None = None
    claim_fence: Counter = 0
    claimed_at_ms: Whole | None = None
    claim_expires_at_ms: Whole | None = None
    claim_exclusive: Whole = 0
    claim_size: Whole = 0
    attempts: Counter = 0
    retry_at_ms: Whole = 0
    last_error: str | None = None
    limit_key: str | None = None
    claim_slot: Whole = 0

    def is_claimed(self, now_ms: int) -> bool:
        """Return True if a live claim holds it."""
        held = self.claim_token_hash is not None and self.settled_state is None
        return held and (self.claim_expires_at_ms or 0) > now_ms

    def ready_at_ms(self, now_ms: int) -> int:
        """Return the time from which it can be claimed, as far as it alone decides."""
        claimed_until_ms = (self.claim_expires_at_ms or 0) if self.is_claimed(now_ms) else 0
        return max(self.available_at_ms, self.retry_at_ms, claimed_until_ms)


class ReadyRow(Row, frozen=True):
    """The offer of a session with unsettled work to `claim_next`; never later than the truth.

    `level` is 0 while nothing can be claimed, 1 if only shared claims can, 2 if exclusive ones can. `kind` and
    `priority` are the next batch's. At `due_at_ms`, time alone may change the row. `waits_for` is a full key.
    """

    session_key: SessionKey
    family: SessionKey
    level: Whole
    kind: str
    priority: Small
    served: Counter
    due_at_ms: Whole | None
    claimed_upto: Counter
    waits_for: str | None = None
    paused: Whole = 0


class LeaseRow(Row, frozen=True):
    """The lease of one resource. `token_hash` is None while it is free; the fence stays."""

    kind: str
    resource: str
    owner_id: str | None
    token_hash: str | None
    fence: Counter
    claimed_at_ms: Whole
    expires_at_ms: Whole

    def is_live(self, now_ms: int) -> bool:
        """Return True if the lease is held and not expired."""
        return self.token_hash is not None and self.expires_at_ms > now_ms


class AttachmentRow(Row, frozen=True):
    """A session's reference to an attachment. `stored_in` is None while only intended, `intent_id` as inserted."""

    session_key: SessionKey
    attachment_id: str
    family: SessionKey
    uri: str
    media_type: str
    byte_count: Whole
    width: Whole | None
    height: Whole | None
    label: str | None
    intent_at_ms: Whole
    committed_at_ms: Whole | None
    stored_in: Literal["database", "outside", "caller"] | None
    intent_id: str


class ProcessRow(Row, frozen=True):
    """One process. `body` is its registration; `definition_hash` makes definitions comparable in a filter.

    A run is found by `claimable_at_ms`: its due time, or the end that its lease had when a claim last looked.
    `claim_fence` is the fence of the claim that counted the current attempt, 0 if none did.
    """

    process_id: str
    registration_hash: str
    status: str
    waiting: Whole
    definition_hash: str | None
    originator_session_id: str | None
    wake_session_id: str | None
    wake_frame_id: str | None
    event_count: Counter
    created_at_ms: Whole
    updated_at_ms: Whole
    body: bytes
    external_ref: bytes | None = None
    wait: bytes | None = None
    outcome: bytes | None = None
    run_kind: str | None = None
    run_version: str | None = None
    recovery: str = "rerunnable"
    due_at_ms: Whole | None = None
    claimable_at_ms: Whole | None = None
    claim_fence: Counter = 0
    attempt: Counter = 0
    suspended: Whole = 0
    lost_owner: str | None = None
    last_error: str | None = None


class EventRow(Row, frozen=True):
    """One event. `wake` is the encoded wake signal, `acked` is 1 once it was acknowledged."""

    process_id: str
    sequence: Counter
    type: str
    payload_hash: str
    replay_key: str | None
    terminal_state: str | None
    wake: bytes | None
    acked: Whole
    occurred_at_ms: Whole
    payload: bytes


class GrantRow(Row, frozen=True):
    """One handle. `frame_id` is the empty text for the session itself."""

    session_id: str
    frame_id: str
    process_id: str
    descriptor: bytes


class SubscriptionRow(Row, frozen=True):
    """One subscription. `session_id` is None for a host registrant."""

    sequence: Counter
    session_id: str | None
    frame_id: str | None
    key: str | None
    definition_hash: str
    name: str | None
    source_type: str
    source_key: str
    target_hash: str | None
    enabled: Whole
    created_at_ms: Whole
    updated_at_ms: Whole
    body: bytes
    run_kind: str | None = None


class OccurrenceRow(Row, frozen=True):
    """One recorded occurrence."""

    occurrence_id: str
    source_type: str
    source_key: str
    idempotency_key: str
    request_hash: str
    occurred_at_ms: Whole
    payload: bytes
    source: bytes | None


class DeliveryRow(Row, frozen=True):
    """One occurrence on its way to one subscription. `run_kind` is the kind of the run that it starts, if it is one."""

    occurrence_id: str
    subscription_sequence: Counter
    process_id: str
    state: str
    reserved_at_ms: Whole
    updated_at_ms: Whole
    failure: str | None = None
    run_kind: str | None = None


class ArtifactRow(Row, frozen=True):
    """One artifact."""

    kind: str
    ref: str
    hash: str
    encoding: str
    size: Whole
    stored_at_ms: Whole
    body: bytes


class ArtifactHead(Row, frozen=True):
    """One artifact without its bytes."""

    kind: str
    ref: str
    size: Whole
    stored_at_ms: Whole
    hash: str


class ArtifactRange(NamedTuple):
    """Artifacts by (kind, ref), from `first` on, up to but not including `before`; None means to the end."""

    first: tuple[str, str] = ("", "")
    before: tuple[str, str] | None = None


class CommitQuery(msgspec.Struct, frozen=True):
    """A query for the facts that a commit is judged by. The batches are those of the claims.

    `with_leaf` asks for the node that the head ends in. A database may leave it out, and is then asked for it apart.
    """

    session: SessionRow
    segments: tuple[Segment, ...]
    turn_id: str | None = None
    node_ids: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()
    batch_ids: tuple[str, ...] = ()
    sources: tuple[tuple[int, str], ...] = ()
    attachment_ids: tuple[str, ...] = ()
    with_lease: bool = False
    with_leaf: bool = False
    with_ledger: bool = False


class Run(msgspec.Struct, frozen=True):
    """A key frame and the deltas stored on it in a row. `misses` counts contents stored whole in a row, with it."""

    ref: str
    data: bytes
    stored_bytes: int
    deltas: int = 0
    spent_bytes: int = 0
    misses: int = 0


class CommitFacts(msgspec.Struct, frozen=True):
    """Facts that judge a commit: batches without payloads, attachments with bytes, ledger if it was read."""

    head: RevisionRow | None = None
    turn: RevisionRow | None = None
    nodes: tuple[NodeRow, ...] = ()
    hashes: frozenset[str] = frozenset()
    batches: tuple[BatchRow, ...] = ()
    sources: tuple[BatchRow, ...] = ()
    attachment_ids: frozenset[str] = frozenset()
    lease: LeaseRow | None = None
    ledger: tuple[UsageRow, ...] | None = None
    runs: Mapping[str, Run] = {}


class CommitPlan(msgspec.Struct, frozen=True):
    """The writes of an accepted commit; `revived` goes to `revive_nodes`. Batches have no sequence number yet."""

    session: SessionRow
    revision: RevisionRow
    nodes: tuple[NodeRow, ...] = ()
    revived: tuple[NodeRow, ...] = ()
    blobs: tuple[BlobRow, ...] = ()
    usage: tuple[UsageRow, ...] = ()
    completed_seqs: tuple[int, ...] = ()
    attachment_ids: tuple[str, ...] = ()
    enqueues: tuple[BatchRow, ...] = ()


class EventWrite(msgspec.Struct, frozen=True):
    """The writes of an accepted event: its process as it is afterwards, and the batch that carries its wake."""

    event: EventRow
    process: ProcessRow
    batch: BatchRow | None = None


class ProcessFilter(msgspec.Struct, frozen=True):
    """A page of processes, by id. Each None matches everything."""

    limit: int
    status: str | None = None
    waiting: int | None = None
    definition_hash: str | None = None
    originator_session_id: str | None = None
    after: str | None = None


class EventFilter(msgspec.Struct, frozen=True):
    """Events of one process after a sequence, ascending."""

    process_id: str
    limit: int
    after: int = 0
    type: str | None = None
    pending_wakes: bool = False


class SubscriptionFilter(msgspec.Struct, frozen=True):
    """A page of subscriptions, by sequence. None matches everything; `host_only` excludes session registrants."""

    limit: int
    session_id: str | None = None
    host_only: bool = False
    sequence: int | None = None
    name: str | None = None
    source_type: str | None = None
    source_key: str | None = None
    target_hash: str | None = None
    enabled: int | None = None
    after: int | None = None


for _kind in Row.__subclasses__():
    # Built at import, by one thread: on first use of a type, msgspec shows other threads its half-built decoder.
    msgspec.json.Decoder(_kind)
