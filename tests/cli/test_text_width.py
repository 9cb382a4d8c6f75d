"""Texts are measured and cut by the columns that a terminal gives them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.terminal import clipped, shortened
from holdfast.cli.text_width import columns_of, padded, wrapped

LETTERS = st.text(st.sampled_from("ab 会話e\u0301한ｱ\uff21🙂-"))


@pytest.mark.parametrize(("text", "columns"), [("", 0), ("chat", 4), ("会話", 4), ("e\u0301", 1), ("ｱ\uff21", 3)])
def test_a_letter_takes_the_columns_of_a_terminal(text: str, columns: int) -> None:
    assert columns_of(text) == columns


@given(LETTERS, st.integers(2, 12))
def test_a_cut_text_fits_and_tells_that_it_was_cut(text: str, most: int) -> None:
    for cut in (shortened(text, most), clipped(text, most)):
        assert columns_of(cut) <= most
        assert cut == text or "…" in cut
        assert cut == text or columns_of(text) > most
    head, _, tail = shortened(text, most).partition("…")
    assert text.startswith(head)
    assert text.endswith(tail)


@given(LETTERS, st.integers(0, 12), st.booleans())
def test_a_padded_text_has_the_width(text: str, width: int, right: bool) -> None:
    filled = padded(text, width, right=right)
    assert columns_of(filled) == max(width, columns_of(text))
    assert filled.endswith(text) if right else filled.startswith(text)


@given(LETTERS, st.integers(2, 12))
def test_wrapped_lines_fit_and_hold_every_letter_in_its_order(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert all(line and columns_of(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == "".join(text.split())


def test_words_stay_whole_where_they_fit() -> None:
    assert wrapped("one two three", 7) == ["one two", "three"]
    assert wrapped("会話 会話 x", 6) == ["会話", "会話 x"]
