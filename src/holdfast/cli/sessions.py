"""Commands that list, read, draw, fork and delete sessions, by one public call each."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.cli import files
from holdfast.cli.commands import AFTER, LIMIT, PAGE, PAGE_JSON, SESSION, YES, Command, argument, label, whole
from holdfast.cli.running import Call, Misused, Refused, require_ordinary
from holdfast.cli.terminal import Part, moment
from holdfast.cli.text_width import beginning, columns_of
from holdfast.paging import every

OUTLINE_TRIES = 4
"""Most readings of a session that changes meanwhile. After the last one the newest reading is drawn."""
MARKS = {"head": ("◆", "@"), "path": ("●", "*"), "side": ("○", "o"), "tombstone": ("✗", "x")}
COLOURS = {"head": "green", "path": "cyan", "side": "dim", "tombstone": "red"}


def list_sessions(call: Call) -> int:
    """List one page of sessions."""
    given = call.options
    with call.store() as store:
        page = store.sessions.list(
            owner=given.owner,
            parent=given.parent,
            prefix=given.prefix,
            labels=dict(given.label),
            changed_since_ms=given.changed_since,
            newest_first=given.newest_first,
            after=given.after,
            limit=given.limit,
        )
        if not page.items and given.after is None and given.parent is not None:
            require_session(store, given.parent)
    return show_page(
        call,
        page,
        ("session", "name", "owner", "model", "labels", "revision", "nodes", "changed"),
        [
            (
                one.session_id,
                one.name,
                one.owner,
                one.model,
                labels_of(one.labels),
                one.revision,
                one.node_count,
                moment(one.changed_at_ms),
            )
            for one in page
        ],
    )


def labels_of(labels: dict[str, str]) -> str | None:
    """Return labels on one line, as the command line takes them."""
    return " ".join(f"{key}={value}" for key, value in labels.items()) or None


def label_session(call: Call) -> int:
    """Change labels of a session, or show them."""
    given = call.options
    changes: dict[str, str | None] = dict(given.labels)
    twice = [key for key in given.remove if key in changes]
    if twice:
        raise Misused(f"label {twice[0]!r} is set and removed: give one")
    changes |= dict.fromkeys(given.remove)
    with call.store() as store:
        if changes:
            labels = store.sessions.handle(given.session).set_labels(changes)
        else:
            require_session(store, given.session)
            meta = store.sessions.handle(given.session).meta()
            labels = {} if meta is None else meta.labels
    if given.json:
        call.terminal.json({"session_id": given.session, "labels": labels})
    else:
        call.terminal.fields(labels.items())
    return 0


def show_page(call: Call, page: holdfast.Page[object], titles: tuple[str, ...], rows: list[tuple[object, ...]]) -> int:
    """Print a page of any listing, as a table or as JSON."""
    if call.options.json:
        call.terminal.json(page)
        return 0
    call.terminal.table(titles, rows)
    if page.next is not None:
        call.terminal.note(f"there is more: --after {page.next}")
    return 0


def show(call: Call) -> int:
    """Show one session."""
    session_id: str = call.options.session
    with call.store() as store:
        session = store.sessions.handle(session_id)
        meta = session.meta()
        view = session.load(holdfast.sessions.ActivePath(last=call.options.last))
        lease = store.leases.holder(holdfast.leases.OnSession(session_id))
        work = store.queue.list(session_id, limit=1000)
        is_paused = session_id in holdfast.every(store.queue.paused_sessions, limit=1000)
        if meta is None and view is None:
            require_session(store, session_id)
    facts = {
        "session_id": session_id,
        "meta": meta,
        "revision": 0 if view is None else view.revision,
        "node_count": 0 if view is None else view.node_count,
        "leaf": None if view is None else view.graph.leaf,
        "config": None if view is None else view.config,
        "frames": [] if view is None else [_without_state(frame) for frame in view.frames],
        "current_frame_id": None if view is None else view.current_frame_id,
        "checkpoint_ref": None if view is None else view.checkpoint_ref,
        "components": {} if view is None else view.manifest.refs,
        "ledger": () if view is None else view.ledger,
        "lease": lease,
        "unsettled_batches": len(work),
        "paused": is_paused,
        "path": () if view is None else view.graph.nodes,
    }
    if call.options.json:
        call.terminal.json(facts)
        return 0
    call.terminal.fields(
        [
            ("session", session_id),
            ("name", None if meta is None else meta.name),
            ("owner", None if meta is None else meta.owner),
            ("model", None if meta is None else meta.model),
            ("labels", None if meta is None else labels_of(meta.labels)),
            ("created", moment(None if meta is None else meta.created_at_ms)),
            *((name, facts[name]) for name in ("revision", "node_count", "leaf", "checkpoint_ref", "current_frame_id")),
            ("lease", None if lease is None else f"{lease.owner_id} until {moment(lease.expires_at_ms)}"),
            ("unsettled batches", f"{len(work)}{'' if work.next is None else ' or more'}"),
            ("paused", "yes: nothing in its queue is claimed" if is_paused else None),
            *((f"usage of {one.model}", f"{one.total} tokens ({one.source})") for one in (view.ledger if view else ())),
        ]
    )
    from holdfast.cli import rendering

    for node in view.graph.nodes if view else ():
        call.terminal.line(f"{node.id}  ", (node.kind, "dim"), f"  {rendering.line_of(node)}")
    return 0


def _without_state(frame: holdfast.sessions.AgentFrame) -> dict[str, object]:
    """Return a frame's fields without its bytes; its ref stands for them."""
    import msgspec

    fields = msgspec.structs.asdict(frame)
    fields.pop("execution_state")
    return fields


