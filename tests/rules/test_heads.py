"""A head at another revision than the expected one is a conflict that says where the head is."""

from __future__ import annotations

import pytest

from holdfast.errors import HeadConflict
from holdfast.rows import SessionRow
from holdfast.rules.heads import require_revision

AT_THREE = SessionRow(7, "chat", 1, 7, revision=3, node_count=0, epoch=0, lineage=b"[]", changed_at_ms=90)


@pytest.mark.parametrize("expected", [None, 3])
def test_the_expected_head_is_accepted(expected: int | None) -> None:
    require_revision(AT_THREE, expected)


@pytest.mark.parametrize("expected", [0, 2, 4])
def test_another_head_is_refused(expected: int) -> None:
    with pytest.raises(HeadConflict) as info:
        require_revision(AT_THREE, expected)
    assert (info.value.session_id, info.value.expected, info.value.actual) == ("chat", expected, 3)
