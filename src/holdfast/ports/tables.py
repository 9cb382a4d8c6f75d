"""The tables that a database must provide: rows in, rows out, with no meaning of their own.

Every method is one trip, in the order that its first line says. A listing takes a limit. A method that answers a count
says how many rows changed, and never treats zero as success on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast import rows as r
from holdfast.ports.verification import VerificationTables
from holdfast.records.diagnosis import StoreFacts


class SessionTables(Protocol):
    """Sessions and their revisions, usage and deletion."""

    async def find_session(self, session_id: str, *, presence: bool = False) -> r.SessionRow | None:
        """The newest incarnation of this id, deleted or not. With `presence`, all that matters is that it is there."""
        ...

    async def session_ids(self, session_keys: Sequence[int]) -> dict[int, str]:
        """The ids of these sessions, by key."""
        ...

    async def insert_session(self, row: r.SessionRow) -> r.SessionRow:
        """Insert with a new key (ascending, never reused); family 0 becomes that key. Returns the stored row."""
        ...

    async def save_session(self, row: r.SessionRow) -> int:
        """Overwrite every column of the row with this key. Returns the count."""
        ...

    async def list_sessions(self, filter: r.SessionFilter) -> list[r.SessionRow]:
        """Live sessions: ascending by key, or by (minute of change, key) if `changed_since_ms` (inclusive) is given."""
        ...

    async def family_sessions(self, family: int) -> list[r.SessionRow]:
        """Every incarnation in the family, deleted ones included, by key."""
        ...

    async def list_families(self, after: int, limit: int) -> list[int]:
        """Families that own sessions, ascending, greater than `after`."""
        ...

    async def find_revision(self, session_key: int, revision: int) -> r.RevisionRow | None:
        """One revision."""
        ...

    async def find_leaf_revision(self, session_key: int, leaf_key: int) -> r.RevisionRow | None:
        """The newest revision that ends in this leaf."""
        ...

    async def list_revisions(self, session_key: int, *, after: int, limit: int) -> list[r.RevisionRow]:
        """Revisions greater than `after`, ascending."""
        ...

    async def list_revisions_down(self, session_key: int, *, before: int, limit: int) -> list[r.RevisionRow]:
        """Revisions less than `before`, descending."""
        ...

    async def revision_epochs(self, session_key: int) -> list[tuple[int, int]]:
        """For each epoch that a stored revision has: (epoch, greatest node count), by epoch."""
        ...

    async def count_revisions(self, session_key: int, *, below: int) -> int:
        """How many revisions are less than `below`."""
        ...

    async def drop_revisions(self, session_key: int, *, below: int, limit: int) -> int:
        """Delete up to `limit` of the oldest revisions that are less than `below`. Returns the count."""
        ...

    async def read_ledger(self, session_key: int) -> list[r.UsageRow]:
        """The session's counters, by place."""
        ...

    async def drop_session_content(self, session_key: int) -> tuple[int, int, int]:
        """Delete usage, work and attachment rows of a session. Returns those three counts."""
        ...


