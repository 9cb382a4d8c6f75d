"""Verification reads everything and changes nothing: refs resolve, hashes match, chains are whole, records decode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec

import msgspec

from holdfast.errors import Corrupt
from holdfast.operations.attachments import outside, space_of
from holdfast.ports import AttachmentBytes, Transaction
from holdfast.records.maintenance import Finding, VerifyReport
from holdfast.rows import (
    LIVE,
    TOMBSTONED,
    VACUUMED,
    EventFilter,
    ProcessFilter,
    RevisionRow,
    SessionRow,
    SubscriptionFilter,
)
from holdfast.rules import artifacts as artifact_rules
from holdfast.rules import attachments as attachment_rules
from holdfast.rules import checkpoints, commits, graph, processes, sessions, triggers, work
from holdfast.rules import events as event_rules

P = ParamSpec("P")

PAGE = 500


class Tally(msgspec.Struct):
    """What was checked so far, and what was found."""

    counts: dict[str, int] = {}
    findings: list[Finding] = []

    def checked(self, what: str, count: int = 1) -> None:
        """Note that something was looked at."""
        self.counts[what] = self.counts.get(what, 0) + count

    def expect(self, sound: bool, table: str, key: object, problem: str) -> None:
        """Note a problem unless all is well."""
        if not sound:
            self.findings.append(Finding(table, str(key), problem))

    def add(self, other: Tally) -> None:
        """Take in what another part of the store gave."""
        for what, count in other.counts.items():
            self.checked(what, count)
        self.findings.extend(other.findings)

    def report(self) -> VerifyReport:
        """Everything together."""
        kinds = ("sessions", "revisions", "nodes", "blobs", "processes", "events", "attachments", "artifacts")
        return VerifyReport(
            **{f"checked_{kind}": self.counts.get(kind, 0) for kind in kinds}, findings=tuple(self.findings)
        )

    def attempt(self, check: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a check that raises `Corrupt`, and note what it says."""
        try:
            check(*args, **kwargs)
        except Corrupt as damage:
            self.findings.append(Finding(damage.table, damage.key, damage.reason))


async def verify_family(tx: Transaction, family: int, objects: AttachmentBytes | None) -> Tally:
    """Every session, revision, node, blob, batch and attachment of a family."""
    tally = Tally({}, [])
    hashes = await _verify_blobs(tx, family, tally)
    for session in await tx.family_sessions(family):
        tally.checked("sessions")
        tally.attempt(sessions.meta_of, session)
        tally.attempt(graph.lineage_of, session)
        await _verify_nodes(tx, session, tally)
        if session.deleted_at_ms is None:
            await _verify_revisions(tx, session, hashes, tally)
            await _verify_work(tx, session, tally)
            await _verify_attachments(tx, session, objects, tally)
    return tally


async def _verify_blobs(tx: Transaction, family: int, tally: Tally) -> set[str]:
    hashes: set[str] = set()
    after = ""
    while True:
        rows = await tx.scan_blobs(family, after=after, limit=PAGE)
        for row in rows:
            tally.checked("blobs")
            hashes.add(row.hash)
            tally.attempt(checkpoints.open_blobs, [row])
        if len(rows) < PAGE:
            return hashes
        after = rows[-1].hash


async def _verify_nodes(tx: Transaction, session: SessionRow, tally: Tally) -> None:
    after = 0
    while True:
        rows = await tx.scan_nodes(session.session_key, after=after, limit=PAGE)
        for row in rows:
            tally.checked("nodes")
            tally.expect(row.mark in (LIVE, TOMBSTONED, VACUUMED), "nodes", row.node_key, f"mark is {row.mark}")
            ordered = row.parent_key is None or row.parent_key < row.node_key
            tally.expect(ordered, "nodes", row.node_key, "its parent does not come before it")
            tally.attempt(graph.node_of, row)
        if len(rows) < PAGE:
            return
        after = rows[-1].node_key


async def _verify_revisions(tx: Transaction, session: SessionRow, hashes: set[str], tally: Tally) -> None:
    """The retained revisions end in the head without a gap, and everything that they name is there."""
    previous: int | None = None
    after = 0
    while True:
        rows = await tx.list_revisions(session.session_key, after=after, limit=PAGE)
        for row in rows:
            tally.checked("revisions")
            key = f"{row.session_key}/{row.revision}"
            whole = previous is None or row.revision == previous + 1
            tally.expect(whole, "revisions", key, f"follows revision {previous}")
            previous = row.revision
            tally.attempt(_verify_refs, row, hashes)
            await _verify_leaf(tx, session, row, tally)
        if len(rows) < PAGE:
            break
        after = rows[-1].revision
    ends = (previous or 0) == session.revision
    tally.expect(
        ends, "sessions", session.session_key, f"the head is {session.revision}, the history ends at {previous}"
    )


