"""Owner ids are unique by construction, and a label that cannot be part of one is refused."""

from __future__ import annotations

import os
from typing import Any

import pytest

import holdfast


def test_every_owner_id_is_another_one_and_names_the_worker() -> None:
    made = {holdfast.new_owner_id("mail") for _ in range(100)}
    assert len(made) == 100
    assert all(one.startswith("mail@") and f":{os.getpid()}:" in one for one in made)


@pytest.mark.parametrize("label", [5, None, b"mail", "", "x" * 65], ids=["number", "none", "bytes", "empty", "long"])
def test_an_invalid_label_is_refused(label: Any) -> None:
    with pytest.raises(holdfast.InvalidRequest) as info:
        holdfast.new_owner_id(label)
    assert info.value.field == "label"
