"""A replacement whose answer was lost is found, known to be absent, or in doubt."""

from __future__ import annotations

import pytest

from holdfast.errors import Unavailable
from holdfast.rules.replacements import is_stored


def test_a_write_that_is_stored_as_wanted_was_applied() -> None:
    assert is_stored("mine", "mine", "name")


def test_a_call_without_a_value_was_not_applied() -> None:
    assert not is_stored(None, "mine", "name")


def test_another_value_leaves_it_unknown() -> None:
    with pytest.raises(Unavailable, match="name: the answer was lost") as doubt:
        is_stored("theirs", "mine", "name")
    assert doubt.value.outcome == "unknown"
