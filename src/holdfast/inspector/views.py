"""The facts of each page, read from the public store. A view returns what its template needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import holdfast
from holdfast.cli.drawing import Drawn, draw
from holdfast.cli.ids import beginnings, likely
from holdfast.cli.terminal import gist
from holdfast.inspector.activity_sampler import ActivitySampler
from holdfast.inspector.comparing import NODES, Conversation, compared, newest_nodes, state_of
from holdfast.inspector.conversation import MOST_TEXT, ROLES, Entry, blocks_of, blocks_of_thread, entry_of, pretty
from holdfast.inspector.searching import (
    ACTIVE_MS,
    MESSAGE_NODES,
    active_sessions,
    asked_for,
    failed_sessions,
    list_sessions,
    searched_sessions,
    stuck_sessions,
)
from holdfast.inspector.threads import thread_of
from holdfast.run_chains import next_in_chain
from holdfast.worker.facts import child_facts, children_in, facts_of
from holdfast.worker.successors import newest_run

PAGE = 50
MEANT = 200
"""Ids of each kind among which a mistyped one is looked for."""
FORKS = 20
"""Forks that a tree shows."""
MOST_PAYLOAD = 500_000
"""Characters of a payload that a page shows. The whole can be saved."""
STATES = ("active", "stuck", "failed")
GIST = 120
EVENTS = 1_000
"""Events of a log that one page reads, the newest."""

Facts: TypeAlias = dict[str, Any]
Query: TypeAlias = Mapping[str, str]


class Missing(Exception):
    """There is nothing under this id."""


class View(NamedTuple):
    """A page: its template, its title and its facts."""

    template: str
    title: str
    facts: Facts
    status: int = 200


async def overview(store: holdfast.Store, query: Query, *, sampler: ActivitySampler | None = None) -> View:
    """Show the activity, counts, live workers and what needs attention."""
    del query
    sampler = ActivitySampler() if sampler is None else sampler
    diagnosis = await sampler.diagnosis(store)
    return View(
        "overview.html",
        "Overview",
        {
            "activity": await sampler.sample(store),
            "stats": await sampler.stats(store),
            "concerns": diagnosis.concerns,
            "workers": await store.workers.list(limit=PAGE),
            "now_ms": await store.now_ms(),
        },
    )


async def sessions(store: holdfast.Store, query: Query) -> View:
    """List sessions by newest change, or those of an owner as they were made, or search them."""
    asked = asked_for(query)
    after = query.get("after") or None
    state = query.get("state", "")
    searched = 0
    reasons: dict[str, list[str]] = {}
    if state == "stuck":
        found, reasons, searched, next = await stuck_sessions(store, after)
    elif state == "failed":
        found, next = await failed_sessions(store, after)
    elif state == "active":
        changed = await active_sessions(store, after)
        found, next = list(changed), changed.next
    elif asked.text or asked.message:
        found, next, searched = await searched_sessions(store, asked, after)
    else:
        page = await list_sessions(store, asked, after, PAGE)
        found, next = list(page), page.next
    return View(
        "sessions.html",
        "Sessions",
        {
            "found": found,
            "next": next,
            "asked": asked,
            "searched": searched,
            "message_nodes": MESSAGE_NODES,
            "label": query.get("label", ""),
            "state": state if state in STATES else "",
            "reasons": reasons,
            "active_ms": ACTIVE_MS,
        },
    )


async def session(store: holdfast.Store, session_id: str, query: Query) -> View:
    """Show one conversation, its turns, its queue, and why it is stuck."""
    handle = store.sessions.handle(session_id)
    at = _whole(query.get("at"))
    found = await newest_nodes(handle, at)
    view = None if found is None else found.view
    meta = await handle.meta()
    try:
        why = await store.maintenance.explain_session(session_id)
    except holdfast.UnknownSession:
        raise Missing(session_id) from None
    history = await handle.history(newest_first=True, limit=PAGE, after=query.get("turns") or None)
    batches = await store.queue.list(session_id, limit=PAGE)
    dead = await store.queue.dead_letters(session_id=session_id, limit=PAGE)
    processes = await store.processes.list(status="any", started_by=session_id, limit=PAGE)
    children = await store.sessions.list(parent=session_id, limit=PAGE)
    attachments = await handle.attachments.list(limit=PAGE)
    asked = _whole(query.get("since"))
    since = asked if asked is not None else 0 if view is None else view.revision - 1
    return View(
        "session.html",
        session_id,
        {
            "session_id": session_id,
            "meta": meta,
            "view": view,
            "at": at,
            **_conversation(found),
            "roles": ROLES,
            "attachments": attachments,
            "parent": _parent(meta),
            "why": why,
            "history": history,
            "batches": batches,
            "dead": dead,
            "processes": processes,
            "children": children,
            "since": since,
            "changes": [] if found is None else await compared(handle, found, since),
            "components": {} if found is None else _components(state_of(view, found.thread)),
            "now_ms": await store.now_ms(),
        },
    )


def _conversation(found: Conversation | None) -> Facts:
    """Return the blocks of a conversation, the messages of a thread or nodes, and a note if there are older ones."""
    if found is None:
        return {"blocks": [], "cut_note": ""}
    messages = [] if found.thread is None else found.thread.messages
    if messages:
        note = f"The last {NODES} of {len(messages)} messages." if len(messages) > NODES else ""
        return {"blocks": blocks_of_thread(messages, NODES), "cut_note": note}
    note = f"The last {len(found.nodes)} nodes of this branch; the session has {found.view.node_count}."
    return {"blocks": blocks_of(found.nodes), "cut_note": note if found.is_cut else ""}


def _components(state: Facts) -> dict[str, str]:
    return {name: pretty(value)[:MOST_TEXT] for name, value in state.items()}


def _parent(meta: holdfast.sessions.SessionMeta | None) -> str | None:
    relation = None if meta is None else meta.relation
    return relation.parent_session_id if isinstance(relation, holdfast.sessions.Child) else None


async def tree(store: holdfast.Store, session_id: str, query: Query) -> View:
    """Draw the graph of a session: branches, the active path, tombstones."""
    handle = store.sessions.handle(session_id)
    at = _whole(query.get("at"))
    view = await handle.load(holdfast.sessions.ActivePath(last=0), at=at)
    if view is None:
        raise Missing(session_id)
    after, leaf = query.get("after") or None, query.get("leaf") or view.graph.leaf
    page = await handle.nodes(at=at, after=after, limit=NODES, newest_first=True)
    nodes = list(reversed(page.items))
    is_here = after is None or any(one.id == leaf for one in nodes)
    lines: list[tuple[Drawn, Entry | None]] = []
    for line in draw(nodes, leaf if is_here else None, unicode=True):
        mark = line.mark
        if mark == "head" and after is not None:
            mark = "path"  # the active path continues from here to newer nodes
        elif mark == "tombstone" and page.next is not None and await handle.load_node(line.node_id) is not None:
            mark = "earlier"
        lines.append((line._replace(mark=mark), None if line.node is None else entry_of(line.node)))
    top = _top_of_path(nodes, leaf) if is_here else leaf
    return View(
        "tree.html",
        f"{session_id}: tree",
        {
            "session_id": session_id,
            "lines": lines,
            "view": view,
            "next": page.next,
            "top": top,
            "is_older": after is not None,
            "at": at,
            "forks": await _forks(store, session_id),
        },
    )


def _top_of_path(nodes: Sequence[holdfast.Node], leaf: str | None) -> str | None:
    """Return the first node of the active path that is not among these."""
    parents = {one.id: one.parent for one in nodes}
    while leaf in parents:
        leaf = parents[leaf]
    return leaf


async def _forks(store: holdfast.Store, session_id: str) -> dict[str, list[str]]:
    """Return the forks of a session by the node after which they began."""
    found: dict[str, list[str]] = {}
    for one in await store.sessions.list(parent=session_id, limit=FORKS):
        try:
            view = await store.sessions.handle(one.session_id).load(holdfast.sessions.ActivePath(last=0), at=1)
        except (holdfast.NotFound, holdfast.SessionDeleted):
            continue  # its beginning was pruned, or it was deleted meanwhile
        if view is not None and view.graph.leaf is not None:
            found.setdefault(view.graph.leaf, []).append(one.session_id)
    return found


async def node(store: holdfast.Store, session_id: str, query: Query) -> View:
    """Show the payload of one node, as much of it as a browser lays out in a moment, or of a message of a thread."""
    found = await node_of(store.sessions.handle(session_id), query)
    if found is None:
        raise Missing(query.get("node") or query.get("message", ""))
    payload = pretty(found.payload)
    facts = {
        "session_id": session_id,
        "node": found,
        "payload": payload[:MOST_PAYLOAD],
        "is_cut": len(payload) > MOST_PAYLOAD or isinstance(found.payload, bytes),
        "number": query.get("message"),
        "at": query.get("at"),
    }
    return View("node.html", found.id, facts)


async def node_of(handle: holdfast.Session, query: Query) -> holdfast.Node | None:
    """Return a node, or a message of a thread at a revision in the form of one. Return None for an unknown one."""
    number = _whole(query.get("message"))
    if number is None:
        return await handle.load_node(query.get("node", ""))
    thread = thread_of(await handle.load(holdfast.sessions.ActivePath(last=1), at=_whole(query.get("at"))))
    if thread is None or number >= len(thread.messages):
        return None
    message = thread.messages[number]
    return holdfast.Node(str(message.get("id") or number), kind="message", payload=message)


async def processes(store: holdfast.Store, query: Query) -> View:
    """List processes."""
    status: Any = query.get("status") or "running"
    page = await store.processes.list(status=status, after=query.get("after") or None, limit=PAGE)
    return View("processes.html", "Processes", {"page": page, "status": status, "now_ms": await store.now_ms()})


async def process(store: holdfast.Store, process_id: str) -> View:
    """Show one process: why it is where it is, its steps and its log."""
    try:
        why = await store.maintenance.explain_process(process_id)
    except holdfast.UnknownProcess:
        raise Missing(process_id) from None
    found = await store.processes.get(process_id)
    log: list[holdfast.events.ProcessEvent] = []
    run = None
    if found is not None:
        log = list(await store.events.recent(process_id, limit=min(EVENTS, store.limits.page)))
        if isinstance(found.input, holdfast.processes.Run):
            holder = await store.leases.holder(holdfast.leases.OnProcess(process_id))
            children = [child_facts(one, await newest_run(store, one.id)) for one in children_in(log)]
            following = await store.processes.get(next_in_chain(process_id)) if found.is_retryable else None
            run = facts_of(found, log, holder, children, following, now_ms=await store.now_ms())
    return View(
        "process.html",
        process_id,
        {
            "process_id": process_id,
            "process": found,
            "why": why,
            "run": run,
            "unread": 0 if not log else log[0].sequence - 1,
            "log": [(one, pretty(one.payload)[:MOST_TEXT], gist(one.payload, GIST)) for one in log[-NODES:]],
            "input": None if found is None else pretty(found.input)[:MOST_TEXT],
            "started_by": None if found is None else _starter(found),
            "outcome": None if found is None or found.outcome is None else pretty(found.outcome)[:MOST_TEXT],
            "now_ms": await store.now_ms(),
        },
    )


def _starter(process: holdfast.processes.Process) -> str | None:
    """Return the session that started a process."""
    originator = process.provenance.originator
    return originator.scope.session_id if isinstance(originator, holdfast.processes.BySession) else None


async def queue(store: holdfast.Store, query: Query) -> View:
    """Show sessions with ready work, dead letters, limits and pauses."""
    return View(
        "queue.html",
        "Queue",
        {
            "ready": await store.queue.sessions(after=query.get("after") or None, limit=PAGE),
            "dead": await store.queue.dead_letters(after=query.get("dead") or None, limit=PAGE),
            "depths": await store.queue.depths(limit=PAGE),
            "limits": await store.queue.limits(limit=PAGE),
            "paused": await store.queue.paused_sessions(limit=PAGE),
            "now_ms": await store.now_ms(),
        },
    )


async def triggers(store: holdfast.Store, query: Query) -> View:
    """Show schedules, subscriptions and deliveries that started nothing."""
    return View(
        "triggers.html",
        "Triggers",
        {
            "schedules": await store.schedules.list(limit=PAGE),
            "subscriptions": await store.triggers.list(after=query.get("after") or None, limit=PAGE),
            "failed": await store.triggers.failed(limit=PAGE),
            "undelivered": await store.triggers.undelivered(limit=PAGE),
            "now_ms": await store.now_ms(),
        },
    )


async def why(store: holdfast.Store, query: Query) -> View:
    """Explain the session, process or schedule of an id."""
    given = query.get("id", "")
    id = given.strip()  # as it was typed; a link names an id that may begin or end with a blank
    found = await _explained(store, given) or (await _explained(store, id) if id != given else [])
    meant = await _meant(store, id) if id and not found else []
    facts = {"id": id, "found": found, "meant": meant}
    return View("why.html", f"Why {id}", facts, 404 if id and not found else 200)


async def _explained(store: holdfast.Store, id: str) -> list[holdfast.maintenance.Explanation]:
    """Return the explanations of the session, the process and the schedule of an id. Raises SessionDeleted."""
    found: list[holdfast.maintenance.Explanation] = []
    deleted: holdfast.SessionDeleted | None = None
    explain = store.maintenance
    for one in (explain.explain_session, explain.explain_process, explain.explain_schedule):
        if id.strip():
            try:
                found.append(await one(id))
            except holdfast.SessionDeleted as error:
                deleted = error
            except holdfast.NotFound:
                continue
    if deleted is not None and not found:
        raise deleted
    return found


async def _meant(store: holdfast.Store, id: str) -> list[str]:
    """Return ids that look like this one."""
    known = [one.session_id for one in await store.sessions.list(newest_first=True, limit=MEANT)]
    for prefix in beginnings(id):
        known += [one.session_id for one in await store.sessions.list(prefix=prefix, limit=MEANT)]
    known += [one.id for one in await store.processes.list(status="any", limit=MEANT)]
    known += [one.name for one in await store.schedules.list(limit=MEANT)]
    return likely(id, known)


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None