def require_session(store: holdfast.BlockingStore, session_id: str) -> None:
    """Raise `UnknownSession` if nothing is stored for the id, so that a wrong id does not look like an idle session."""
    session = store.sessions.handle(session_id)
    if not (
        session.meta() is not None
        or session.load(holdfast.sessions.ActivePath(last=0)) is not None
        or store.leases.holder(holdfast.leases.OnSession(session_id)) is not None
        or store.queue.list(session_id, limit=1).items
        or session.attachments.list(limit=1).items
    ):
        raise holdfast.UnknownSession(session_id)


def history(call: Call) -> int:
    """List the retained revisions."""
    given = call.options
    with call.store() as store:
        session = store.sessions.handle(given.session)
        page = session.history(after=given.after, newest_first=not given.oldest_first, limit=given.limit)
        if not page.items and given.after is None:
            require_session(store, given.session)
    return show_page(
        call,
        page,
        ("revision", "turn", "leaf", "tokens", "committed"),
        [
            (one.revision, one.turn_id, one.leaf, sum(part.total for part in one.usage), moment(one.committed_at_ms))
            for one in page
        ],
    )


def graph(call: Call) -> int:
    """Draw the conversation as a tree."""
    from holdfast.cli import drawing

    terminal = call.terminal
    with call.store() as store:
        view, nodes = _outline(store.sessions.handle(call.options.session), call.options.at)
        if view is None:
            require_session(store, call.options.session)
    leaf = None if view is None else view.graph.leaf
    lines = list(drawing.draw(nodes, leaf, unicode=terminal.draws))
    hidden = 0 if view is None else max(0, view.node_count - len(nodes))
    columns = terminal.columns
    if call.options.json:
        terminal.json(
            {
                "session_id": call.options.session,
                "revision": 0 if view is None else view.revision,
                "leaf": leaf,
                "tombstoned": hidden,
                "nodes": [
                    {
                        "id": line.node_id,
                        "parent": None if line.node is None else line.node.parent,
                        "kind": None if line.node is None else line.node.kind,
                        "mark": line.mark,
                    }
                    for line in lines
                ],
            }
        )
        return 0
    for line in lines:
        mark = (MARKS[line.mark][0 if terminal.draws else 1], COLOURS[line.mark])
        text: list[Part] = [(f"{line.node_id}  tombstoned", "dim")]
        head = "  <- head" if line.node_id == leaf else ""
        if line.node is not None:
            before = f"{line.node_id}  {line.node.kind}  "
            payload = str(line.node.payload)
            if columns is not None:
                room = columns - columns_of(f"{line.rails}* {before}{head}")
                payload = payload if columns_of(payload) <= room else f"{beginning(payload, max(0, room - 1))}…"
            text = [f"{line.node_id}  ", (line.node.kind, "dim"), f"  {payload}"]
        terminal.line(line.rails, mark, " ", *text, (head, "green"))
    terminal.line(f"{len(nodes)} nodes, {hidden} tombstoned, revision {0 if view is None else view.revision}")
    return 0


