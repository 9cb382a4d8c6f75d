"""Housekeeping in bounded steps. Each call is one transaction over one family or one limit."""

from __future__ import annotations

import msgspec

from holdfast.errors import Corrupt
from holdfast.operations import attachments, deletion
from holdfast.operations.pages import may_follow
from holdfast.ports import Transaction
from holdfast.records.maintenance import GarbageReport, PruneReport, RetentionPolicy, Stats
from holdfast.rows import ArtifactHead, ProcessRow
from holdfast.rules import artifacts as artifact_rules
from holdfast.rules import maintenance as rules
from holdfast.rules import processes as process_rules

PROOF_PAGE = 500


async def vacuum(tx: Transaction, session_key: int | None, limit: int) -> int:
    """Remove the content of tombstoned nodes."""
    return await tx.vacuum_nodes(session_key, limit)


async def count_tombstoned(tx: Transaction, session_key: int | None) -> int:
    """Count the nodes that are to be vacuumed."""
    return await tx.count_tombstoned(session_key)


async def collect_family(tx: Transaction, family: int, limit: int) -> tuple[GarbageReport, bool]:
    """Delete the unreachable rows of a family, up to the limit. Return the report, and whether none are left."""
    revisions, roots, blobs = await tx.count_blobs(family)
    rules.require_roots(family, await tx.family_sessions(family), revisions, blobs)
    erased = await deletion.erase(tx, family, limit)
    report = GarbageReport(
        roots=roots,
        retained_blobs=blobs - erased.blobs,
        deleted_blobs=erased.blobs,
        deleted_bytes=erased.blob_bytes,
        deleted_nodes=erased.nodes,
    )
    return report, erased.complete


async def prove_roots(tx: Transaction, family: int) -> None:
    """Prove that every revision lists the content it needs. Runs before anything of a family is collected."""
    for session in await tx.family_sessions(family):
        after = 0
        while True:
            rows = await tx.list_revisions(session.session_key, after=after, limit=PROOF_PAGE)
            for row in rows:
                rules.require_proven_roots(session, row)
            if not may_follow(rows, PROOF_PAGE):
                break
            after = rows[-1].revision


async def families(tx: Transaction, after: int, limit: int) -> list[int]:
    """Return the next families."""
    return await tx.list_families(after, limit)


async def results_without_run(tx: Transaction, after: str, limit: int) -> tuple[list[ArtifactHead], str | None]:
    """Return the results on one page whose run is gone, and the place of the next page."""
    kind = artifact_rules.RUN_RESULT
    heads = [one for one in await tx.list_artifacts(after=(kind, after), limit=limit) if one.kind == kind]
    named = {head.ref: artifact_rules.run_of_result(head.ref) for head in heads}
    gone: dict[tuple[str, int], bool] = {}
    for run in named.values():
        if run is not None and run not in gone:
            row = await tx.find_process(run[0])
            gone[run] = row is None or row.created_at_ms != run[1]
    found = [head for head in heads if (run := named[head.ref]) is not None and gone[run]]
    return found, heads[-1].ref if len(heads) == limit else None


async def drop_results(tx: Transaction, heads: list[ArtifactHead]) -> tuple[int, int]:
    """Delete results of runs. Return how many there were, and their bytes."""
    dropped = [head for head in heads if await tx.drop_artifact(head.kind, head.ref)]
    return len(dropped), sum(head.size for head in dropped)


async def prune_revisions(tx: Transaction, family: int, keep: int, *, limit: int, dry_run: bool) -> tuple[int, bool]:
    """Forget the oldest revisions of a family's sessions. Return how many, and whether that was all."""
    pruned = 0
    for session in await tx.family_sessions(family):
        below = rules.prunable_below(session, keep)
        if below is None:
            continue
        if dry_run:
            pruned += await tx.count_revisions(session.session_key, below=below)
            continue
        pruned += await tx.drop_revisions(session.session_key, below=below, limit=limit - pruned)
        if pruned >= limit:
            return pruned, False
    return pruned, True


