"""Checked values belong to the store: later changes by the caller to its own objects have no effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import codec
from holdfast.records.checkpoints import Checkpoint
from holdfast.records.commits import Commit
from holdfast.records.events import Const, EventType, Payload, TerminalRule, WakeRule
from holdfast.records.graph import AgentFrame, Append, Node
from holdfast.records.limits import Limits
from holdfast.records.processes import (
    Completed,
    Engine,
    External,
    ExternalRef,
    Process,
    ProcessIdentity,
    ProcessRegistration,
    Provenance,
    ToolCall,
)
from holdfast.records.queue import WorkDraft
from holdfast.records.sessions import Child, Root, SessionMeta
from holdfast.records.triggers import Fixed, SubscriptionDraft
from holdfast.rules import commits, events, processes, queue, sessions, triggers

LIMITS = Limits()


class Documents:
    """Mutable documents that a caller keeps, and changes after the check."""

    def __init__(self) -> None:
        self._made: list[Any] = []

    def one(self) -> Any:
        """Return a document that is valid when it is checked."""
        document = {"v": [1]}
        self._made.append(document)
        return document

    def listing(self, *items: Any) -> list[Any]:
        """Return a list of records."""
        made = list(items)
        self._made.append(made)
        return made

    def mapping(self, **items: Any) -> dict[str, Any]:
        """Return records by name."""
        self._made.append(items)
        return items

    def spoil(self) -> None:
        """Put a value into each of them that no check would accept."""
        for made in self._made:
            if isinstance(made, list):
                made.clear()
            else:
                if "v" in made:
                    made["v"].append(float("nan"))
                made.clear()
                made["spoilt"] = {1, 2}


def _event(documents: Documents) -> Any:
    given = documents.one()
    return events.check_event("p", "log", given, replay_key=None, wake_target=None, limits=LIMITS)


def _planned(documents: Documents) -> Callable[[], Any]:
    """Plan an event that ends its process: the stored payload and its meaning come from the same copy."""
    kind = EventType("over", terminal=TerminalRule("completed", Payload()), wake=WakeRule(Payload()))
    registered = processes.check_registration(ProcessRegistration("p", External(), event_types=[kind]), LIMITS)
    row = processes.new_process(registered, now_ms=5)
    process: Process = processes.process_of(row)
    intent = events.check_event("p", "over", documents.one(), replay_key="k", wake_target=None, limits=LIMITS)
    return lambda: events.plan(intent, process, now_ms=9)


def _completion(documents: Documents) -> Any:
    return events.completion_event("p", Completed(documents.one()), LIMITS)


def _registration(documents: Documents) -> Any:
    one, listing = documents.one, documents.listing
    kinds = listing(EventType("log", schema={"type": "object"}, wake=WakeRule(Const(one()))))
    return processes.check_registration(
        ProcessRegistration(
            "p",
            ToolCall("c", "t", "tool", one()),
            ProcessIdentity("k", "l", one()),
            event_types=kinds,
            provenance=Provenance(caused_by=one()),
            env_ref="env",
        ),
        LIMITS,
    )


def _subscription(documents: Documents) -> Any:
    one = documents.one
    return triggers.check_subscription(
        SubscriptionDraft(
            source_type="timer",
            target=Engine("python", one()),
            source=one(),
            env_ref="env",
            input_template=documents.mapping(n=Fixed(one())),
            event_types=documents.listing(EventType("news")),
            target_identity=ProcessIdentity("k", "l", one()),
        ),
        LIMITS,
    )


def _occurrence(documents: Documents) -> Any:
    return triggers.check_occurrence("timer", "k", "i", documents.one(), documents.one(), LIMITS)


def _commit(documents: Documents) -> Any:
    one, listing = documents.one, documents.listing
    nodes = listing(Node("n", payload=one(), caused_by=one()))
    frame = AgentFrame("f", caused_by=one(), assignment=one(), turn_options=one())
    return commits.check_commit(
        Commit(
            session_id="chat",
            graph=Append(nodes, leaf="n"),
            checkpoint=Checkpoint(turn_state=one(), tool_state=one()),
            config=one(),
            frames=listing(frame),
            enqueues=listing(WorkDraft(payloads=listing(one()))),
        ),
        "chat",
        LIMITS,
        seed="seed",
    )


CHECKS: dict[str, Callable[[Documents], Any]] = {
    "event": _event,
    "completion": _completion,
    "registration": _registration,
    "external ref": lambda documents: processes.check_external_ref(ExternalRef("ci", "1", documents.one()), LIMITS),
    "subscription": _subscription,
    "metadata": lambda documents: sessions.check_meta(
        SessionMeta("chat", "Chat", 1, relation=Child("parent", documents.one())), LIMITS
    ),
    "occurrence": _occurrence,
    "commit": _commit,
    "work": lambda documents: queue.check_draft(
        "draft", WorkDraft(session_id="chat", payloads=documents.listing(documents.one())), LIMITS
    ),
}


@pytest.mark.parametrize("check", CHECKS)
def test_checked_values_do_not_change_with_the_callers_objects(check: str) -> None:
    sent, kept = Documents(), Documents()
    before, checked = CHECKS[check](kept), CHECKS[check](sent)
    assert checked == before
    sent.spoil()
    assert checked == before
    assert codec.encode_canonical(codec.document_of(checked)) == codec.encode_canonical(codec.document_of(before))


def test_the_meaning_of_an_event_is_selected_from_the_stored_declaration() -> None:
    documents = Documents()
    plan = _planned(documents)
    documents.spoil()
    found = plan()
    assert found.row.payload == b'{"v":[1]}'
    assert found.outcome == Completed({"v": [1]})


def test_a_root_has_nothing_that_could_change() -> None:
    assert sessions.check_meta(SessionMeta("chat", "Chat", 1), LIMITS).relation == Root()
