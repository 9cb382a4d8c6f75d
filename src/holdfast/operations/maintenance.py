"""Housekeeping in bounded steps. Each call is one transaction over one family or one limit."""

from __future__ import annotations

import msgspec

from holdfast.errors import Corrupt
from holdfast.operations import attachments, deletion, retrying
from holdfast.operations.pages import may_follow
from holdfast.ports import Transaction
from holdfast.records.maintenance import GarbageReport, PruneReport, RetentionPolicy, Stats
from holdfast.records.processes import Process
from holdfast.rows import ArtifactHead, ProcessRow
from holdfast.rules import artifacts as artifact_rules
from holdfast.rules import maintenance as rules
from holdfast.rules import processes as process_rules
from holdfast.rules import retrying as retrying_rules
from holdfast.rules.sequences import require_gapless
from holdfast.run_chains import first_of_chain, next_in_chain, original_run, parent_run
from holdfast.step_names import DETACHED, INHERITED, RESULT, replay_key

PROOF_PAGE = 500
MOST_PRUNED = 10
"""Runs of a chain of retries that may be gone while a later one still finds its children."""


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
        after: int | None = None
        while True:
            rows = await tx.list_revisions(session.session_key, after=after or 0, limit=PROOF_PAGE)
            require_gapless("revisions", session.session_key, [row.revision for row in rows], after=after)
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
    heads = await tx.list_artifacts(artifact_rules.range_of(kind, "", (kind, after)), limit)
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
    over = [row for row in old if await _is_over(tx, row, until_ms, known)]
    found = [row.process_id for row in over if not await _is_awaited(tx, row)]
    is_last = not rows or len(old) < len(rows)
    return Prunable(found, until_ms, None if is_last else (rows[-1].updated_at_ms, rows[-1].process_id))


async def _is_over(tx: Transaction, row: ProcessRow, until_ms: int, known: dict[str, bool]) -> bool:
    """Return whether the last of the runs that this one continued as may be forgotten. A damaged row is kept."""
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


async def _is_awaited(tx: Transaction, row: ProcessRow) -> bool:
    """Return whether a run that has not ended may ask for the result of this one. A damaged one is kept."""
    try:
        process = process_rules.process_of(row)
        cause = process.provenance.caused_by
        child_id = first_of_chain(process.id, cause) or process.id
        parent_id, seen = parent_run(cause), set[str]()
        while parent_id is not None and parent_id not in seen:
            seen.add(parent_id)
            parent = await _parent(tx, parent_id)
            if parent is None:
                return False
            if parent.status == "running":
                read, detached = [
                    await tx.find_replay(parent.process_id, replay_key(f"{step}{child_id}"))
                    for step in (RESULT, DETACHED)
                ]
                return rules.is_awaited(parent, read, detached)
            parent_id = await _current_parent(tx, process_rules.process_of(parent), child_id)
    except Corrupt:
        return True
    return False


async def _parent(tx: Transaction, run_id: str) -> ProcessRow | None:
    """Return a run. If it was pruned, the first run that retried it, whose children are named after it."""
    found, id = await tx.find_process(run_id), run_id
    for _ in range(MOST_PRUNED):
        if found is not None:
            break
        id = next_in_chain(id)
        found = await tx.find_process(id)
    if found is None or id == run_id:
        return found
    cause = process_rules.process_of(found).provenance.caused_by
    return found if original_run(id, cause) == run_id else None


async def _current_parent(tx: Transaction, parent: Process, child_id: str) -> str | None:
    """Return the run that has the child of an ended one: its retry, or the run that continues it and took it along."""
    if parent.continued_as is None:
        retry = await retrying.following(tx, parent)
        return None if retry is None else retry.id
    inherited = await tx.find_replay(parent.continued_as, replay_key(INHERITED))
    step = {} if inherited is None else retrying_rules.payload_of(inherited)
    return parent.continued_as if rules.is_inherited(child_id, step) else None


async def prune_processes(tx: Transaction, page: Prunable, *, dry_run: bool) -> tuple[int, int]:
    """Forget the processes of a page. Return how many they and their events were."""
    return await tx.drop_terminal_processes(page.process_ids, updated_until_ms=page.until_ms, dry_run=dry_run)


async def sweep(tx: Transaction, older_than_ms: int, limit: int) -> tuple[int, int, int]:
    """Forget uncommitted attachments. Return (intents, objects, bytes)."""
    return await attachments.sweep(tx, older_than_ms=rules.cutoff(tx.now_ms, older_than_ms), limit=limit)


async def count_uncommitted(tx: Transaction, older_than_ms: int) -> int:
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
