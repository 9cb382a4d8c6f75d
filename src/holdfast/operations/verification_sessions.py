"""Verify sessions, revisions, nodes, usage and blobs: each against the rows it refers to, in one snapshot."""

from __future__ import annotations

from holdfast.errors import Corrupt
from holdfast.operations.pages import may_follow
from holdfast.operations.verification_pages import PAGE, Tally, known, note_orphans, owners_of
from holdfast.ports import Transaction
from holdfast.rows import BlobRow, NodeRow, RevisionRow, Segment, SessionRow
from holdfast.rules import commits, graph, node_ranges
from holdfast.rules import verification as common
from holdfast.rules import verification_sessions as rules
from holdfast.table_catalog import StoredBlob, name_of


async def check_sessions(tx: Transaction, rows: list[SessionRow], tally: Tally) -> None:
    """Check sessions, their families and sources, and everything that they count."""
    founders = await known(tx, SessionRow, [(row.family,) for row in rows])
    for row in rows:
        if (row.family,) not in founders.unreadable:
            tally.check("sessions", name_of(row), rules.family(row, founders.get(row.family)))
        await tally.attempt("sessions", name_of(row), _check_session(tx, row, tally))


async def _check_session(tx: Transaction, row: SessionRow, tally: Tally) -> None:
    key = name_of(row)
    tally.check("sessions", key, rules.session(row, await tx.span(SessionRow, row.session_id)))
    if row.deleted_at_ms is None:
        await _check_living(tx, row, tally)


async def _check_living(tx: Transaction, row: SessionRow, tally: Tally) -> None:
    key = name_of(row)
    tally.check("sessions", key, rules.history(row, await tx.span(RevisionRow, row.session_key)))
    tally.check("sessions", key, rules.positions(row, await tx.span(NodeRow, row.session_key)))
    try:
        lineage = graph.lineage_of(row)
    except Corrupt as error:
        tally.damage("sessions", key, error)
    else:
        sources = await known(tx, SessionRow, [(segment.session_key,) for segment in lineage])
        for segment in lineage:
            if (segment.session_key,) not in sources.unreadable:
                tally.check("sessions", key, rules.lineage(row, segment, sources.get(segment.session_key)))
        await _check_view(tx, row, tally)
    await _check_turns(tx, row, tally)


async def _check_view(tx: Transaction, row: SessionRow, tally: Tally) -> None:
    """Check that every node exists that the session or one of its revisions sees."""
    epochs = await tx.revision_epochs(row.session_key)
    for (session_key, epoch), upto in graph.retained_segments([row], {row.session_key: epochs}).items():
        for keys in node_ranges.key_ranges_of([Segment(session_key, epoch, upto)]):
            tally.check("nodes", f"{session_key}/{epoch}", rules.key_range(keys, await tx.count_nodes(*keys)))


async def _check_turns(tx: Transaction, row: SessionRow, tally: Tally) -> None:
    """Check that the ledger is the sum of the turns. The check of revisions reports unreadable turns."""
    spent = rules.Spending({}, {}, None, [])
    first = after = 0
    try:
        counters = await tx.read_ledger(row.session_key)
        while True:
            before = after
            turns = await tx.list_revisions(row.session_key, after=before, limit=PAGE)
            for turn in turns:
                first = first or turn.revision
                after = turn.revision
                spent.add(turn.revision, commits.body_of(turn))
                if turn.revision == row.revision:
                    tally.check("sessions", str(row.session_key), rules.head(row, turn))
            # Damaged pages may repeat rows without end.
            if not may_follow(turns, PAGE) or after <= before:
                break
    except Corrupt:
        return
    tally.check("usage", str(row.session_key), rules.ledger(row.session_key, counters, spent, first_revision=first))


async def check_revisions(tx: Transaction, rows: list[RevisionRow], tally: Tally) -> None:
    """Check revisions, their sessions, leaves and blobs."""
    owners = await owners_of(tx, rows, tally)
    leaves = await known(tx, NodeRow, [(row.leaf_key,) for row in rows if row.leaf_key is not None])
    previous: RevisionRow | None = None
    for row in rows:
        name = name_of(row)
        owner = owners.get(row.session_key)
        tally.check("revisions", name, rules.revision(row, owner))
        if owner is not None and owner.deleted_at_ms is None and (row.leaf_key or 0,) not in leaves.unreadable:
            tally.check("revisions", name, rules.leaf(row, owner, leaves.get(row.leaf_key or 0)))
        if previous is not None and previous.session_key == row.session_key:
            tally.check("revisions", name, rules.successor(previous, row))
        previous = row
    await _check_refs(tx, rows, tally)


async def _check_refs(tx: Transaction, rows: list[RevisionRow], tally: Tally) -> None:
    """Check that every content exists that a revision needs. A body that does not decode is reported already."""
    needed: dict[tuple[int, str], str] = {}
    for row in rows:
        try:
            refs = commits.body_refs(commits.body_of(row))
        except Corrupt:
            continue
        for ref in refs:
            needed.setdefault((row.family, ref), name_of(row))
    present = await tx.present_keys(StoredBlob, list(needed))
    for place, name in needed.items():
        if place not in present:
            tally.note(common.missing_blob(place[1], name))


async def check_nodes(tx: Transaction, rows: list[NodeRow], tally: Tally) -> None:
    """Check nodes, their parents, and the sessions and turns that wrote them."""
    owners = await owners_of(tx, rows, tally)
    added = [(row.session_key, row.revision) for row in rows if row.revision is not None]
    turns = await known(tx, RevisionRow, [*added, *((key, revision - 1) for key, revision in added)])
    for row, following in zip(rows, [*rows[1:], None], strict=False):
        tally.check("nodes", name_of(row), rules.node(row, owners.get(row.session_key)))
        if row.revision is not None:
            turn = turns.get(row.session_key, row.revision)
            before = turns.get(row.session_key, row.revision - 1)
            tally.check("nodes", name_of(row), rules.addition(row, turn, before, following))


async def check_blobs(tx: Transaction, rows: list[StoredBlob], tally: Tally) -> None:
    """Check contents, the families that they belong to, and the key frames that deltas rest on."""
    founders = await known(tx, SessionRow, [(row.family,) for row in rows])
    orphans = [(row, name_of(row), row.family) for row in rows if not founders.has(row.family)]
    note_orphans(tally, orphans, "family")
    for row in rows:
        await tally.attempt("blobs", name_of(row), _check_blob(tx, row, tally))


async def _check_blob(tx: Transaction, row: StoredBlob, tally: Tally) -> None:
    content = BlobRow(row.hash, row.encoding, row.size, row.body, row.base_hash)
    # One delta at a time: key frames are large, and many deltas share one.
    key_frames = () if row.base_hash is None else await tx.load_blobs(row.family, [row.base_hash])
    tally.check("blobs", name_of(row), common.blob(content, key_frames))
