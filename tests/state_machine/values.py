"""Small pools of values: few enough to collide often, odd enough to find differences between databases."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from tests.state_machine.machine import OWNERS, PRELUDE, SESSIONS, Handle, Machine

import holdfast
from holdfast.events import Const, EventType, Payload, Pointer, Template, TerminalRule, WakeRule
from holdfast.leases import Lease, OnProcess, OnSession, Token
from holdfast.processes import BySession, Engine, External, Host, ProcessIdentity, Provenance, ToolCall
from holdfast.queue import Group, WorkCompletion
from holdfast.sessions import AgentFrame, FullGraph, Graph, Ref, ReplaceGraph, Unchanged
from holdfast.triggers import EventPayload, Fixed, SubscriptionDraft

DOCUMENTS: tuple[Any, ...] = (
    None,
    True,
    0,
    1,
    1.0,
    -0.0,
    1e300,
    2**63 - 1,
    -(2**63),
    2**64,
    float("nan"),
    "",
    "text",
    "a\0b",
    "\ud800",
    "Ünï😀 'quoted' \"twice\" %_",
    [],
    [1, [2, [3]]],
    {},
    {"b": 1, "a": {"c": [None, False]}},
    {"id": "kept", "parent": "kept", "created_at_ms": 7},
    {"input": "hello", "flag": 0, "who": "ada"},
    {"input": "hello", "flag": 1, "who": "bob"},
    [[[[[[[[[[["deep"]]]]]]]]]]],
    {1: "a key that is no text"},
    {"long": "x" * 3000},
)
GOOD_DOCUMENTS = tuple(
    one
    for one in DOCUMENTS
    if repr(one) not in {"nan", repr("\ud800"), repr({1: "a key that is no text"}), str(2**64)}
    and "deep" not in repr(one)
)
BODIES = (b"", b"\0\1\2", b"state", b"long " * 400, bytes(range(256)))
NAMES = ("Z", "a", "ä", "z", "\uffff", "😀", "a b", "a%", "a_")
"""Names whose order depends on how text is compared."""

SCOPES = tuple(holdfast.Scope(name, frame) for name in SESSIONS for frame in (None, "fr1"))
POINTER = Pointer("/input")
EVENT_TYPES = (
    EventType("progress"),
    EventType("news", wake=WakeRule(input=POINTER)),
    EventType(
        "once",
        wake=WakeRule(
            input=Template("{who} said {what}", {"who": Pointer("/who"), "what": POINTER}),
            when=Pointer("/flag"),
            dedupe=Const("the same"),
        ),
    ),
    EventType("strict", schema={"type": "object", "required": ["input"]}),
    EventType("done", terminal=TerminalRule("completed")),
    EventType("failed", terminal=TerminalRule("failed", outcome=POINTER)),
    EventType("late", after_terminal=True, wake=WakeRule(input=Payload())),
    EventType("signal.go"),
)


def document(m: Machine) -> Any:
    """Draw a document, mostly a valid one."""
    return m.pick(GOOD_DOCUMENTS if m.chance(0.97) else DOCUMENTS)


def node(m: Machine, known: Sequence[str] | deque[str], parents: list[str]) -> holdfast.Node:
    if m.chance(0.15):
        node_id = m.maybe(0.7, known) or m.pick(NAMES)
        sent = m.known.sent.get(node_id)
        if sent is not None and m.chance(0.7):
            return sent
    else:
        node_id = m.fresh("n")
    parent = m.pick(parents) if parents and m.chance(0.8) else m.maybe(0.8, known)
    if m.chance(0.03):
        parent = "nobody"
    made = holdfast.Node(
        "" if m.chance(0.15) else node_id,
        # A left-out parent is the node before.
        **({} if m.chance(0.4) else {"parent": parent}),
        kind=m.pick(("event", "note")),
        payload=document(m),
        frame_id=m.maybe(0.2, ("fr1",)),
        caused_by=document(m) if m.chance(0.1) else None,
        created_at_ms=m.maybe(0.2, (0, 5, 2**63 - 1)),
    )
    if made.id and made.id not in NAMES:
        m.known.sent[made.id] = msgspec.structs.replace(made, parent=UNSET)
    return made


def nodes(m: Machine, known: Sequence[str] | deque[str]) -> list[holdfast.Node]:
    """Draw a few nodes, mostly children of each other or of known ones."""
    made: list[holdfast.Node] = []
    for _ in range(m.rng.randint(1, 4 if m.chance(0.97) else 8)):
        made.append(node(m, known, [one.id for one in made if one.id]))
    if m.chance(0.1):
        m.rng.shuffle(made)
    return made


def draft(m: Machine, *, session_id: str | None) -> holdfast.WorkDraft:
    """Draw work to enqueue: new, sent again, or sent again with a change."""
    if m.known.drafts and m.chance(0.15):
        again = m.pick(m.known.drafts)
        return again if m.chance(0.7) else msgspec.structs.replace(again, payloads=[document(m)])
    made = holdfast.WorkDraft(
        session_id=session_id,
        payloads=[document(m) for _ in range(m.rng.randint(0, 2))],
        source_key=m.pick(("k1", "k2", "k3", m.fresh("k"))) if m.chance(0.5) else None,
        delivery="earliest_safe_boundary" if m.chance(0.75) else "after_current_turn_commit",
        slot="join" if m.chance(0.8) else "exclusive",
        merge_key=m.pick(("never", "payload_default", "payload_default", Group("g"), Group("h"))),
        available_at_ms=m.maybe(0.2, (m.clock.now_ms() + 700, 5, 2**63 - 1)) or 0,
        kind=m.pick(("turn", "turn", "turn", "mail")),
        priority=m.pick((0, 0, 0, 1, -1)),
        key=m.pick((None, None, "ada", "bob")),
    )
    if m.chance(0.1):
        made = holdfast.WorkDraft.command(session_id or m.session_id(), "refresh", idempotency_key=m.pick(("i1", "i2")))
    m.known.drafts.append(made)
    return made


def component(m: Machine) -> Any:
    if m.chance(0.25) and m.known.manifests:
        refs = sorted(m.pick(m.known.manifests).refs.values())
        if refs:
            return Ref(m.pick(refs))
    if m.chance(0.02):
        return Ref("bytes-sha256:" + "0" * 64)
    return m.pick(BODIES) if m.chance(0.5) else document(m)


def checkpoint(m: Machine) -> holdfast.Checkpoint:
    names = m.some(("turn_state", "tool_state", "plugin_state", "execution_state", "memory", "ä"), most=4)
    return holdfast.Checkpoint.of({name: component(m) for name in names})


def frames(m: Machine) -> list[AgentFrame]:
    return [
        AgentFrame(
            name,
            previous_frame_id=m.maybe(0.3, ("fr1", "fr2")),
            reason=m.pick(("initial", "handoff")),
            assignment=document(m),
            execution_state=m.pick(BODIES) if m.chance(0.5) else None,
            execution_state_ref=m.maybe(0.3, m.known.frame_refs),
        )
        for name in m.some(("fr1", "fr2", "fr3"), most=3)
    ]


def usage(m: Machine) -> list[holdfast.Usage]:
    counts = (0, 0, 1, 10, 2**62)
    return [
        holdfast.Usage(
            m.pick(("turn", "tool")),
            m.pick(("big", "small")),
            *(m.pick(counts[: 4 + (m.number % 9 == 0)]) for _ in range(4)),
        )
        for _ in range(m.rng.randint(0, 2))
    ]


def proof(m: Machine, session_id: str | None) -> holdfast.WorkClaim | WorkCompletion | None:
    """Draw a claim to settle: one of this session if there is any, however old, sometimes forged."""
    own = [claim for claim in m.known.claims if claim.session_id == session_id]
    options = own if own and m.chance(0.9) else list(m.known.claims)
    if not options:
        return None
    claim = options[-1] if m.chance(0.6) else m.pick(options)
    if m.chance(0.8):
        return claim if m.chance(0.5) else claim.completion()
    completion = claim.completion()
    forgeries: tuple[dict[str, Any], ...] = (
        {"token": Token("f" * 32)},
        {"fence": completion.fence + 1},
        {"batch_ids": completion.batch_ids[:-1]},
        {"batch_ids": (*completion.batch_ids, "batch:nobody")},
        {"batch_ids": completion.batch_ids[::-1]},
        {"claim_id": "claim:1:99"},
    )
    return msgspec.structs.replace(completion, **m.pick(forgeries))


def lease(m: Machine, resource: OnSession | OnProcess | None = None) -> Lease | None:
    """Draw a lease that was once granted, sometimes forged."""
    options = [one for one in m.known.leases if resource is None or one.resource == resource] or list(m.known.leases)
    if not options:
        return None
    chosen = options[-1] if m.chance(0.6) else m.pick(options)
    if m.chance(0.1):
        changes: tuple[dict[str, Any], ...] = ({"fence": chosen.fence + 1}, {"token": Token("f" * 32)})
        return msgspec.structs.replace(chosen, **m.pick(changes))
    return chosen


def resource(m: Machine) -> OnSession | OnProcess:
    return OnSession(m.session_id()) if m.chance(0.5) else OnProcess(m.pick(PROCESSES[:4]))


def graph_delta(m: Machine, handle: Handle, session_id: str) -> Any:
    known = m.known.nodes_of(session_id)
    kind = m.rng.random()
    if kind < 0.25:
        return Unchanged() if m.chance(0.6) else Unchanged(leaf=m.maybe(0.8, known))
    if kind < 0.88:
        made = nodes(m, known)
        if m.chance(0.4):
            return holdfast.Append(made)
        return holdfast.Append(made, leaf=made[-1].id if m.chance(0.85) and made[-1].id else m.maybe(0.8, known))
    kept: list[holdfast.Node] = []
    if m.chance(0.5) and handle.session_id is not None:
        view = m.on(handle, "load", FullGraph())
        kept = [] if view is None else list(view.graph.nodes)[: m.rng.randint(1, 5)]
    made = [*kept, *nodes(m, [one.id for one in kept])]
    if m.chance(0.5):
        return ReplaceGraph(Graph(made))
    return ReplaceGraph(Graph(made, leaf=made[-1].id if m.chance(0.8) and made[-1].id else None))


def attachments(m: Machine, session_id: str) -> list[str]:
    """Draw attachments, mostly those of the session, without which the turn is refused."""
    own = [name for handle, name in m.known.attachments if handle.session_id == session_id or m.chance(0.05)]
    return m.some(own, most=2)


def commit(m: Machine, handle: Handle) -> holdfast.Commit:
    session_id = handle.session_id or m.session_id()
    revision = m.known.revisions.get(session_id, 0)
    expected = m.pick((None, None, None, revision, revision, revision, revision, m.rng.randint(0, revision + 1)))
    claim = proof(m, session_id) if m.chance(0.3) else None
    target = m.session_id()
    return holdfast.Commit(
        session_id=session_id if handle.session_id is None or m.chance(0.1) else m.maybe(0.02, SESSIONS),
        turn_id=m.pick(("t1", "t2", m.fresh("t"))) if m.chance(0.4) else None,
        fingerprint=m.maybe(0.05, ("fp1", "fp2")),
        expected_revision=expected,
        graph=graph_delta(m, handle, session_id),
        checkpoint=checkpoint(m) if m.chance(0.4) else None,
        config=document(m) if m.chance(0.15) else None,
        frames=frames(m) if m.chance(0.2) else None,
        current_frame_id=m.maybe(0.1, ("fr1", "fr2")),
        usage=usage(m) if m.chance(0.3) else (),
        completes=[claim] if claim is not None else (),
        attachments=attachments(m, session_id) if m.chance(0.2) else (),
        enqueues=[draft(m, session_id=target if m.chance(0.3) else None) for _ in range(m.rng.randint(1, 2))]
        if m.chance(0.2)
        else (),
        tombstones=[m.maybe(0.9, m.known.nodes_of(session_id)) or "nobody"] if m.chance(0.1) else (),
        lease=lease(m, OnSession(session_id)) if m.chance(0.1) else None,
    )


PROCESSES = ("p1", "p2", "p3", *NAMES[:6])


def registration(m: Machine) -> holdfast.ProcessRegistration:
    process_id = m.pick(PROCESSES[:3]) if m.chance(0.6) else m.pick(PROCESSES)
    if m.number < len(PRELUDE):
        process_id = PROCESSES[m.number % 3]
    # Mostly the same definition for the same id, so that registering again is a replay.
    definition = None if process_id == "p1" else {"of": process_id}
    scope = SCOPES[PROCESSES.index(process_id) % len(SCOPES)]
    inputs = (External({"n": 1}), Engine("py", {"a": 1}), ToolCall("c", "t", "tool"))
    return holdfast.ProcessRegistration(
        process_id,
        inputs[0] if m.chance(0.9) else m.pick(inputs),
        identity=ProcessIdentity("job", label=process_id, definition=definition),
        event_types=EVENT_TYPES if m.chance(0.9) else EVENT_TYPES[:2],
        provenance=Provenance(BySession(scope)) if process_id != "p2" else Provenance(),
        env_ref=None if m.chance(0.95) else "env",
        wake_target=scope if process_id != "p3" else None,
    )


def subscription(m: Machine) -> SubscriptionDraft:
    templated = m.chance(0.3)
    target: Any = Engine("py", {"a": 1}) if templated else External({"n": 1})
    return SubscriptionDraft(
        source_type=m.pick(("cron", "hook")),
        source_key=m.maybe(0.8, ("d1", "d2")),
        source=m.maybe(0.3, ({"at": 7}, [1])),
        target=target,
        registrant=Host() if m.chance(0.4) else BySession(m.pick(SCOPES)),
        key=m.maybe(0.5, ("u1", "u2")),
        name=m.maybe(0.3, ("nightly", "ä")),
        payload_schema={"type": "object"} if m.chance(0.2) else {},
        target_identity=ProcessIdentity("job", definition={"d": 1}) if m.chance(0.3) else None,
        event_types=EVENT_TYPES[:2] if m.chance(0.3) else (),
        input_template={"who": EventPayload(), "x": Fixed(3)} if templated and m.chance(0.7) else {},
        env_ref="env" if templated else None,
        wake_target=m.maybe(0.4, SCOPES),
    )


def owner(m: Machine) -> str:
    return m.pick(OWNERS)