class GraphTables(Protocol):
    """Nodes and blobs, shared by a family."""

    async def load_commit_facts(self, query: r.CommitQuery) -> r.CommitFacts:
        """Everything that a commit is judged by.

        The head is the revision at `session.revision`; hashes are those that the family has; batches are all of the
        session's that bear one of the claim ids; sources those with the (session key, source key) pairs; attachment ids
        those in the session's manifest; the lease is that of the resource ("session", session key as text).
        """
        ...

    async def apply_commit(self, plan: r.CommitPlan, now_ms: int) -> None:
        """Write everything that a commit changes.

        Usage is added to existing counters, which keep their place; blobs that exist are skipped; completed batches are
        settled as `settle_batches` does; the session's uncommitted attachments are stamped.
        """
        ...

    async def find_nodes(self, segments: Sequence[r.Segment], node_ids: Sequence[str]) -> list[r.NodeRow]:
        """Nodes with these ids inside the segments, whatever their mark, by key."""
        ...

    async def read_path(self, leaf_key: int, last: int | None) -> list[r.NodeRow]:
        """From the leaf towards the root, at most `last` nodes; one that is not live ends it and is left out."""
        ...

    async def read_nodes(
        self, segments: Sequence[r.Segment], *, kind: str | None, after: int | None, descending: bool, limit: int | None
    ) -> list[r.NodeRow]:
        """Live nodes of the segments by key, beyond `after` in the direction of travel."""
        ...

    async def insert_nodes(self, rows: Sequence[r.NodeRow]) -> None:
        """Insert."""
        ...

    async def mark_nodes(self, node_keys: Sequence[int]) -> int:
        """Turn live nodes into tombstoned ones. Returns the count."""
        ...

    async def revive_nodes(self, node_keys: Sequence[int]) -> int:
        """Turn tombstoned nodes into live ones, and hold them. Returns the count, which leaves vacuumed ones out."""
        ...

    async def vacuum_nodes(self, session_key: int | None, limit: int) -> int:
        """Turn up to `limit` tombstoned nodes, of one session or all, into vacuumed ones: payload `null`, no cause."""
        ...

    async def count_tombstoned(self, session_key: int | None) -> int:
        """How many nodes, of one session or all, `vacuum_nodes` would take."""
        ...

    async def node_epochs(self, session_key: int) -> list[int]:
        """The distinct epochs that the session's stored nodes have."""
        ...

    async def drop_nodes(self, session_key: int, epoch: int, *, above: int, limit: int) -> int:
        """Delete up to `limit` nodes of the epoch whose position is greater than `above`, last ones first. Counts."""
        ...

    async def load_blobs(self, family: int, hashes: Sequence[str]) -> list[r.BlobRow]:
        """The contents that exist and the key frames of those that are deltas, in any order."""
        ...

    async def hold_key_frames(self, family: int, hashes: Sequence[str]) -> frozenset[str]:
        """Those of the contents that are stored whole. They stay until the transaction ends."""
        ...

    async def drop_unreferenced_blobs(self, family: int, *, limit: int, dry_run: bool) -> tuple[int, int]:
        """Delete (or only count) up to `limit` blobs that no revision of the family needs: (count, bytes).

        It needs those that it lists in `refs`, and the key frames of those. Deltas go first, so that none is ever
        without its key frame.
        """
        ...

    async def blob_census(self, family: int) -> tuple[int, int, int]:
        """How many revisions the family has, how many distinct hashes they list, and how many blobs there are."""
        ...


class WorkTables(Protocol):
    """The queue."""

    async def find_sources(self, pairs: Sequence[tuple[int, str]]) -> list[r.BatchRow]:
        """Batches, settled ones included, with these (session key, source key) pairs."""
        ...

    async def insert_batches(self, batches: Sequence[r.BatchRow]) -> list[r.BatchRow]:
        """Insert in order with new sequence numbers (ascending, never reused). Returns the stored rows."""
        ...

    async def ready_batches(self, session_key: int, now_ms: int, limit: int) -> list[r.BatchRow]:
        """Unsettled, available (`available_at_ms <= now_ms`), under no live claim (`expires > now`), by sequence."""
        ...

    async def sessions_with_work(self, now_ms: int, *, after: int, limit: int) -> list[tuple[int, str]]:
        """Sessions with a ready batch (see `ready_batches`), (key, id) by key, greater than `after`."""
        ...

    async def other_claims(self, session_key: int, claim_id: str, now_ms: int) -> tuple[bool, bool]:
        """Return whether a claim other than this one lives in the session, and whether an exclusive one does."""
        ...

    async def find_batches(self, session_key: int, batch_ids: Sequence[str]) -> list[r.BatchRow]:
        """Batches by id, settled ones included, by sequence."""
        ...

    async def claimed_batches(self, session_key: int, claim_id: str) -> list[r.BatchRow]:
        """Every unsettled batch that bears this claim id, live or expired, by sequence."""
        ...

    async def batches_of_token(self, session_key: int, token_hash: str) -> list[r.BatchRow]:
        """Every unsettled batch whose claim has this token, live or expired, by sequence."""
        ...

    async def stamp_claim(self, seqs: Sequence[int], claim: r.ClaimStamp) -> int:
        """Write the claim on unsettled batches. Returns the count."""
        ...

    async def clear_claim(self, seqs: Sequence[int]) -> int:
        """Remove claim id, owner, token hash, times and exclusivity; keep the fence. Returns the count."""
        ...

    async def settle_batches(self, seqs: Sequence[int], state: str, now_ms: int) -> int:
        """End unsettled batches: with a source key they stay, unclaimed, in `state`; without one they are deleted."""
        ...

    async def list_batches(
        self, session_key: int, *, pending_at_ms: int | None, after: int, limit: int
    ) -> list[r.BatchRow]:
        """Unsettled batches by sequence, beyond `after`; with `pending_at_ms`, those under no live claim then."""
        ...

    async def next_due_ms(self, session_key: int, now_ms: int) -> int | None:
        """The earliest time after now at which an unsettled batch becomes available or its claim expires."""
        ...

    async def drop_settled_batches(self, *, settled_until_ms: int, limit: int, dry_run: bool) -> int:
        """Delete (or only count) up to `limit` settled batches with `settled_at_ms <=` the bound."""
        ...

    async def find_lease(self, kind: str, resource: str) -> r.LeaseRow | None:
        """The lease row of a resource, held or not."""
        ...

    async def save_lease(self, row: r.LeaseRow) -> None:
        """Insert or overwrite."""
        ...

    async def drop_lease(self, kind: str, resource: str) -> None:
        """Delete the row and raise the fence floor to its fence, so that no later lease has a lower one."""
        ...

    async def fence_floor(self) -> int:
        """The highest fence of any lease row that was dropped; 0 at first."""
        ...


