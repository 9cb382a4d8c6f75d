"""Steps on sessions: create, open, commit, read, fork, tombstone, delete and create again."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.state_machine import values
from tests.state_machine.machine import FORKS, SESSIONS, Handle, Machine, rule

import holdfast
from holdfast.sessions import ActivePath, Child, FullGraph, ReplaceGraph, Root, SessionMeta


@rule(4, first=3)
def create(m: Machine) -> None:
    relation = m.maybe(0.2, (Child("s1"), Child("s2", {"why": 1})))
    m.call(
        "sessions.create",
        m.pick(SESSIONS) if m.chance(0.95) else m.pick(FORKS),
        name=m.maybe(0.5, ("first", "", "ä")),
        owner=m.maybe(0.5, ("ada", "bob")),
        model=m.maybe(0.2, ("big",)),
        relation=relation or Root(),
    )


@rule(3)
def open_session(m: Machine) -> None:
    m.call("sessions.open", m.session_id())


@rule(1)
def unbound(m: Machine) -> None:
    handle = m.call("sessions.unbound")
    if m.chance(0.3):
        m.on(handle, "load")


@rule(30)
def commit(m: Machine) -> None:
    handle = m.handle()
    wanted = values.commit(m, handle)
    if m.known.commits and m.chance(0.15):
        handle, wanted = m.pick(m.known.commits)
        if m.chance(0.3):
            wanted = msgspec.structs.replace(wanted, config={"changed": True})
        elif m.chance(0.3):
            wanted = msgspec.structs.replace(wanted, expected_revision=0)
    m.known.commits.append((handle, wanted))
    receipt = m.on(handle, "commit", wanted)
    if receipt is None:
        # A stale revision is corrected sometimes; otherwise nothing would ever be accepted again.
        if m.chance(0.5) and handle.session_id is not None and refresh(m, handle) is None and handle in m.known.handles:
            m.known.handles.remove(handle)
        return
    m.known.revisions[receipt.session_id] = max(receipt.revision, m.known.revisions.get(receipt.session_id, 0))
    m.known.manifests.append(receipt.manifest)
    m.known.batches.extend((receipt.session_id, batch_id) for batch_id in receipt.enqueued)
    delta: Any = wanted.graph
    given = getattr(delta, "nodes", ())
    if isinstance(delta, ReplaceGraph):
        given = delta.graph.nodes
        m.known.nodes_of(receipt.session_id).clear()
    m.known.nodes_of(receipt.session_id).extend(node.id for node in given if node.id)
    if receipt.leaf is not None and not receipt.replayed:
        m.known.nodes_of(receipt.session_id).append(receipt.leaf)


def refresh(m: Machine, handle: Handle) -> Any:
    view = m.on(handle, "load", ActivePath(last=1))
    if view is not None:
        m.known.revisions[view.session_id] = view.revision
    return view


@rule(12)
def load(m: Machine) -> None:
    handle = m.handle()
    known = m.known.nodes_of(handle.session_id)
    scopes: list[Any] = [
        ActivePath(),
        ActivePath(last=m.rng.randint(0, 4)),
        ActivePath(leaf=m.maybe(0.9, known) or "nobody", last=m.maybe(0.3, (0, 2))),
        FullGraph(),
    ]
    at = m.rng.randint(0, m.known.revisions.get(handle.session_id or "", 0) + 1) if m.chance(0.4) else None
    view = m.on(handle, "load", m.pick(scopes), at=at)
    if view is not None:
        m.known.frame_refs.extend(f.execution_state_ref for f in view.frames if f.execution_state_ref is not None)


@rule(2)
def load_many(m: Machine) -> None:
    handle = m.handle()
    most = m.known.revisions.get(handle.session_id or "", 0) + m.rng.randint(0, 1)
    at = [m.rng.randint(1, most) for _ in range(m.rng.randint(0, 3))] if most else []
    m.on(handle, "load_many", at, last=m.maybe(0.3, (0, 2)))


@rule(2)
def load_node(m: Machine) -> None:
    handle = m.handle()
    m.on(handle, "load_node", m.maybe(0.9, m.known.nodes_of(handle.session_id)) or "nobody")


@rule(3)
def list_nodes(m: Machine) -> None:
    handle = m.handle()
    m.pages("nodes", on=handle, kind=m.maybe(0.3, ("event", "note")), newest_first=m.chance(0.5))


@rule(3)
def history(m: Machine) -> None:
    m.pages("history", on=m.handle(), newest_first=m.chance(0.5))


@rule(4)
def add_nodes(m: Machine) -> None:
    handle = m.handle()
    made = values.nodes(m, m.known.nodes_of(handle.session_id))
    if m.on(handle, "add_nodes", made) is not None:
        m.known.nodes_of(handle.session_id).extend(node.id for node in made if node.id)


@rule(3)
def tombstone(m: Machine) -> None:
    handle = m.handle()
    ids = m.some([*m.known.nodes_of(handle.session_id), "nobody"], most=2)
    m.on(handle, "tombstone", ids)
    again = [m.known.sent[one] for one in ids if one in m.known.sent]
    if again and m.chance(0.3):
        m.on(handle, "commit", holdfast.Commit(graph=holdfast.Append(again)))


@rule(2)
def meta(m: Machine) -> None:
    handle = m.handle()
    found = m.on(handle, "meta")
    if found is not None and m.chance(0.5):
        changed = msgspec.structs.replace(found, name=m.pick(("renamed", "ä")), owner=m.maybe(0.5, ("ada", "bob")))
        m.on(handle, "save_meta", changed)
    elif m.chance(0.3):
        m.on(handle, "save_meta", SessionMeta(m.session_id(), "given", 5))


@rule(4)
def list_sessions(m: Machine) -> None:
    m.pages(
        "sessions.list",
        owner=m.maybe(0.3, ("ada", "bob")),
        parent=m.maybe(0.3, (*SESSIONS, *FORKS)),
        changed_since_ms=m.maybe(0.4, (0, m.clock.now_ms() - 3000, m.clock.now_ms())),
        newest_first=m.chance(0.3),
        prefix=m.maybe(0.3, ("", "f", SESSIONS[0][:2])),
        labels=m.maybe(0.3, ({"a": "1"}, {"a": "2"}, {"a": "1", "b": "1"})) or {},
    )


@rule(2)
def set_labels(m: Machine) -> None:
    m.on(m.handle(), "set_labels", {key: m.maybe(0.7, ("1", "2")) for key in m.some(["a", "b"], most=2)})


@rule(4)
def fork(m: Machine) -> None:
    source = m.session_id()
    at: Any = None
    if m.chance(0.4):
        at = m.rng.randint(0, m.known.revisions.get(source, 0) + 1)
    elif m.chance(0.6):
        at = m.maybe(0.95, m.known.nodes_of(source)) or "nobody"
    into = m.pick(FORKS) if m.chance(0.8) else m.pick(SESSIONS)
    if m.chance(0.5):
        m.call("sessions.delete", into)
    first = m.maybe(0.3, (holdfast.Commit(turn_id=m.fresh("t"), config={"a": 1}), holdfast.Commit(expected_revision=2)))
    if m.call("sessions.fork", source, into=into, at=at, owner=m.maybe(0.3, ("ada",)), commit=first) is not None:
        m.known.revisions[into] = 1 if first is None else 2
        m.known.nodes_of(into).extend(m.known.nodes_of(source))


@rule(2)
def delete(m: Machine) -> None:
    session_id = m.session_id()
    expected = m.maybe(0.2, (m.known.revisions.get(session_id, 0), 1))
    report = m.call("sessions.delete", session_id, expected_revision=expected, tree=m.chance(0.2))
    if report is not None:
        for gone in report.descendant_ids:
            m.known.revisions.pop(gone, None)
    if report is not None and report.deleted:
        m.known.revisions.pop(session_id, None)
        if m.chance(0.6):
            m.call("sessions.create", session_id)


@rule(4)
def put_attachment(m: Machine) -> None:
    handle = m.handle()
    if m.chance(0.6):
        ref = m.on(
            handle,
            "attachments.put",
            m.pick(values.BODIES),
            media_type=m.pick(("image/png", "text/plain")),
            width=m.maybe(0.3, (4,)),
            label=m.maybe(0.3, ("a cat", "ä")),
        )
        if ref is not None:
            m.known.attachments.append((handle, ref.id))
        return
    name = m.pick(("photo-1", "photo-2"))
    uri = m.pick(("s3://b/1", "s3://b/2"))
    if m.on(handle, "attachments.record_intent", name, uri=uri, byte_count=m.pick((0, 7))) is not None:
        m.known.attachments.append((handle, name))


@rule(4)
def use_attachment(m: Machine) -> None:
    handle, name = m.maybe(0.95, m.known.attachments) or (m.handle(), "nobody")
    if m.chance(0.3):
        handle = m.handle()
    method = m.pick(("get", "entry", "forget", "commit_refs", "list", "list_uncommitted"))
    if method in ("get", "entry", "forget"):
        m.on(handle, f"attachments.{method}", name)
    elif method == "commit_refs":
        m.on(handle, "attachments.commit_refs", [name, "nobody"])
    elif method == "list":
        m.pages("attachments.list", on=handle)
    else:
        until = m.maybe(0.4, (m.clock.now_ms() - 1000, 0))
        m.pages("attachments.list_uncommitted", on=handle, **({} if until is None else {"intent_until_ms": until}))


@rule(2)
def all_attachments(m: Machine) -> None:
    if m.chance(0.5):
        m.pages("attachments.list_uncommitted", intent_until_ms=m.pick((2**63 - 1, m.clock.now_ms() - 500)))
    else:
        m.call("attachments.sweep", older_than_ms=m.pick((0, 500, 5000)))
