"""Lines that several server functions share stand once, and each function that names them gets them."""

from __future__ import annotations

import re
from importlib.resources import files

from holdfast.backends.postgres.schema_setup import FUNCTION_FILES, ddl_text, functions_text

FOLDER = files("holdfast.backends.postgres")


def test_every_fragment_is_used_more_than_once() -> None:
    names = re.findall(
        r"^-- fragment: (\w+)$", FOLDER.joinpath("fragments.sql").read_text(encoding="utf-8"), re.MULTILINE
    )
    sources = "".join(FOLDER.joinpath(name).read_text(encoding="utf-8") for name in FUNCTION_FILES)
    assert {name: sources.count(f"{{{name}}}") > 1 for name in names} == dict.fromkeys(names, True)


def test_no_name_of_a_fragment_is_left_in_the_statements() -> None:
    assert re.findall(r"\{[a-z]\w*\}", ddl_text("holdfast")) == []


def test_a_fragment_has_the_indentation_of_its_line() -> None:
    text = functions_text("holdfast")
    assert "\n    IF current_setting('transaction_isolation') NOT IN" in text
    assert "\n        verdict := 'isolation';" in text
