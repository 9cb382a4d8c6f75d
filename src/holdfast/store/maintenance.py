"""`store.maintenance`: housekeeping. Removes data only on request, and never data that can still be reached."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.clock import SystemClock
from holdfast.errors import Corrupt, Unavailable
from holdfast.log import DEBUG, WARNING, log_event
from holdfast.operations import diagnosis, verification
from holdfast.operations import maintenance as operations
from holdfast.operations import sessions as session_operations
from holdfast.operations.attachments import read_outside
from holdfast.ports import AttachmentBytes
from holdfast.records.diagnosis import Concern, Diagnosis
from holdfast.records.graph import VacuumReport
from holdfast.records.maintenance import (
    Finding,
    GarbageReport,
    Progress,
    PruneReport,
    RetentionPolicy,
    Stats,
    VerifyReport,
)
from holdfast.rows import AttachmentRow
from holdfast.rules import checks
from holdfast.rules import diagnosis as diagnosis_rules
from holdfast.rules import maintenance as rules
from holdfast.rules import verification as verification_rules
from holdfast.store.context import Context, FacetBase
from holdfast.table_catalog import table_of

if TYPE_CHECKING:
    from holdfast.records.explanations import Explanation

BATCH = 1_000
FAMILIES = 100
UNBOUNDED = 2**62
FAILURES_IN_A_ROW = 20
"""Consecutive failures after which the place for bytes outside is no longer asked: each may be a timeout."""


class ProgressReporter:
    """Reports the progress of long work to the caller's callback, if there is one."""

    def __init__(self, callback: Callable[[Progress], None] | None) -> None:
        self._callback = callback
        self._done = self._total = 0

    @property
    def is_wanted(self) -> bool:
        """True if there is a callback."""
        return self._callback is not None

    def set_total(self, total: int) -> None:
        """Set the total."""
        self._total = total

    def advance(self, count: int) -> None:
        """Add finished work and report. Never above the total: work that others added meanwhile is not counted."""
        self._done = min(self._total, self._done + count)
        if self._callback is not None:
            self._callback(Progress(self._done, self._total))

    def finish(self) -> None:
        """Report that everything is done, also if others removed some of the work meanwhile."""
        self.advance(self._total)


