"""Finds the examples of docstrings, and runs one on a store in memory."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Callable, Iterable

import holdfast
from holdfast.testing.clock import ManualClock

OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def examples(wanted: Callable[[str], bool]) -> Iterable[doctest.DocTest]:
    """Return every docstring with an example, of the wanted modules of the package."""
    finder = doctest.DocTestFinder(exclude_empty=True, recurse=True)
    found: dict[str, doctest.DocTest] = {}
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if ".postgres" in module.name or module.name.endswith("__main__") or not wanted(module.name):
            continue
        for test in finder.find(importlib.import_module(module.name)):
            if test.examples:
                found[test.name] = test
    return found.values()


def run(example: doctest.DocTest) -> None:
    """Run an example, with a store under the name `store`. Its output must be as printed."""
    said: list[str] = []
    with holdfast.open_blocking("memory:", clock=ManualClock()) as store:
        example.globs = {"holdfast": holdfast, "store": store}
        result = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=said.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(said)
