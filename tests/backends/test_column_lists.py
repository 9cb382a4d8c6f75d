"""The lists of columns in SQL are the fields of the rows that they fill, in the same order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast
from holdfast import table_catalog
from holdfast.rows import Row

BACKENDS = Path(holdfast.__file__).parent / "backends"
LIST = re.compile(r"^-- columns: (\w+)_columns\n((?:[^-\n].*\n)+)", re.MULTILINE)
assert table_catalog, "imports the modules of all rows"
ROWS = {kind.__name__.removesuffix("Row").lower(): kind for kind in Row.__subclasses__()}
NOT_STORED = {"node": ("parent_id",)}
"""Fields that are read from another row."""


def lists_of(backend: str) -> list[tuple[str, list[str]]]:
    files = sorted((BACKENDS / backend / "sql").glob("*.sql"))
    found = [match for file in files for match in LIST.findall(file.read_text(encoding="utf-8"))]
    return [(name, columns.replace(",", " ").split()) for name, columns in found]


@pytest.mark.parametrize("backend", ["postgres", "sqlite"])
def test_a_list_of_columns_is_the_fields_of_its_row(backend: str) -> None:
    lists = lists_of(backend)
    assert len(lists) > 15
    for name, columns in lists:
        left_out = NOT_STORED.get(name, ())
        assert columns == [field for field in ROWS[name].__struct_fields__ if field not in left_out], name
