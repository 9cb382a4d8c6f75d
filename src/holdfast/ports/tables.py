"""The tables that a database must provide: rows in, rows out, without decisions.

Every method is one trip, in the order that its first line says. A listing takes a limit. A method that returns a count
returns the number of changed rows, and never treats zero as success on its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from holdfast import rows as r
from holdfast.label_rows import LabelRow, SessionFilter
from holdfast.ports.limit_tables import Obstacles, ReadySession, SlotTables
from holdfast.ports.verification import VerificationTables
from holdfast.records.diagnosis import StoreFacts


class SessionTables(Protocol):
    """Sessions and their revisions, usage and deletion."""

    async def find_session(self, session_id: str, *, key_only: bool = False) -> r.SessionRow | None:
        """Return the newest incarnation of this id, deleted or not. With `key_only`, only its existence matters."""
        ...

    async def session_ids(self, session_keys: Sequence[int]) -> dict[int, str]:
        """Return the ids of these sessions, by key."""
        ...

    async def insert_session(self, row: r.SessionRow) -> r.SessionRow:
        """Insert with a new key (ascending, never reused); family 0 becomes that key. Return the stored row."""
        ...

    async def save_session(self, row: r.SessionRow) -> int:
        """Overwrite every column of the row with this key. Return the count."""
        ...

    async def list_sessions(self, filter: SessionFilter) -> list[r.SessionRow]:
        """Return live sessions in the order of the filter, which has all of them. `changed_since_ms` is inclusive."""
        ...

    async def family_sessions(self, family: int) -> list[r.SessionRow]:
        """Return every incarnation in the family, including deleted ones, by key, without their metadata.

        The metadata is None in these rows: it may be large, and no caller needs it.
        """
        ...

    async def list_families(self, after: int, limit: int) -> list[int]:
        """Return families that own sessions, ascending, greater than `after`."""
        ...

    async def find_revision(self, session_key: int, revision: int) -> r.RevisionRow | None:
        """Return one revision."""
        ...

    async def find_revisions(self, session: r.SessionRow, revisions: Sequence[int]) -> list[r.RevisionRow]:
        """Return those of these revisions that are retained, in any order."""
        ...

    async def find_turn(self, session: r.SessionRow, turn_id: str) -> r.RevisionRow | None:
        """Return the retained revision that a turn of this id made."""
        ...

    async def find_turns(self, session: r.SessionRow, turn_ids: Sequence[str]) -> list[r.RevisionRow]:
        """Return the retained revisions that turns of these ids made, in any order."""
        ...

    async def find_leaf_revision(self, session_key: int, leaf_key: int) -> r.RevisionRow | None:
        """Return the newest revision that ends in this leaf."""
        ...

    async def list_revisions(self, session_key: int, *, after: int, limit: int) -> list[r.RevisionRow]:
        """Return revisions greater than `after`, ascending."""
        ...

    async def list_revisions_down(self, session_key: int, *, before: int, limit: int) -> list[r.RevisionRow]:
        """Return revisions less than `before`, descending."""
        ...

    async def revision_epochs(self, session_key: int) -> list[tuple[int, int]]:
        """Return, for each epoch of a stored revision, (epoch, greatest node count), by epoch."""
        ...

    async def count_revisions(self, session_key: int, *, below: int) -> int:
        """Count the revisions less than `below`."""
        ...

    async def drop_revisions(self, session_key: int, *, below: int, limit: int) -> int:
        """Delete up to `limit` of the oldest revisions less than `below`. Return the count."""
        ...

    async def read_ledger(self, session_key: int) -> list[r.UsageRow]:
        """Return the session's counters, by place."""
        ...

    async def drop_session_content(self, session_key: int) -> tuple[int, int, int]:
        """Delete usage, work, labels and attachment rows of a session. Return counts of usage, work, attachments."""
        ...


class LabelTables(Protocol):
    """Labels of sessions. Deleting a session's content deletes them."""

    async def read_labels(self, sessions: Sequence[r.SessionRow]) -> list[LabelRow]:
        """Return the labels of these sessions, in any order."""
        ...

    async def save_labels(self, rows: Sequence[LabelRow]) -> None:
        """Insert, or overwrite the value."""
        ...

    async def drop_labels(self, session: r.SessionRow, keys: Sequence[str]) -> int:
        """Delete labels of a session. Return the count."""
        ...


