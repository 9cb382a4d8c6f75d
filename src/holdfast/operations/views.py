"""Read the views of several revisions of a session. Each table is read once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.errors import UnknownRef
from holdfast.next_step import NextStep
from holdfast.operations import sessions
from holdfast.operations.sessions import Address
from holdfast.ports import Transaction
from holdfast.records.commits import SessionView, Usage
from holdfast.records.graph import Graph
from holdfast.rows import RevisionRow, Segment, SessionRow
from holdfast.rules import commits, deltas, graph, ledgers, node_ranges
from holdfast.rules import sessions as rules


async def load_many(
    tx: Transaction, address: Address, at: Sequence[int | str], last: int | None, most_bytes: int
) -> tuple[SessionRow | None, Callable[[], list[SessionView]]]:
    """Return a call that makes the views of revisions, named by number, turn or node, in the order of their names.

    The call decodes a content once for each view that has it, which is more than the rows here weigh.
    """
    row = await sessions.find(tx, address)
    if not at:
        return row, list
    if row is None:
        raise UnknownRef("at", str(at[0]), "the session has no revisions", NextStep("see", "session.history()"))
    numbers, revisions = await _revisions(tx, row, at)
    bodies = {number: commits.body_of(revision) for number, revision in revisions.items()}
    wanted = [commits.body_refs(body) for body in bodies.values()]
    refs = list(dict.fromkeys(ref for needed in wanted for ref in needed))
    blobs = await tx.load_blobs(row.family, refs) if refs else ()
    deltas.require_room(blobs, most_bytes, needed_by=f"revisions of {row.session_id!r}")
    deltas.require_room_for_all(blobs, wanted, most_bytes)
    contents = deltas.opened(blobs)
    known_ledgers = await _ledgers(tx, row, bodies)
    graphs = await _graphs(tx, row, revisions, last)

    def made() -> list[SessionView]:
        views = {
            number: sessions.view_of(
                row,
                revision,
                bodies[number],
                contents,
                graph=graphs[number],
                node_count=node_ranges.count_of(_segments(row, revision)),
                ledger=known_ledgers[number],
            )
            for number, revision in revisions.items()
        }
        return [views[number] for number in numbers]

    return row, made


async def _revisions(
    tx: Transaction, row: SessionRow, at: Sequence[int | str]
) -> tuple[list[int], dict[int, RevisionRow]]:
    """Return the numbers of revisions in the order of their names, and the revisions. A missing one is UnknownRef."""
    names = list(dict.fromkeys(one for one in at if isinstance(one, str)))
    turns = {turn.turn_id: turn for turn in (await tx.find_turns(row, names) if names else ())}
    others = [name for name in names if name not in turns]
    nodes = {node.node_id: node for node in (await tx.find_nodes(graph.segments_of(row), others) if others else ())}

    def number_of(name: int | str) -> int:
        if isinstance(name, int):
            return name
        if name in turns:
            return turns[name].revision
        return rules.revision_of_node(name, row, [nodes[name]] if name in nodes else [])

    numbers = list(map(number_of, at))
    revisions = {turn.revision: turn for turn in turns.values()}
    unread = list(dict.fromkeys(number for number in numbers if number not in revisions))
    if unread:
        revisions |= {found.revision: found for found in await tx.find_revisions(row, unread)}
    for number in unread:
        if number not in revisions:
            # Tells a pruned revision from a lost one.
            revisions[number] = await sessions.revision_at(tx, row, number)
    return numbers, revisions


async def _ledgers(
    tx: Transaction, row: SessionRow, bodies: Mapping[int, commits.TurnBody]
) -> dict[int, tuple[Usage, ...]]:
    """Return the ledger of each revision, newest first: the next one's without what the turns between have used."""
    rows = await tx.read_ledger(row.session_key)
    oldest = min(bodies)
    later = await sessions.usage_after(tx, row.session_key, oldest) if rows and oldest < row.revision else []
    known: dict[int, tuple[Usage, ...]] = {}
    newer: Sequence[ledgers.Counter] = rows
    for number in sorted(bodies, reverse=True):
        between = [usage for revision, usage in later if revision > number]
        later = later[: len(later) - len(between)]
        known[number] = ledgers.ledger_of(newer, between, spent=bodies[number].spent, session_key=row.session_key)
        newer = known[number]
    return known


async def _graphs(
    tx: Transaction, row: SessionRow, revisions: Mapping[int, RevisionRow], last: int | None
) -> dict[int, Graph]:
    """Return the path of each revision. Nodes that several have in common are one object."""
    leaves = {number: graph.leaf_of(revision) for number, revision in revisions.items()}
    leaf_keys = sorted({leaf[0] for leaf in leaves.values() if leaf is not None})
    rows = {node.node_key: node for node in (await tx.read_paths(leaf_keys, last) if leaf_keys and last != 0 else ())}
    nodes = {key: graph.node_of(node) for key, node in rows.items()}
    found: dict[int, Graph] = {}
    hidden: set[int] = set()
    for number, leaf in leaves.items():
        keys = [] if leaf is None else node_ranges.path_keys(leaf[0], rows, last)
        if leaf is not None and not keys and last != 0 and leaf[0] not in hidden:
            await sessions.require_node(tx, _segments(row, revisions[number]), *leaf)
            hidden.add(leaf[0])
        found[number] = Graph(tuple(nodes[key] for key in keys), None if leaf is None else leaf[1])
    return found


def _segments(row: SessionRow, revision: RevisionRow) -> tuple[Segment, ...]:
    return graph.segments_of(row, epoch=revision.epoch, upto=revision.node_count)