def _outline(
    session: holdfast.blocking.Session, at: int | None
) -> tuple[holdfast.sessions.SessionView | None, list[holdfast.Node]]:
    """Read the head, and every node with a one-line gist of its payload. Payloads are read a page at a time."""
    view: holdfast.sessions.SessionView | None = None
    nodes: list[holdfast.Node] = []
    for tries_left in reversed(range(OUTLINE_TRIES)):
        try:
            view, nodes = _seen(session, at)
        except holdfast.InvalidRequest as error:
            # The graph was replaced between two of its pages.
            if error.field != "after":
                raise
            if not tries_left:
                raise Refused(
                    "the graph is replaced while it is read, again and again: name a revision with --at"
                ) from error
            continue
        now = session.load(holdfast.sessions.ActivePath(last=0), at=at)
        if view is None or now is None or (now.revision, now.node_count) == (view.revision, view.node_count):
            break
    return view, nodes


def _seen(
    session: holdfast.blocking.Session, at: int | None
) -> tuple[holdfast.sessions.SessionView | None, list[holdfast.Node]]:
    import msgspec

    from holdfast.cli import rendering

    view = session.load(holdfast.sessions.ActivePath(last=0), at=at)
    if view is None:
        return None, []
    return view, [
        msgspec.structs.replace(node, payload=rendering.line_of(node), caused_by=None)
        for node in every(session.nodes, at=at, limit=200)
    ]


def fork(call: Call) -> int:
    """Fork a new session from a point of another."""
    given = call.options
    if given.at is not None and given.at_revision is not None:
        raise Misused("--at and --at-revision name two points to fork from: give one")
    require_ordinary(given.into)
    at: str | int | None = given.at if given.at is not None else given.at_revision
    with call.store() as store:
        session = store.sessions.fork(given.session, into=given.into, at=at, name=given.name, owner=given.owner)
        view = session.load(holdfast.sessions.ActivePath(last=0))
    leaf = None if view is None else view.graph.leaf
    if call.options.json:
        call.terminal.json({"session_id": given.into, "source": given.session, "at": at, "revision": 1, "leaf": leaf})
    else:
        call.terminal.line(f"forked {given.session} into {given.into}, leaf {leaf or '-'}")
    return 0


def delete(call: Call) -> int:
    """Erase a session."""
    session_id: str = call.options.session
    with call.store() as store:
        require_session(store, session_id)
        call.confirm(
            f"Erase session {session_id!r}{' and all its descendants' if call.options.tree else ''} "
            "with its history, queue, grants and subscriptions?"
        )
        report = store.sessions.delete(
            session_id, expected_revision=call.options.expected_revision, tree=call.options.tree
        )
    show_report(call, report)
    return 0 if report.deleted else 1


def show_report(call: Call, report: Any) -> None:
    """Print a report field by field."""
    import msgspec

    if call.options.json:
        call.terminal.json(report)
        return
    fields: dict[str, Any] = msgspec.structs.asdict(report)
    call.terminal.fields(
        (name.replace("_", " "), (", ".join(value) or None) if name.endswith("_ids") else value)
        for name, value in fields.items()
    )