class GraphTables(Protocol):
    """Nodes and blobs, shared by a family."""

    async def load_commit_facts(self, query: r.CommitQuery) -> r.CommitFacts:
        """Return everything that a commit is judged by.

        The head is the revision at `session.revision`; hashes are those that the family has; batches are those of the
        session that are named; sources those with the (session key, source key) pairs; attachment ids those in the
        session's manifest; the lease is that of the resource ("session", session key as text).
        """
        ...

    async def apply_commit(self, plan: r.CommitPlan, now_ms: int) -> None:
        """Write everything that a commit changes.

        Usage is added to existing counters, which keep their place; blobs that exist are skipped; completed batches are
        settled with the plan's revision and keep their claim; the session's uncommitted attachments are stamped. A
        database that maintains ready rows itself (see `ready_tables`) corrects them.
        """
        ...

    async def find_nodes(self, segments: Sequence[r.Segment], node_ids: Sequence[str]) -> list[r.NodeRow]:
        """Return nodes with these ids inside the segments, whatever their mark, by key."""
        ...

    async def read_path(self, leaf_key: int, last: int | None) -> list[r.NodeRow]:
        """Return at most `last` nodes from the leaf towards the root, up to but excluding one that is not live."""
        ...

    async def read_paths(self, leaf_keys: Sequence[int], last: int | None) -> list[r.NodeRow]:
        """Return every node that `read_path` returns for one of these leaves of a family, each once, in any order."""
        ...

    async def read_nodes(
        self, segments: Sequence[r.Segment], *, kind: str | None, after: int | None, descending: bool, limit: int | None
    ) -> list[r.NodeRow]:
        """Return live nodes of the segments by key, beyond `after` in the direction of travel."""
        ...

    async def read_nodes_by_id(
        self, segment: r.Segment, *, kind: str | None, first: str, before: str | None, descending: bool, limit: int
    ) -> list[r.NodeRow]:
        """Return live nodes of one segment by id, from `first` on, up to but not including `before`."""
        ...

    async def count_nodes(self, epoch: int, first_key: int, last_key: int) -> int:
        """Count the nodes of an epoch between two keys of one session, both included, whatever their mark."""
        ...

    async def insert_nodes(self, rows: Sequence[r.NodeRow]) -> None:
        """Insert."""
        ...

    async def mark_nodes(self, node_keys: Sequence[int]) -> int:
        """Tombstone live nodes. Return the count."""
        ...

    async def revive_nodes(self, node_keys: Sequence[int]) -> int:
        """Turn tombstoned nodes into live ones, and lock them. Return the count, without vacuumed ones."""
        ...

    async def vacuum_nodes(self, session_key: int | None, limit: int) -> int:
        """Vacuum up to `limit` tombstoned nodes, of one session or all: payload `null`, no cause. Return the count."""
        ...

    async def count_tombstoned(self, session_key: int | None) -> int:
        """Count the nodes, of one session or all, that `vacuum_nodes` would take."""
        ...

    async def node_epochs(self, session_key: int) -> list[int]:
        """Return the distinct epochs of the session's stored nodes."""
        ...

    async def drop_nodes(self, session_key: int, epoch: int, *, above: int, limit: int) -> int:
        """Delete up to `limit` nodes of the epoch at positions above `above`, last ones first. Return the count."""
        ...

    async def load_blobs(self, family: int, hashes: Sequence[str]) -> list[r.BlobRow]:
        """Return the contents that exist and the key frames of those that are deltas, in any order."""
        ...

    async def hold_key_frames(self, family: int, hashes: Sequence[str]) -> frozenset[str]:
        """Return those of the contents that are stored whole, and lock them until the transaction ends."""
        ...

    async def drop_unreferenced_blobs(self, family: int, *, limit: int, dry_run: bool) -> tuple[int, int]:
        """Delete (or only count) up to `limit` blobs that no revision of the family needs: (count, bytes).

        A revision needs those that it lists in `refs`, and their key frames. Deltas go first, so that none is ever
        without its key frame.
        """
        ...

    async def count_blobs(self, family: int) -> tuple[int, int, int]:
        """Return the number of the family's revisions, of the distinct hashes that they list, and of its blobs."""
        ...