def _verify_refs(row: RevisionRow, hashes: set[str]) -> None:
    body = commits.body_of(row)
    key = f"{row.session_key}/{row.revision}"
    for ref in commits.body_refs(body):
        if ref not in hashes:
            raise Corrupt("blobs", ref, f"is missing, but revision {key} needs it")
    if row.refs != commits.encode_refs(body):
        raise Corrupt("revisions", key, "the listed refs are not those of the body")
    if row.checkpoint_ref != (None if body.manifest is None else checkpoints.manifest_ref(body.manifest)):
        raise Corrupt("revisions", key, "the checkpoint's ref does not match its manifest")


async def _verify_leaf(tx: Transaction, session: SessionRow, row: RevisionRow, tally: Tally) -> None:
    if row.leaf_key is None:
        return
    segments = graph.segments_of(session, epoch=row.epoch, upto=row.node_count)
    found = await tx.find_nodes(segments, [row.leaf_id or ""])
    there = any(one.node_key == row.leaf_key for one in found)
    tally.expect(there, "revisions", f"{row.session_key}/{row.revision}", "its leaf is missing")


async def _verify_work(tx: Transaction, session: SessionRow, tally: Tally) -> None:
    after = 0
    while True:
        rows = await tx.list_batches(session.session_key, pending_at_ms=None, after=after, limit=PAGE)
        for row in rows:
            tally.attempt(work.batch_of, session.session_id, row)
        if len(rows) < PAGE:
            return
        after = rows[-1].enqueue_seq


async def _verify_attachments(
    tx: Transaction, session: SessionRow, objects: AttachmentBytes | None, tally: Tally
) -> None:
    """The bytes of every permanent reference whose bytes are ours to keep."""
    after = ""
    while True:
        rows = await tx.list_attachments(session.session_key, after=after, limit=PAGE)
        for row in rows:
            tally.checked("attachments")
            if row.committed_at_ms is None or not attachment_rules.is_kept_here(row):
                continue
            stored = await tx.get_object(row.family, row.attachment_id)
            if stored is not None:
                tally.attempt(attachment_rules.opened, stored)
            else:
                data = None
                if objects is not None:
                    data = outside(partial(objects.get, space_of(row.family), row.attachment_id))
                tally.attempt(attachment_rules.attachment_of, row, data)
        if len(rows) < PAGE:
            return
        after = rows[-1].attachment_id


async def verify_processes(tx: Transaction, after: str | None) -> tuple[Tally, str | None]:
    """One page of processes with their logs, and where the next one starts."""
    tally = Tally({}, [])
    rows = await tx.list_processes(ProcessFilter(PAGE, after=after))
    for row in rows:
        tally.checked("processes")
        tally.attempt(processes.process_of, row)
        await _verify_log(tx, row.process_id, row.event_count, tally)
    return tally, rows[-1].process_id if len(rows) == PAGE else None


async def _verify_log(tx: Transaction, process_id: str, event_count: int, tally: Tally) -> None:
    sequence = 0
    while True:
        rows = await tx.list_events(EventFilter(process_id, PAGE, sequence))
        for row in rows:
            tally.checked("events")
            gapless = row.sequence == sequence + 1
            tally.expect(gapless, "events", f"{process_id}/{row.sequence}", f"follows sequence {sequence}")
            sequence = row.sequence
            tally.attempt(event_rules.event_of, row)
        if len(rows) < PAGE:
            break
    whole = sequence == event_count
    tally.expect(whole, "processes", process_id, f"counts {event_count} events, the log ends at {sequence}")


async def verify_subscriptions(tx: Transaction, after: int | None) -> tuple[Tally, int | None]:
    """One page of subscriptions, and where the next one starts."""
    tally = Tally({}, [])
    rows = await tx.list_subscriptions(SubscriptionFilter(PAGE, after=after))
    for row in rows:
        tally.checked("subscriptions")
        tally.attempt(triggers.subscription_of, row)
    return tally, rows[-1].sequence if len(rows) == PAGE else None


async def verify_artifacts(tx: Transaction, after: tuple[str, str]) -> tuple[Tally, tuple[str, str] | None]:
    """One page of artifacts, and where the next one starts."""
    tally = Tally({}, [])
    rows = await tx.scan_artifacts(after=after, limit=PAGE)
    for row in rows:
        tally.checked("artifacts")
        tally.attempt(artifact_rules.opened, row)
    return tally, (rows[-1].kind, rows[-1].ref) if len(rows) == PAGE else None
