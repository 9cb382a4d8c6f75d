"""Rows from a database are checked one by one or many at once, and a damaged one is named either way."""

from __future__ import annotations

import pytest

from holdfast import rows as r
from holdfast.errors import Corrupt

FEW, MANY = 2, 40


def usage(number: int) -> tuple[object, ...]:
    return (f"source-{number}", "model", number, 2, 3, 4, number)


@pytest.mark.parametrize("count", [0, 1, FEW, MANY])
def test_every_row_comes_back_in_its_order(count: int) -> None:
    rows = r.rows_of(r.UsageRow, [usage(number) for number in range(count)], table="usage", key_columns=2)
    assert [(row.source, row.input_tokens, row.place) for row in rows] == [
        (f"source-{number}", number, number) for number in range(count)
    ]


@pytest.mark.parametrize("count", [1, FEW, MANY])
@pytest.mark.parametrize("damage", ["text", None, -1, 1.5])
def test_the_damaged_row_is_named(count: int, damage: object) -> None:
    found = [usage(number) for number in range(count)]
    found[-1] = (*found[-1][:2], damage, *found[-1][3:])
    with pytest.raises(Corrupt, match="a column has the wrong type") as refused:
        r.rows_of(r.UsageRow, found, table="usage", key_columns=2)
    assert (refused.value.table, refused.value.key) == ("usage", f"('source-{count - 1}', 'model')")
