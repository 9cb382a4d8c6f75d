"""Runs every example of the adapters' docstrings."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from tests.adapters.conftest import missing
from tests.docs.examples import examples, run


def is_of_an_adapter(module: str) -> bool:
    """Return True for a module of an adapter whose framework is installed."""
    return module.startswith("holdfast.adapters.") and module.split(".")[2] not in missing()


EXAMPLES = list(examples(is_of_an_adapter))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_docstring_example_does_what_it_says(
    example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(example)