class Maintenance(FacetBase):
    """Housekeeping, in bounded transactions, so that other writers can run in between."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def vacuum(
        self, session_id: str | None = None, *, progress: Callable[[Progress], None] | None = None
    ) -> VacuumReport:
        """Remove the content of tombstoned nodes, of one session or of all. Their ids stay used.

        `progress` is called with the nodes that are done, as in `verify`.

        >>> store.maintenance.vacuum().removed_nodes
        0
        """
        context = self._context
        context.refuse_within("a vacuum")
        reporter = ProgressReporter(checks.callback("progress", progress))
        session_key = None
        if session_id is not None:
            checked = context.identifier("session_id", session_id)
            row = await context.backend.read(lambda tx: session_operations.find(tx, (checked, None)))
            if row is None:
                return VacuumReport(0)
            session_key = row.session_key
        if reporter.is_wanted:
            reporter.set_total(await context.backend.read(lambda tx: operations.count_tombstoned(tx, session_key)))
        removed = 0
        while True:
            step = await context.backend.write(lambda tx: operations.vacuum(tx, session_key, BATCH))
            removed += step
            reporter.advance(step)
            log_event("maintenance", DEBUG, "vacuumed %(nodes)s nodes", nodes=step)
            if step < BATCH:
                reporter.finish()
                return VacuumReport(removed)

    async def _families(self) -> AsyncIterator[int]:
        after = 0
        while True:
            page = await self._context.backend.read(partial(operations.families, after=after, limit=FAMILIES))
            for family in page:
                yield family
            if len(page) < FAMILIES:
                return
            after = page[-1]

    async def collect_garbage(self, *, progress: Callable[[Progress], None] | None = None) -> GarbageReport:
        """Delete blobs and nodes that no head, retained revision, frame or fork reaches, and results of pruned runs.

        A family whose revisions are lost is skipped; `Corrupt` names it once the others are done. `progress` is
        called with the families that are done, as in `verify`.

        >>> store.maintenance.collect_garbage().deleted_blobs
        0
        """
        self._context.refuse_within("garbage collection")
        reporter = ProgressReporter(checks.callback("progress", progress))
        if reporter.is_wanted:
            reporter.set_total(sum([1 async for _ in self._families()]))
        total = GarbageReport(0, 0, 0, 0)
        damage: Corrupt | None = None
        async for family in self._families():
            try:
                total = await self._collect_family(family, total)
            except Corrupt as error:
                log_event("maintenance", WARNING, "family %(family)s is damaged and left alone", family=family)
                damage = damage or error
            reporter.advance(1)
        total = await self._collect_results(total)
        reporter.finish()
        if damage is not None:
            raise damage
        return total

    async def _collect_family(self, family: int, total: GarbageReport) -> GarbageReport:
        await self._context.backend.read(partial(operations.prove_roots, family=family))
        complete, first = False, True
        while not complete:
            step, complete = await self._context.backend.write(
                partial(operations.collect_family, family=family, limit=BATCH)
            )
            total = GarbageReport(
                roots=total.roots + (step.roots if first else 0),
                retained_blobs=total.retained_blobs + (step.retained_blobs if complete else 0),
                deleted_blobs=total.deleted_blobs + step.deleted_blobs,
                deleted_bytes=total.deleted_bytes + step.deleted_bytes,
                deleted_nodes=total.deleted_nodes + step.deleted_nodes,
                deleted_results=total.deleted_results,
            )
            first = False
            message = "collected in family %(family)s: %(blobs)s blobs, %(nodes)s nodes"
            log_event("maintenance", DEBUG, message, family=family, blobs=step.deleted_blobs, nodes=step.deleted_nodes)
        return total

    async def _collect_results(self, total: GarbageReport) -> GarbageReport:
        """Delete the large results of runs that were pruned. A run that is gone never comes back under its start."""
        backend = self._context.backend
        after: str | None = ""
        while after is not None:
            found, after = await backend.read(partial(operations.results_without_run, after=after, limit=BATCH))
            if not found:
                continue
            count, size = await backend.write(partial(operations.drop_results, heads=found))
            log_event("maintenance", DEBUG, "collected %(results)s results of runs", results=count)
            total = msgspec.structs.replace(
                total, deleted_bytes=total.deleted_bytes + size, deleted_results=total.deleted_results + count
            )
        return total

    async def prune(
        self, policy: RetentionPolicy, *, dry_run: bool = False, max_rows: int | None = None
    ) -> PruneReport:
        """Delete what the policy allows, in bounded transactions. `max_rows` stops early, and the next call continues.

        A turn id, source key, process id or idempotency key is kept as long as its row. An ended
        child run is kept until its parent has read its result, or has ended.

        >>> policy = holdfast.RetentionPolicy(keep_revisions=10)
        >>> store.maintenance.prune(policy, dry_run=True).revisions
        0
        """
        self._context.refuse_within("pruning")
        checked = rules.check_policy(policy)
        dry = checks.flag("dry_run", dry_run)
        allowed = checks.optional_whole("max_rows", max_rows, least=1)
        if dry:
            return await self._count_prunable(checked)
        total = PruneReport(dry_run=False)
        if checked.keep_revisions is not None:
            async for family in self._families():
                total = await self._prune_family(family, checked.keep_revisions, total, allowed)
        while (size := _room(total, allowed)) > 0:
            step = await self._context.backend.write(
                partial(operations.prune_rest, policy=checked, limit=size, dry_run=False)
            )
            total = _add(total, step)
            if step.complete:
                return await self._prune_processes(checked, total, allowed)
        return msgspec.structs.replace(total, complete=False)

    async def _prune_processes(self, policy: RetentionPolicy, total: PruneReport, allowed: int | None) -> PruneReport:
        """Forget ended processes. Reads them first: the decision stays true, and so needs no locks."""
        backend, dry = self._context.backend, total.dry_run
        age_ms = policy.terminal_processes_older_than_ms
        if age_ms is None:
            return total
        after: tuple[int, str] | None = (-1, "")
        while after is not None:
            size = _room(total, allowed)
            if size <= 0:
                return msgspec.structs.replace(total, complete=False)
            page = await backend.read(
                partial(operations.prunable_processes, older_than_ms=age_ms, after=after, limit=size)
            )
            after = page.next
            if page.process_ids:
                forget = partial(operations.prune_processes, page=page, dry_run=dry)
                processes, events = await (backend.read(forget) if dry else backend.write(forget))
                total = msgspec.structs.replace(
                    total, processes=total.processes + processes, events=total.events + events
                )
        return total

    async def _prune_family(self, family: int, keep: int, total: PruneReport, allowed: int | None) -> PruneReport:
        complete = False
        while not complete and (size := _room(total, allowed)) > 0:
            step, complete = await self._context.backend.write(
                partial(operations.prune_revisions, family=family, keep=keep, limit=size, dry_run=False)
            )
            total = msgspec.structs.replace(total, revisions=total.revisions + step)
        return total

    async def _count_prunable(self, policy: RetentionPolicy) -> PruneReport:
        revisions = 0
        if policy.keep_revisions is not None:
            keep = policy.keep_revisions
            async for family in self._families():
                count, _ = await self._context.backend.read(
                    partial(operations.prune_revisions, family=family, keep=keep, limit=UNBOUNDED, dry_run=True)
                )
                revisions += count
        rest = await self._context.backend.read(
            lambda tx: operations.prune_rest(tx, policy, limit=UNBOUNDED, dry_run=True)
        )
        return await self._prune_processes(policy, msgspec.structs.replace(rest, revisions=revisions), None)

    async def stats(self) -> Stats:
        """Return the counts of the whole store.

        >>> store.maintenance.stats().sessions
        0
        """
        return await self._context.backend.read(operations.stats)

    async def diagnose(self, *, integrity: bool = True) -> Diagnosis:
        """Return dangerous settings and states of this store, each with advice. Changes nothing.

        The database describes itself, as far as this store's role and connections can see: `synchronous` of SQLite, for
        one, is a setting of this store and not of the file. `integrity=False` leaves out the check of a SQLite file's
        pages and indexes, which reads the whole file. `verify` checks the contents of the rows.

        >>> store.maintenance.diagnose().ok
        True
        """
        context = self._context
        context.refuse_within("a diagnosis")
        whole = checks.flag("integrity", integrity)
        concerns: list[Concern] = []
        problems: list[str] = []
        facts = stuck = None
        here = SystemClock()
        began_ms = here.now_ms()
        try:
            facts = await context.backend.read(diagnosis.facts)
            trip_ms = max(0, here.now_ms() - began_ms)
            try:
                stuck = await context.backend.read(diagnosis.stuck)
            except Corrupt as error:
                problems.append(error.reason)
            known = diagnosis_rules.NOTHING if stuck is None else stuck
            concerns += diagnosis_rules.diagnose(facts, known, local_ms=began_ms + trip_ms // 2, trip_ms=trip_ms)
            problems += await context.backend.read(diagnosis.structures) if whole else []
        except Corrupt as error:
            problems.append(error.reason)
        concerns += map(diagnosis_rules.damaged, problems)
        return Diagnosis(diagnosis_rules.by_level(concerns), facts, stuck)

    async def explain_session(self, session_id: str) -> Explanation:
        """Explain the state of a session, and name the command that helps. Changes nothing.

        Each cause has its start, its holder, and the next step that happens without help.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[{"text": "hi"}]))
        >>> why = store.maintenance.explain_session("chat-42")
        >>> why.standing, [cause.name for cause in why.causes]
        ('stuck', ['no-worker'])
        """
        from holdfast.operations.explanations import explain_session

        checked = self._context.identifier("session_id", session_id)
        return await self._context.backend.read(lambda tx: explain_session(tx, checked))

    async def explain_process(self, process_id: str) -> Explanation:
        """Explain the state of a process, as `explain_session` does.

        >>> _ = store.processes.start("research", id="run-1")
        >>> store.maintenance.explain_process("run-1").causes[0].name
        'no-worker'
        """
        from holdfast.operations.explanations import explain_process

        checked = self._context.identifier("process_id", process_id)
        return await self._context.backend.read(lambda tx: explain_process(tx, checked))

    async def explain_schedule(self, name: str) -> Explanation:
        """Explain when a schedule fires, or why it does not, as `explain_session` does.

        >>> _ = store.schedules.put("nightly", "0 3 * * *")
        >>> store.maintenance.explain_schedule("nightly").standing
        'waits'
        """
        from holdfast.operations.explanations import explain_schedule

        checked = self._context.identifier("name", name)
        return await self._context.backend.read(lambda tx: explain_schedule(tx, checked))

    async def verify(self, *, progress: Callable[[Progress], None] | None = None) -> VerifyReport:
        """Read everything and report damage: refs that do not resolve, hashes that do not match, chains with gaps.

        Damage is never raised: an unreadable row is one finding, and the other rows are still checked. Writes
        nothing, and blocks no other caller. Calls `progress` repeatedly with the rows read so far; it should return
        at once, and on PostgreSQL's blocking store it runs in the thread of the store.

        >>> store.maintenance.verify().ok
        True
        """
        context = self._context
        context.refuse_within("verification")
        reporter = ProgressReporter(checks.callback("progress", progress))
        tally = verification.Tally({}, [])
        outside = OutsideBytes(context)
        await self._count_rows(reporter)
        try:
            tally.add(await context.backend.read(verification.verify_structures))
        except Corrupt as error:
            tally.damage("database", "structures", error)
        for kind in verification.CHECKS:
            place: verification.Place | None = verification.START
            while place is not None:
                page = partial(verification.verify_page, kind=kind, place=place)
                try:
                    step, place = await context.backend.read(page)
                    tally.add(step)
                    await outside.read(step.outside, tally)
                    reporter.advance(step.counts.get(table_of(kind), 0) if table_of(kind) in rules.COUNTED else 0)
                except Corrupt as error:
                    tally.damage(table_of(kind), "*", error)
                    place = None
        reporter.finish()
        return tally.report()

    async def _count_rows(self, reporter: ProgressReporter) -> None:
        if reporter.is_wanted:
            # A table that cannot be counted is found damaged when it is read.
            with contextlib.suppress(Corrupt):
                reporter.set_total(rules.counted_rows(await self._context.backend.read(operations.stats)))


class OutsideBytes:
    """Reads attachment bytes outside of the database, with no transaction open, and verifies them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._failures = 0

    async def read(self, rows: Sequence[AttachmentRow], tally: verification.Tally) -> None:
        """Add findings about the bytes of these references. One that cannot be read does not hide the others."""
        for row in rows:
            if self._context.objects is None or self._failures == FAILURES_IN_A_ROW:
                tally.checked("unread attachments", 1)
                continue
            problems = await self._problems(self._context.objects, row)
            # Since the page was read, a sweep may have deleted the bytes, and a put may have stored them elsewhere.
            stands = not problems or await self._context.backend.read(partial(verification.is_kept_outside, row=row))
            tally.findings += problems if stands else []

    async def _problems(self, objects: AttachmentBytes, row: AttachmentRow) -> list[Finding]:
        tally = verification.Tally({}, [], [])
        try:
            data = await self._context.outside(partial(read_outside, objects, row))
            problems = await self._context.computed(verification_rules.bytes_outside, row, data)
            tally.check("attachment_objects", row.attachment_id, problems)
        except Corrupt as error:
            tally.damage("attachment_objects", row.attachment_id, error)
        except Unavailable as error:
            self._failures += 1
            given_up = "; the rest is skipped" if self._failures == FAILURES_IN_A_ROW else ""
            tally.note(Finding("attachment_objects", row.attachment_id, f"cannot be read: {error.message}{given_up}"))
            return tally.findings
        self._failures = 0
        return tally.findings


def _room(total: PruneReport, allowed: int | None) -> int:
    """Return how many rows the next transaction may remove."""
    spent = total.revisions + total.batches + total.processes + total.occurrences
    return BATCH if allowed is None else min(BATCH, allowed - spent)


def _add(total: PruneReport, step: PruneReport) -> PruneReport:
    return msgspec.structs.replace(
        total,
        batches=total.batches + step.batches,
        processes=total.processes + step.processes,
        events=total.events + step.events,
        occurrences=total.occurrences + step.occurrences,
        deliveries=total.deliveries + step.deliveries,
    )