class AttachmentTables(Protocol):
    """The attachment manifest, and attachment bytes kept in the database."""

    async def find_attachment(self, session_key: int, attachment_id: str) -> r.AttachmentRow | None:
        """One manifest row."""
        ...

    async def save_attachment(self, row: r.AttachmentRow) -> None:
        """Insert or overwrite."""
        ...

    async def stamp_attachments(self, session_key: int, attachment_ids: Sequence[str], now_ms: int) -> int:
        """Set `committed_at_ms` where it is None and the bytes are stored (`stored_in`). Returns the count."""
        ...

    async def forget_attachment(self, session_key: int, attachment_id: str) -> int:
        """Delete one manifest row."""
        ...

    async def list_attachments(self, session_key: int, *, after: str, limit: int) -> list[r.AttachmentRow]:
        """A session's rows by attachment id, greater than `after`."""
        ...

    async def list_uncommitted(
        self, session_key: int | None, *, older_than_ms: int, after: tuple[int, str, int] | None, limit: int
    ) -> list[r.AttachmentRow]:
        """Uncommitted rows up to the bound by (intent_at_ms, attachment_id, session_key), beyond `after`."""
        ...

    async def copy_committed_attachments(self, from_key: int, to_key: int) -> int:
        """Give a session the committed rows of another one of its family. Returns the count."""
        ...

    async def attachment_is_referenced(self, family: int, attachment_id: str) -> bool:
        """Whether any session of the family has a manifest row for it."""
        ...

    async def put_object(self, family: int, attachment_id: str, row: r.ObjectRow) -> None:
        """Store bytes, over what is there if that differs."""
        ...

    async def get_object(self, family: int, attachment_id: str) -> r.ObjectRow | None:
        """Stored bytes."""
        ...

    async def drop_object(self, family: int, attachment_id: str) -> int | None:
        """Delete stored bytes. Returns their size as stored, None if there were none."""
        ...

    async def doom_object(self, family: int, attachment_id: str, deleting_until_ms: int) -> None:
        """Note that bytes outside the database are to be deleted, or are being deleted; a note that is there stays."""
        ...

    async def next_doomed(self, after: tuple[int, str]) -> tuple[int, str] | None:
        """The next noted bytes, (family, attachment id), in that order."""
        ...

    async def find_doomed(self, family: int, attachment_id: str) -> list[int]:
        """The `deleting_until_ms` of every note of these bytes."""
        ...

    async def forget_doomed(self, family: int, attachment_id: str, deleting_until_ms: int) -> int:
        """Drop a note. Returns the count."""
        ...


