"""Runs every example of the docstrings and of the pages that a reader starts with."""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.docs.examples import examples, run

import holdfast
import holdfast.store
from holdfast.public_names import places, value_at

ROOT = Path(__file__).resolve().parent.parent.parent
FACETS = [
    getattr(holdfast.store, name)
    for name in sorted(set(holdfast.store.__all__) - {"Context", "Store"})
    if inspect.isclass(getattr(holdfast.store, name))
]


def public_methods(facet: type) -> Iterator[tuple[str, Any]]:
    for name, found in inspect.getmembers(facet, inspect.isfunction):
        if not name.startswith("_"):
            yield name, found


EXAMPLES = list(examples(lambda module: not module.startswith("holdfast.adapters.")))
"""Without those of the adapters, which have a file of their own: importing the frameworks takes seconds."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_docstring_example_does_what_it_says(
    example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(example)


@pytest.mark.parametrize("facet", FACETS, ids=lambda facet: facet.__name__)
def test_every_public_method_of_a_facet_has_an_example(facet: type) -> None:
    methods = dict(public_methods(facet))
    assert methods
    assert [name for name, method in methods.items() if ">>> " not in (method.__doc__ or "")] == []


@pytest.mark.parametrize("name", ["open", "open_blocking"])
def test_the_front_doors_have_examples(name: str) -> None:
    assert ">>> " in (getattr(holdfast, name).__doc__ or "")


@pytest.mark.parametrize("place", places())
def test_everything_public_says_what_it_is(place: str) -> None:
    public = value_at(place)
    if not inspect.isclass(public) and not inspect.isroutine(public):
        return  # a type alias; the reference's test covers its explanation
    # A struct without a docstring of its own would show its parent's, or a generated one.
    assert vars(public).get("__doc__") if inspect.isclass(public) else public.__doc__, place


# Pages.

FENCE = re.compile(r"^(?P<indent> *)```python\b[^\n]*\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
NO_RUN = "<!-- no-run -->"
ON_POSTGRES = "<!-- run on PostgreSQL -->"
SERVER = re.compile(r"postgresql://\w+@(?:db|replica)\.example\.net/agents")


class Block(NamedTuple):
    line: int
    code: str


def blocks_of(text: str, mark: str | None = None) -> list[Block]:
    """Return the fenced Python blocks preceded by this mark; without a mark, those that have none."""
    found: list[Block] = []
    for match in FENCE.finditer(text):
        before = text[: match.start()].rstrip("\n").rpartition("\n")[2].strip()
        if (before if before in (NO_RUN, ON_POSTGRES) else None) != mark:
            continue
        indent = len(match["indent"])
        code = "\n".join(line[indent:] for line in match["code"].splitlines())
        found.append(Block(text.count("\n", 0, match.start()) + 2, code))
    return found


def run_page(text: str, name: str, mark: str | None = None) -> int:
    """Run a page from top to bottom in one namespace, as a reader would; return the number of blocks."""
    namespace: dict[str, Any] = {"__name__": "page"}
    blocks = blocks_of(text, mark)
    for block in blocks:
        source = "\n" * (block.line - 1) + block.code
        # A reader's program has none of this file's `__future__` imports.
        code = compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, namespace))
        else:
            exec(code, namespace)
    return len(blocks)


PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]) if (ROOT / "README.md").exists() else []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page.read_text(encoding="utf-8"), str(page))


@pytest.mark.parametrize("number", [0, 1])
def test_a_block_of_the_readme_can_be_copied_alone(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(blocks) == 2
    assert run_page(f"```python\n{blocks[number].code}\n```\n", "README.md") == 1


POSTGRES_PAGES = [page for page in PAGES if ON_POSTGRES in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", POSTGRES_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_runs_on_postgresql(page: Path, clean_postgres_url: str) -> None:
    # The role is the administrator's: the rights that a lesser role needs are tested beside this.
    text = SERVER.sub(clean_postgres_url, page.read_text(encoding="utf-8"))
    assert clean_postgres_url in text
    assert run_page(text, str(page), ON_POSTGRES) == text.count(ON_POSTGRES)


def test_blocks_of_a_page_share_a_namespace_and_skipped_ones_are_skipped() -> None:
    skipped = "<!-- no-run -->\n```python\nx = 2\n```\n"
    page = f"```python\nx = 1\n```\n\n{skipped}\n```console\nx = 3\n```\n\n```python\nassert x == 1\n```\n"
    assert run_page(page, "a page") == 2


def test_a_block_that_is_wrong_fails_its_page() -> None:
    with pytest.raises(AssertionError):
        run_page("text\n\n```python\nassert 1 == 2\n```\n", "a page")
    with pytest.raises(NameError):
        run_page("```python\nawait nothing()\n```\n", "a page")