async def prune_rest(tx: Transaction, policy: RetentionPolicy, *, limit: int, dry_run: bool) -> PruneReport:
    """Forget settled work and old occurrences, up to the limit in total."""
    work = occurrences = deliveries = 0
    if policy.settled_batches_older_than_ms is not None:
        until = rules.cutoff(tx.now_ms, policy.settled_batches_older_than_ms)
        work = await tx.drop_settled_batches(settled_until_ms=until, limit=limit, dry_run=dry_run)
    if policy.occurrences_older_than_ms is not None:
        until = rules.cutoff(tx.now_ms, policy.occurrences_older_than_ms)
        occurrences, deliveries = await tx.drop_occurrences(
            occurred_until_ms=until, limit=limit - work, dry_run=dry_run
        )
    return PruneReport(
        dry_run=dry_run,
        batches=work,
        occurrences=occurrences,
        deliveries=deliveries,
        complete=work + occurrences < limit,
    )


class Prunable(msgspec.Struct, frozen=True):
    """Processes that may be forgotten, the time by which they had ended, and the place of the next page."""

    process_ids: list[str]
    until_ms: int
    next: tuple[int, str] | None


async def prunable_processes(tx: Transaction, older_than_ms: int, after: tuple[int, str], limit: int) -> Prunable:
    """Return a page of ended processes that may be forgotten. That is final: none of them ever runs again."""
    until_ms = rules.cutoff(tx.now_ms, older_than_ms)
    rows = await tx.list_ended_processes(after, limit)
    old = [row for row in rows if row.updated_at_ms <= until_ms]
    known: dict[str, bool] = {}
    found = [row.process_id for row in old if await _is_over(tx, row, until_ms, known)]
    is_last = not rows or len(old) < len(rows)
    return Prunable(found, until_ms, None if is_last else (rows[-1].updated_at_ms, rows[-1].process_id))


async def _is_over(tx: Transaction, row: ProcessRow, until_ms: int, known: dict[str, bool]) -> bool:
    """Return whether the last of the runs that this one went on as may be forgotten. A damaged row is kept."""
    chain: list[str] = []
    last: ProcessRow | None = row
    while last is not None and last.process_id not in known and last.process_id not in chain:
        chain.append(last.process_id)
        try:
            following = process_rules.process_of(last).continued_as if rules.names_successor(last) else None
        except Corrupt:
            return False
        if following is None:
            break
        last = await tx.find_process(following)
    over = known.get(last.process_id) if last is not None else None
    over = rules.is_over(last, until_ms) if over is None else over
    known.update(dict.fromkeys(chain, over))
    return over


async def prune_processes(tx: Transaction, page: Prunable, *, dry_run: bool) -> tuple[int, int]:
    """Forget the processes of a page. Return how many they and their events were."""
    return await tx.drop_terminal_processes(page.process_ids, updated_until_ms=page.until_ms, dry_run=dry_run)


async def sweep(tx: Transaction, older_than_ms: int, limit: int) -> tuple[int, int, int]:
    """Forget abandoned attachments. Return (intents, objects, bytes)."""
    return await attachments.sweep(tx, older_than_ms=rules.cutoff(tx.now_ms, older_than_ms), limit=limit)


async def count_abandoned(tx: Transaction, older_than_ms: int) -> int:
    """Count the attachments that are to be swept."""
    found, until_ms = 0, rules.cutoff(tx.now_ms, older_than_ms)
    after: tuple[int, str, int] | None = None
    while True:
        rows = await tx.list_uncommitted(None, older_than_ms=until_ms, after=after, limit=PROOF_PAGE)
        found += len(rows)
        if len(rows) < PROOF_PAGE:
            return found
        after = (rows[-1].intent_at_ms, rows[-1].attachment_id, rows[-1].session_key)


async def stats(tx: Transaction) -> Stats:
    """Return the counts of the whole store."""
    return Stats(**await tx.stats(tx.now_ms))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
