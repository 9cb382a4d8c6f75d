"""A grant belongs to exactly one scope: a session is not its frame, and a frame is not its session."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Corrupt, InvalidRequest
from holdfast.records.common import Scope
from holdfast.records.grants import Grant, GrantedProcess, HandleDescriptor
from holdfast.records.limits import Limits
from holdfast.records.processes import External, ProcessRegistration
from holdfast.rows import GrantRow
from holdfast.rules import grants, processes

STEADY = settings(derandomize=True, deadline=None)
LIMITS = Limits()


def test_a_descriptor_may_say_nothing() -> None:
    for descriptor in (HandleDescriptor(), HandleDescriptor("kind", ""), HandleDescriptor(None, "label")):
        assert grants.check_descriptor(descriptor, LIMITS) == descriptor


@pytest.mark.parametrize(
    ("descriptor", "field"),
    [
        ("label", "descriptor"),
        (HandleDescriptor(5), "descriptor.kind"),  # type: ignore[arg-type]
        (HandleDescriptor("k", "a\0"), "descriptor.label"),
    ],
)
def test_a_descriptor_that_is_not_text_is_refused(descriptor: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        grants.check_descriptor(descriptor, LIMITS)
    assert info.value.field == field


def test_a_session_itself_is_the_frame_without_a_name() -> None:
    assert grants.place(Scope("chat")) == ("chat", "")
    assert grants.place(Scope("chat", "f")) == ("chat", "f")
    assert grants.row_of(Scope("chat"), "build", HandleDescriptor("k")) == GrantRow(
        "chat", "", "build", b'\x01{"kind":"k","label":null}'
    )


@STEADY
@given(*[st.builds(Scope, st.text(min_size=1), st.none() | st.text(min_size=1))] * 2)
def test_a_grant_comes_back_with_its_own_scope_and_no_other(left: Scope, right: Scope) -> None:
    row = grants.row_of(left, "build", HandleDescriptor("k", "l"))
    assert grants.grant_of(row) == Grant(left, "build", HandleDescriptor("k", "l"))
    assert (grants.place(left) == grants.place(right)) is (left == right)


def test_a_grant_is_shown_with_its_process() -> None:
    process = processes.new_process(
        processes.check_registration(ProcessRegistration("build", External()), LIMITS), now_ms=50
    )
    row = grants.row_of(Scope("chat"), "build", HandleDescriptor())
    assert grants.granted(row, process) == GrantedProcess(Grant(Scope("chat"), "build"), processes.process_of(process))


@pytest.mark.parametrize("damaged", [b"", b"\x01[]", b'\x01{"kind":5}'])
def test_a_damaged_grant_is_reported(damaged: Any) -> None:
    with pytest.raises(Corrupt) as info:
        grants.grant_of(GrantRow("chat", "f", "build", damaged))
    assert (info.value.table, info.value.key) == ("grants", "chat/f/build")
