"""Texts that a person reads name the actor and lead with a verb: no relative openings, no people for programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "tools", "benchmarks", "examples")
SPOKEN = ("src", "tools", "benchmarks", "examples")
"""Folders whose string literals are errors, help, log lines, or lines of a generated page."""
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "RELIABILITY.md", "docs", "benchmarks")

OPENING = r"(?:What|Who|Whom|Whose|Whoever|Whatever|Whether|How|Which|Those who)\b(?![^.!?\n]*\?)"
"""Questions are not meant."""
FAULTS = (
    r"(?:some|every|any|no)(?:body|one else)\b|(?:someone|whoever|whom|he|his|him|himself|those who)\b",
    r"(?:go|goes|going|gone|went) on\b(?! (?:top|the|a|an|its|one|both|each|every|this|that)\b)",
    r"(?:is|are|was|were|be|been) (?:not )?(?:(?-i:none)|told|said|ours)\b|hears?\b|heard\b",
    r"no harm\b|a look\b(?!-)|(?:of|not) ours\b",
    r"(?:waiters?|callers?|clients?|threads?|workers?|owners?|holders?|readers?|writers?|one|others|wakes|by) who\b",
    r"(?<!there\s)(?:is|are) no (?!longer\b|more\b|later\b|earlier\b|larger\b|older\b|such\b)[a-z]",
)
FAULT = re.compile(rf"\b(?:{'|'.join(FAULTS)})".replace(" ", r"\s+"), re.IGNORECASE)
OPENING_OF_PROSE = re.compile(rf"(?:^|[.!?:])\s*{OPENING}", re.MULTILINE)
OPENING_OF_LINE = re.compile(rf"[# ]*{OPENING}")
OPENING_OF_TEXT = re.compile(rf"^{OPENING}", re.IGNORECASE)
OPENING_OF_NAME = re.compile(rf"^test {OPENING}", re.IGNORECASE)

TEXT = r"\"\"\"(?s:.*?)(?<!\\)\"\"\"|'''(?s:.*?)'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
TOKEN = re.compile(rf"#[^\n]*|(?P<start>^[ ]*)?(?<![A-Za-z0-9_])[rbf]*(?P<text>{TEXT})", re.MULTILINE)
"""A comment or a string literal. A tokeniser would take a hundred times as long."""
FIGURATIVE = re.compile(
    r"(?:un)?(?:told|heard)|hear|said|spoken|heed|furnish|crew|knot|errand|doom(?:ed)?|curtain|hire|dawdle|bell|chore|"
    r"dice|fate|patien(?:ce|t)|stubborn|nudged?|bearers?|borne|founder|heir|grave|forgive|astray|abroad|roomy|shelf"
)
"""Words in names that a reader would have to ask about. Each has a plain one, such as answer, wait, random or batch."""
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
WORD_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
IDS = re.compile(r"\bids?=(\[[^\]]*\]|\"[^\"]*\")")
CODE = re.compile(r"^(`{3,}).*?^\1$", re.DOTALL | re.MULTILINE)
SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n")
EXAMPLE = re.compile(r"^\s*>>> ", re.MULTILINE)
TAG = re.compile(r"<[^>]*>|\{[%{#].*?[%}#]\}", re.DOTALL)
FEWEST_WORDS = 3
MOST_OPENINGS = 1 / 1000
"""Of the words of all pages: titles such as "How to …" remain."""


def texts_of_python(source: str) -> tuple[list[str], list[str]]:
    """Return docstrings (without their examples) with comments, and the other literals of at least three words.

    Literals that follow each other without an operator are one text.
    """
    prose: list[str] = []
    literals: list[str] = []
    end = 0
    for token in TOKEN.finditer(source):
        if token["text"] is None:
            prose.append(token[0].lstrip("# "))
            continue
        content = token["text"].strip("\"'")
        if token["start"] is not None and token["text"].startswith('"""') and source.startswith("\n", token.end()):
            prose.append(EXAMPLE.split(content, maxsplit=1)[0])
            continue
        if literals and not source[end : token.start()].strip():
            literals[-1] += content
        else:
            literals.append(content)
        end = token.end()
    return prose, [each for each in literals if len(each.split()) >= FEWEST_WORDS]


