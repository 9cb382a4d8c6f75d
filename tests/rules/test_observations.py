"""An observation reports an operation's outcome and its subject."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.errors import SchemaTooNew, StoreClosed
from holdfast.leases import Lease, OnProcess, OnSession, Token
from holdfast.processes import External
from holdfast.rules.observations import LONGEST_ID, outcome_of, subject_of


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (holdfast.HeadConflict("chat", 1, 2), "refused"),
        (holdfast.InvalidRequest("field", "reason"), "refused"),
        (holdfast.UnknownProcess("p"), "refused"),
        (holdfast.WaitTimeout("work", 10), "refused"),
        (holdfast.Unavailable("away"), "failed"),
        (StoreClosed(), "failed"),
        (SchemaTooNew(2, 1), "failed"),
        (holdfast.Corrupt("nodes", "1", "torn"), "failed"),
        (ZeroDivisionError(), "failed"),
        (asyncio.CancelledError(), "cancelled"),
        (KeyboardInterrupt(), "cancelled"),
        (GeneratorExit(), "cancelled"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_refusal_is_an_answer_and_a_failure_is_not(error: BaseException | None, outcome: str) -> None:
    assert outcome_of(error) == outcome


LEASE = Lease(OnProcess("p"), "w", Token("t"), 1, 0, 1)


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [
        ([("session_id", "chat"), ("batch_id", "b")], ("chat", None)),
        ([("process_id", "p"), ("type", "progress")], (None, "p")),
        ([("source", "chat"), ("into", "fork")], ("fork", None)),
        ([("scope", holdfast.Scope("chat", "frame")), ("process_id", "p")], ("chat", "p")),
        ([("registration", holdfast.ProcessRegistration("p", External()))], (None, "p")),
        ([("lease", LEASE)], (None, "p")),
        ([("resource", OnSession("chat"))], ("chat", None)),
        ([("draft", holdfast.WorkDraft(session_id="chat", payloads=[]))], ("chat", None)),
        ([("source", holdfast.Scope("one")), ("target", holdfast.Scope("two"))], ("one", None)),
        ([("session_id", "first"), ("draft", holdfast.WorkDraft(session_id="second", payloads=[]))], ("first", None)),
        ([("session_id", 7), ("process_id", None), ("payload", {"session_id": "secret"})], (None, None)),
        ([("payload", "secret"), ("source", "secret"), ("reason", "secret")], (None, None)),
        ([("draft", holdfast.WorkDraft(session_id=7, payloads=[]))], (None, None)),  # type: ignore[arg-type]
        ([("session_id", "x" * 10_000)], ("x" * LONGEST_ID, None)),
    ],
)
def test_a_subject_is_named_by_id_or_record_and_never_by_content(
    arguments: list[tuple[str, Any]], subject: tuple[str | None, str | None]
) -> None:
    assert subject_of(arguments) == subject