class QueueTables(Protocol):
    """The queue."""

    async def find_sources(self, pairs: Sequence[tuple[int, str]]) -> list[r.BatchRow]:
        """Return batches, including settled ones, with these (session key, source key) pairs."""
        ...

    async def insert_batches(self, batches: Sequence[r.BatchRow]) -> list[r.BatchRow]:
        """Insert in order with new sequence numbers (ascending, never reused). Return the stored rows."""
        ...

    async def ready_batches(
        self, session_key: int, now_ms: int, limit: int, *, with_back_off: bool
    ) -> list[r.BatchRow]:
        """Return unsettled batches that are available (`available_at_ms <= now_ms`) and unclaimed, by sequence.

        Unclaimed means without a live claim (`expires > now`). With `with_back_off`, also those in back-off
        (`retry_at_ms > now_ms`).
        """
        ...

    async def sessions_with_ready(self, now_ms: int, *, after: int, limit: int) -> list[tuple[int, str]]:
        """Return sessions with a ready batch (see `ready_batches`), (key, id) by key, greater than `after`."""
        ...

    async def oldest_ready(self, now_ms: int, limit: int) -> list[ReadySession]:
        """Return sessions with a ready batch, by the time since which the oldest is ready, and by key."""
        ...

    async def obstacles(self, session_key: int, claim_id: str, now_ms: int) -> Obstacles:
        """Return what may keep a claim out of the session. Claims other than this one count."""
        ...

    async def may_be_claimed(self, session_key: int) -> bool:
        """Return False if no claim, live or expired, holds work of the session."""
        ...

    async def find_batches(self, session_key: int, batch_ids: Sequence[str]) -> list[r.BatchRow]:
        """Return batches by id, including settled ones, by sequence."""
        ...

    async def find_claimed(self, session_key: int, claim_id: str) -> list[r.BatchRow]:
        """Return unsettled batches that carry this claim, live or not, by sequence."""
        ...

    async def save_batches(self, rows: Sequence[r.BatchRow]) -> int:
        """Overwrite the settlement, claim, attempts and back-off of these batches. Return the count."""
        ...

    async def list_dead(self, session_key: int | None, kind: str | None, *, after: int, limit: int) -> list[r.BatchRow]:
        """Return dead batches by sequence, beyond `after`, of one session or all, of one kind or all."""
        ...

    async def list_batches(
        self, session_key: int, *, pending_at_ms: int | None, after: int, limit: int
    ) -> list[r.BatchRow]:
        """Return unsettled batches by sequence, beyond `after`; with `pending_at_ms`, only those unclaimed then."""
        ...

    async def next_due_ms(self, session_key: int, now_ms: int) -> int | None:
        """Return the next time after now when an unsettled batch becomes available, or its claim or back-off ends."""
        ...

    async def offers_ready(self, levels: Sequence[int], kinds: Sequence[str] | None, now_ms: int) -> bool:
        """Return True if `ReadyTables.next_ready` would return a session, None being any kind."""
        ...

    async def next_ready_due_ms(self, now_ms: int) -> int | None:
        """Return the least `due_at_ms` of a ready row, or `opens_at_ms` of a kind or a key that is later than now."""
        ...

    async def drop_settled_batches(self, *, settled_until_ms: int, limit: int, dry_run: bool) -> int:
        """Delete (or only count) up to `limit` settled batches, except dead ones, with `settled_at_ms <=` the bound."""
        ...


class ReadyTables(SlotTables, Protocol):
    """One row for each session with unsettled work, for claims of any session's work."""

    async def find_ready(self, session_key: int) -> r.ReadyRow | None:
        """Return the row of a session."""
        ...

    async def save_ready(self, row: r.ReadyRow) -> None:
        """Insert or overwrite."""
        ...

    async def move_ready(self, session_key: int, level: int, due_at_ms: int | None) -> None:
        """Set `level` and `due_at_ms`, and wait for no key. The row may be damaged."""
        ...

    async def drop_ready(self, session_key: int) -> None:
        """Delete."""
        ...

    async def next_served(self) -> int:
        """Return a number above all that were returned before."""
        ...

    async def queue_front(self, session_key: int, claimed_upto: int, now_ms: int) -> list[r.BatchRow]:
        """Return unsettled batches by sequence, up to the first ready one and up to `claimed_upto`.

        Payloads may be empty.
        """
        ...

    async def next_ready(
        self, levels: Sequence[int], kinds: Sequence[str] | None, passed: Sequence[int], now_ms: int
    ) -> int | None:
        """Return the session of these levels and kinds with the highest priority, then the one served least recently.

        Sessions in `passed` are left out, and kinds that are paused or open later than now. Of sessions that wait for a
        key, the best of each of the 16 keys that have been open longest is a candidate, too.
        """
        ...

    async def find_lease(self, kind: str, resource: str) -> r.LeaseRow | None:
        """Return the lease row of a resource, held or not."""
        ...

    async def due_ready(self, now_ms: int, limit: int) -> list[int]:
        """Return the sessions of rows with `due_at_ms <= now_ms`, by that time."""
        ...