class ProcessTables(Protocol):
    """Processes, their events and grants."""

    async def find_process(self, process_id: str) -> r.ProcessRow | None:
        """One process."""
        ...

    async def insert_process(self, row: r.ProcessRow) -> None:
        """Insert."""
        ...

    async def save_process(self, row: r.ProcessRow) -> int:
        """Overwrite. Returns the count."""
        ...

    async def list_processes(self, filter: r.ProcessFilter) -> list[r.ProcessRow]:
        """Matching processes by id."""
        ...

    async def list_ended_processes(self, after: tuple[int, str], limit: int) -> list[r.ProcessRow]:
        """Processes that do not run any longer, by (updated_at_ms, process_id) after that place."""
        ...

    async def clear_wake_targets(self, session_id: str, now_ms: int) -> int:
        """Remove the wake target of every process that wakes this session, any frame; touch `updated_at_ms`."""
        ...

    async def find_event(self, process_id: str, sequence: int) -> r.EventRow | None:
        """One event."""
        ...

    async def find_replay(self, process_id: str, replay_key: str) -> r.EventRow | None:
        """The event with this replay key."""
        ...

    async def apply_event(self, write: r.EventWrite) -> r.EventWrite:
        """Insert the event and its batch, save the process and, if it ended, let go of its lease. Says what it wrote.

        Letting go empties owner and token; the fence stays. The batch gets a new sequence number.
        """
        ...

    async def list_events(self, filter: r.EventFilter) -> list[r.EventRow]:
        """Matching events, ascending."""
        ...

    async def recent_events(self, process_id: str, limit: int) -> list[r.EventRow]:
        """The last events, ascending."""
        ...

    async def count_events(self, process_id: str, type: str, through: int) -> int:
        """How many events of the type have `sequence <= through`."""
        ...

    async def ack_wake(self, process_id: str, sequence: int) -> int:
        """Mark a wake event acknowledged. Returns the count."""
        ...

    async def drop_terminal_processes(self, *, updated_until_ms: int, limit: int, dry_run: bool) -> tuple[int, int]:
        """Delete, or only count, up to `limit` ended processes with their events: (processes, events).

        Those with `updated_at_ms <=` the bound, by (updated_at_ms, id). Grants go along, and leases as in `drop_lease`.
        """
        ...


class GrantTables(Protocol):
    """Handles on processes."""

    async def find_grant(self, session_id: str, frame_id: str, process_id: str) -> r.GrantRow | None:
        """One grant."""
        ...

    async def save_grant(self, row: r.GrantRow) -> None:
        """Insert or overwrite."""
        ...

    async def drop_grant(self, session_id: str, frame_id: str, process_id: str) -> int:
        """Delete."""
        ...

    async def list_grants(
        self, session_id: str, frame_id: str, *, running_only: bool, after: str, limit: int
    ) -> list[tuple[r.GrantRow, r.ProcessRow]]:
        """Grants of exactly this scope with their processes, by process id, greater than `after`."""
        ...

    async def grants_of_process(
        self, process_id: str, *, after: tuple[str, str] | None, limit: int
    ) -> list[r.GrantRow]:
        """Grants of a process, by (session_id, frame_id)."""
        ...

    async def grant_census(self, session_id: str) -> list[tuple[str, str, int]]:
        """For each process granted to any frame of the session: (process id, its status, grants held by others)."""
        ...

    async def drop_session_grants(self, session_id: str) -> int:
        """Delete the grants of every frame of a session."""
        ...


class HousekeepingTables(VerificationTables, Protocol):
    """Artifacts, counts, and everything else as verification reads it."""

    async def find_artifact(self, kind: str, ref: str) -> r.ArtifactRow | None:
        """One artifact."""
        ...

    async def list_artifacts(self, *, after: tuple[str, str], limit: int) -> list[r.ArtifactHead]:
        """Artifacts by (kind, ref), greater than `after`, without their bytes."""
        ...

    async def save_artifact(self, row: r.ArtifactRow) -> None:
        """Insert or overwrite."""
        ...

    async def drop_artifact(self, kind: str, ref: str) -> int:
        """Delete."""
        ...

    async def census(self, now_ms: int) -> dict[str, int | None]:
        """The numbers of `records.maintenance.Stats`, by field name."""
        ...

    async def facts(self, now_ms: int) -> StoreFacts:
        """What the database says about itself, and what has been waiting, as `records.diagnosis` describes it."""
        ...
