"""A page takes rows until its byte limit, and at least one row."""

from __future__ import annotations

import pytest

from holdfast import columns


@pytest.mark.parametrize(
    ("weights", "count"),
    [([], 0), ([0, 0], 2), ([9], 1), ([99, 1], 2), ([4, 4, 4], 3), ([4, 6, 1], 2), ([10, 0], 1), ([0, 10, 0], 2)],
)
def test_a_page_ends_with_the_row_with_which_it_has_its_bytes(
    weights: list[int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "PAGE_BYTES", 100 if 99 in weights else 10)
    assert columns.fitting(weights) == count


def test_only_documents_and_contents_weigh() -> None:
    assert columns.weight(("text", 7, None, b"12345", b"")) == 5
