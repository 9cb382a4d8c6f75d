"""Docstrings, comments and pages name the actor and lead with a verb: no relative openings, no people for programs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "tools", "benchmarks", "examples")
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
GENERATED = ROOT / "docs" / "reference"
OPENING = re.compile(r"(What|Who|Whom|Whose|Whoever|Whatever|Whether|How|Which|Those who)\b")
PEOPLE = re.compile(
    r"\b(some|every|any|no)(body|one else)\b|\b(someone|whoever|whom|he|his|him|himself)\b", re.IGNORECASE
)
SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n")
TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
COMMENT = re.compile(r"^ *# *(.*)|  # *(.*)", re.MULTILINE)
"""Also finds comments in code that is text. Telling them apart takes a tokeniser, and that a hundred times as long."""
CODE = re.compile(r"^(`{3,}).*?^\1$", re.DOTALL | re.MULTILINE)
MOST_OPENINGS = 1 / 1000
"""Of the words of all pages: titles such as "How to …" remain."""


def prose_of_python(source: str) -> Iterator[str]:
    """Yield docstrings without their examples, and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield re.split(r"^\s*>>> ", node.value.value, maxsplit=1, flags=re.MULTILINE)[0]
    for alone, behind in COMMENT.findall(source):
        yield alone or behind


def prose_of_sql(source: str) -> Iterator[str]:
    """Yield comments."""
    for line in source.splitlines():
        if line.lstrip().startswith("--"):
            yield line.lstrip(" -")


def faults(prose: str) -> list[str]:
    """Return the sentences that begin with a relative clause or have people in place of programs."""
    return [each for each in SENTENCE.split(prose) if OPENING.match(each.strip()) or PEOPLE.search(each)]


def faults_of_name(name: str) -> bool:
    """Return True if a name has people in place of programs."""
    return PEOPLE.search(name.replace("_", " ")) is not None


def sources(ending: str) -> list[Path]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob(f"*{ending}"))]
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]


def pages() -> list[Path]:
    found = [
        path for name in PAGES for path in ([ROOT / name] if name.endswith(".md") else (ROOT / name).rglob("*.md"))
    ]
    return [path for path in found if GENERATED not in path.parents]


def test_docstrings_and_comments_are_plain() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {fault.strip()}"
        for ending, prose_of in ((".py", prose_of_python), (".sql", prose_of_sql))
        for path in sources(ending)
        for prose in prose_of(path.read_text(encoding="utf-8"))
        for fault in faults(prose)
    ]
    assert found == []


def test_names_of_tests_are_plain() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(".py")
        for name in TEST.findall(path.read_text(encoding="utf-8"))
        if faults_of_name(name)
    ]
    assert found == []


def test_pages_are_plain() -> None:
    texts = {path: CODE.sub("", path.read_text(encoding="utf-8")) for path in pages()}
    people = [
        f"{path.relative_to(ROOT)}: {line}"
        for path, text in texts.items()
        for line in text.splitlines()
        if PEOPLE.search(line)
    ]
    assert people == []
    openings = [line for text in texts.values() for line in SENTENCE.split(text) if OPENING.match(line.strip("# "))]
    words = sum(len(text.split()) for text in texts.values())
    assert len(openings) <= words * MOST_OPENINGS, openings


@pytest.mark.parametrize(
    "prose",
    ["What the call gives.", "Runs. Whoever waits, goes.", "Waits for somebody.", "Keeps his lock.", "a\nHow it ends."],
)
def test_a_fault_is_noticed(prose: str) -> None:
    assert len(faults(prose)) == 1


@pytest.mark.parametrize("prose", ["Return whether it holds.", "The server that answers.", "This shows the history."])
def test_a_plain_sentence_is_not_mistaken_for_a_fault(prose: str) -> None:
    assert faults(prose) == []


@pytest.mark.parametrize(("name", "faulty"), [("test_a_refusal_wakes_nobody", True), ("test_a_history_is_kept", False)])
def test_people_in_the_name_of_a_test_are_noticed(name: str, faulty: bool) -> None:
    assert faults_of_name(name) is faulty