COMMANDS = (
    Command(
        "sessions list",
        "list sessions",
        list_sessions,
        (
            argument("--owner", metavar="OWNER", help="only sessions of this owner"),
            argument("--parent", metavar="SESSION", help="only sessions started by or forked from this session"),
            argument("--prefix", metavar="TEXT", help="only ids that begin so, in the order of ids"),
            argument(
                "--label",
                metavar="KEY=VALUE",
                type=label,
                action="append",
                default=[],
                help="only sessions with this label",
            ),
            argument("--changed-since", metavar="MS", type=whole, help="only changes since then, in order of change"),
            argument("--newest-first", action="store_true", help="by the last change, the newest first"),
            *PAGE,
        ),
        (
            "holdfast sessions list --owner ada",
            "holdfast sessions list --label user=u1 --label project=home --newest-first",
            "holdfast sessions list --prefix user-1/ --json --limit 1000",
        ),
        f"{PAGE_JSON} An item is a `SessionSummary`.",
    ),
    Command(
        "sessions show",
        "show one session",
        show,
        (
            SESSION,
            argument("--last", metavar="N", type=whole, default=10, help="nodes of the path to show (default 10)"),
        ),
        ("holdfast sessions show chat-42", "holdfast sessions show chat-42 --last 0 --json"),
        "An object: `session_id`, `meta` (a `SessionMeta` or null), `revision`, `node_count`, `leaf`, `config`, "
        "`frames` (without their bytes), `current_frame_id`, `checkpoint_ref`, `components` (name to ref), `ledger`, "
        "`lease` (a `LeaseHolder` or null), `unsettled_batches` (at most 1000), `paused`, `path` (the newest nodes).",
    ),
    Command(
        "sessions history",
        "list a session's retained revisions",
        history,
        (SESSION, argument("--oldest-first", action="store_true", help="the oldest first"), LIMIT, AFTER),
        ("holdfast sessions history chat-42", "holdfast sessions history chat-42 --oldest-first --json"),
        f"{PAGE_JSON} An item is a `Revision`.",
    ),
    Command(
        "sessions graph",
        "draw a session's conversation as a tree",
        graph,
        (SESSION, argument("--at", metavar="REVISION", type=whole, help="as it was at this revision")),
        ("holdfast sessions graph chat-42", "holdfast sessions graph chat-42 --at 3"),
        "An object: `session_id`, `revision`, `leaf`, `tombstoned` (how many), `nodes` in the order of the drawing, "
        "each with `id`, `parent`, `kind` and `mark` (`head`, `path`, `side` or `tombstone`).",
        "A tombstoned node is drawn if a visible one or the head still points at it, and counted in any case.",
    ),
    *files.COMMANDS,
    Command(
        "sessions label",
        "show or change the labels of a session",
        label_session,
        (
            SESSION,
            argument("labels", metavar="KEY=VALUE", type=label, nargs="*", help="a label to set"),
            argument("--remove", metavar="KEY", action="append", default=[], help="a label to remove"),
        ),
        ("holdfast sessions label chat-42 user=u1 project=home", "holdfast sessions label chat-42 --remove project"),
        "An object: `session_id` and `labels`, all labels of the session afterwards.",
        "Keeps labels that it does not name. Without arguments, shows all labels.",
    ),
    Command(
        "sessions fork",
        "start a session from a point in another",
        fork,
        (
            SESSION,
            argument("into", metavar="NEW", help="the new session's id"),
            argument("--at", metavar="NODE", help="from this node"),
            argument("--at-revision", metavar="N", type=whole, help="from this revision"),
            argument("--name", metavar="NAME", help="name of the new session"),
            argument("--owner", metavar="OWNER", help="owner of the new session"),
        ),
        ("holdfast sessions fork chat-42 chat-43", "holdfast sessions fork chat-42 retry-1 --at n7"),
        "An object: `session_id`, `source`, `at`, `revision`, `leaf`.",
    ),
    Command(
        "sessions delete",
        "erase a session",
        delete,
        (
            SESSION,
            argument("--tree", action="store_true", help="with all its descendants: children, forks and theirs"),
            argument("--expected-revision", metavar="N", type=whole, help="only if the head is at this revision"),
            YES,
        ),
        ("holdfast sessions delete chat-42", "holdfast sessions delete chat-42 --tree --yes --json"),
        "A `SessionDeletionReport`.",
        "Asks first. Processes continue; the output lists those without a session.",
    ),
)