def texts_of(path: Path) -> tuple[list[str], list[str]]:
    """Return the prose and the literals of a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        prose, literals = texts_of_python(source)
        is_spoken = path.relative_to(ROOT).parts[0] in SPOKEN and "contract" not in path.parts
        return prose, literals if is_spoken else []
    if path.suffix == ".sql":
        lines = [line.lstrip() for line in source.splitlines()]
        return [line.lstrip("- ") for line in lines if line.startswith("--")], []
    return [TAG.sub("\n", source)], []


def faults(prose: Sequence[str], literals: Sequence[str] = ()) -> list[str]:
    """Return the lines that begin with a relative clause, have people in place of programs, or an odd phrase."""
    joined = "\n".join((*prose, *literals))
    found = [each.end() for pattern in (FAULT, OPENING_OF_PROSE) for each in pattern.finditer(joined)]
    shown = [joined[joined.rfind("\n", 0, at) + 1 :].split("\n", 1)[0].strip() for at in found]
    return shown + [each for each in literals if OPENING_OF_TEXT.match(each)]


def faults_of_name(name: str) -> bool:
    """Return True if the name of a test opens with a relative clause, or has people in place of programs."""
    words = name.replace("_", " ")
    return FAULT.search(words) is not None or OPENING_OF_NAME.match(words) is not None


def figurative_names(source: str) -> set[str]:
    """Return the names in a program that have a figurative word, outside of its comments and string literals."""
    names = set(IDENTIFIER.findall(TOKEN.sub(" ", source)))
    return {name for name in names if any(FIGURATIVE.fullmatch(word.lower()) for word in WORD_OF_NAME.findall(name))}


def files(names: Sequence[str], *endings: str) -> list[Path]:
    """Return files with these endings, and those of folders, but for hidden folders such as the peers' packages."""
    found = [path for name in names for path in ([ROOT / name] if "." in name else sorted((ROOT / name).rglob("*")))]
    shown = [path for path in found if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]
    return [path for path in shown if path.suffix in endings]


def sources(*endings: str) -> list[Path]:
    return files(FOLDERS, *endings)


def pages() -> list[Path]:
    return files(PAGES, ".md")


def test_docstrings_comments_and_messages_are_plain() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in sources(".py", ".sql", ".html")
        for fault in faults(*texts_of(path))
    ]
    assert found == []


def test_names_of_tests_are_plain() -> None:
    found: list[str] = []
    for path in sources(".py"):
        source = path.read_text(encoding="utf-8")
        names = [*TEST.findall(source), *IDS.findall(source)]
        found += [f"{path.relative_to(ROOT)}: {name}" for name in names if faults_of_name(name)]
    assert found == []


def test_names_in_the_library_are_not_figurative() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in files(["src"], ".py")
        if (names := figurative_names(path.read_text(encoding="utf-8")) | figurative_names(path.stem))
    }
    assert found == {}


def test_a_figurative_name_is_noticed() -> None:
    source = 'class DiceRoll: ...\nx = "told"  # heard\nself._patience_s = who_was_told(Teller, chores)\n'
    assert figurative_names(source) == {"DiceRoll", "_patience_s", "who_was_told"}


def test_pages_are_plain() -> None:
    texts = {path: CODE.sub("", path.read_text(encoding="utf-8")) for path in pages()}
    found = [
        f"{path.relative_to(ROOT)}: {text[text.rfind(chr(10), 0, fault.start()) + 1 : fault.end() + 40]}"
        for path, text in texts.items()
        for fault in FAULT.finditer(text)
    ]
    assert found == []
    openings = [line for text in texts.values() for line in SENTENCE.split(text) if OPENING_OF_LINE.match(line)]
    words = sum(len(text.split()) for text in texts.values())
    assert len(openings) <= words * MOST_OPENINGS, openings


@pytest.mark.parametrize(
    "prose",
    [
        "What the call gives.",
        "Runs. Whoever waits.",
        "Waits for somebody.",
        "Keeps his lock.",
        "a\nHow it ends.",
        "The run goes\non.",
        "A waiter is told of it.",
        "There is none.",
        "It costs a look.",
        "This is no URL.",
        "It wakes the waiters who missed a change.",
    ],
)
def test_a_fault_is_noticed(prose: str) -> None:
    assert faults([prose]) != []


@pytest.mark.parametrize(
    "prose",
    [
        "Return whether it holds.",
        "The server that answers.",
        "This shows the history.",
        "There is no file x.",
        "It is no longer held.",
        "Each node goes on top.",
        "A user who typed it.",
    ],
)
def test_a_plain_sentence_is_not_mistaken_for_a_fault(prose: str) -> None:
    assert faults([prose]) == []


def test_literals_are_separated_from_docstrings_and_joined() -> None:
    source = '''"""One."""
x = "a short", f"but {this}" 'is long'  # why
"""Two.

    >>> what
"""
'''
    assert texts_of_python(source) == (["One.", "why", "Two.\n"], ["but {this}is long"])


@pytest.mark.parametrize("literal", ["what it gives to the call", "waits for somebody else", "the run goes on now"])
def test_a_fault_of_a_message_is_noticed(literal: str) -> None:
    assert faults(*texts_of_python(f'f(help="{literal}")\n')) == [literal]


@pytest.mark.parametrize(
    ("name", "faulty"),
    [
        ("test_a_refusal_wakes_nobody", True),
        ("test_what_is_done_stays", True),
        ("test_a_run_goes_on", True),
        ("test_a_history_is_kept", False),
    ],
)
def test_a_fault_in_the_name_of_a_test_is_noticed(name: str, faulty: bool) -> None:
    assert faults_of_name(name) is faulty