class AttachmentTables(Protocol):
    """The attachment manifest, and attachment bytes kept in the database."""

    async def find_attachment(self, session_key: int, attachment_id: str) -> r.AttachmentRow | None:
        """Return one manifest row."""
        ...

    async def save_attachment(self, row: r.AttachmentRow) -> None:
        """Insert or overwrite."""
        ...

    async def stamp_attachments(self, session_key: int, attachment_ids: Sequence[str], now_ms: int) -> int:
        """Set `committed_at_ms` where it is None and the bytes are stored (`stored_in`). Return the count."""
        ...

    async def forget_attachment(self, session_key: int, attachment_id: str) -> int:
        """Delete one manifest row. Return the count."""
        ...

    async def list_attachments(self, session_key: int, *, after: str, limit: int) -> list[r.AttachmentRow]:
        """Return a session's rows by attachment id, greater than `after`."""
        ...

    async def list_uncommitted(
        self, session_key: int | None, *, older_than_ms: int, after: tuple[int, str, int] | None, limit: int
    ) -> list[r.AttachmentRow]:
        """Return uncommitted rows up to the bound by (intent_at_ms, attachment_id, session_key), beyond `after`."""
        ...

    async def copy_committed_attachments(self, from_key: int, to_key: int) -> int:
        """Copy the committed rows of another session of the family to a session. Return the count."""
        ...

    async def attachment_is_referenced(self, family: int, attachment_id: str) -> bool:
        """Return True if any session of the family has a manifest row for it."""
        ...

    async def put_object(self, family: int, attachment_id: str, row: r.ObjectRow) -> None:
        """Store bytes, and overwrite different ones."""
        ...

    async def get_object(self, family: int, attachment_id: str) -> r.ObjectRow | None:
        """Return stored bytes."""
        ...

    async def drop_object(self, family: int, attachment_id: str) -> int | None:
        """Delete stored bytes. Return their size as stored, None if no bytes were stored."""
        ...

    async def note_deletion(self, family: int, attachment_id: str, deleting_until_ms: int) -> None:
        """Note that bytes outside the database are to be deleted, or are being deleted. An existing note stays."""
        ...

    async def next_deletion(self, after: tuple[int, str]) -> tuple[int, str] | None:
        """Return the next noted bytes, (family, attachment id), in that order."""
        ...

    async def find_deletions(self, family: int, attachment_id: str) -> list[int]:
        """Return the `deleting_until_ms` of every note of these bytes."""
        ...

    async def forget_deletion(self, family: int, attachment_id: str, deleting_until_ms: int) -> int:
        """Drop a note. Return the count."""
        ...


class HousekeepingTables(VerificationTables, Protocol):
    """Artifacts, counts, and the full tables for verification."""

    async def find_artifact(self, kind: str, ref: str) -> r.ArtifactRow | None:
        """Return one artifact."""
        ...

    async def list_artifacts(self, range: r.ArtifactRange, limit: int) -> list[r.ArtifactHead]:
        """Return artifacts of a range by (kind, ref), without their bytes."""
        ...

    async def read_artifacts(self, range: r.ArtifactRange, limit: int) -> list[r.ArtifactRow]:
        """Return artifacts of a range, which has an end, by (kind, ref), with their bytes."""
        ...

    async def add_artifact(self, row: r.ArtifactRow) -> int:
        """Store an artifact unless there is one. Return the number of rows written."""
        ...

    async def replace_artifact(self, row: r.ArtifactRow, expected_hash: str) -> int:
        """Store an artifact in place of one with this hash. Return the number of rows written."""
        ...

    async def drop_artifacts(self, range: r.ArtifactRange) -> int:
        """Delete the artifacts of a range, which has an end. Return how many."""
        ...

    async def save_artifact(self, row: r.ArtifactRow) -> int:
        """Insert or overwrite."""
        ...

    async def drop_artifact(self, kind: str, ref: str) -> int:
        """Delete. Return the count."""
        ...

    async def stats(self, now_ms: int) -> dict[str, int | None]:
        """Return the numbers of `records.maintenance.Stats`, by field name."""
        ...

    async def facts(self, now_ms: int) -> StoreFacts:
        """Return the facts of `records.diagnosis`: the state of the database, and what has been waiting."""
        ...


async def read_each_path(
    read_path: Callable[[int, int | None], Awaitable[Sequence[r.NodeRow]]], leaf_keys: Sequence[int], last: int | None
) -> list[r.NodeRow]:
    """Implement `read_paths` for a database that reads one path at a time."""
    found: dict[int, r.NodeRow] = {}
    # A leaf on the path of a later one needs no look, unless that path was cut short.
    for leaf_key in sorted(leaf_keys, reverse=True):
        if last is not None or leaf_key not in found:
            found.update((node.node_key, node) for node in await read_path(leaf_key, last))
    return list(found.values())
