"""The lines that exist only because of Holdfast, counted on the page that promises their number."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "lines.md"
SECTION = re.compile(r"^## ([^\n:]+): (\d+) lines\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ALLOWED = {"A durable chat": 5, "A worker with everything": 12}


def sections() -> dict[str, tuple[int, str, str]]:
    """Return by title the promised number, the program without Holdfast and the one with it."""
    found: dict[str, tuple[int, str, str]] = {}
    for title, promised, text in SECTION.findall(PAGE.read_text(encoding="utf-8")):
        plain, durable = BLOCK.findall(text)
        found[title] = (int(promised), plain, durable)
    return found


def lines(program: str) -> int:
    return sum(bool(line.strip()) for line in program.splitlines())


@pytest.mark.parametrize("title", ALLOWED)
def test_an_example_has_no_more_lines_than_promised(title: str) -> None:
    promised, plain, durable = sections()[title]
    assert "holdfast" not in plain
    assert lines(durable) - lines(plain) == promised
    assert promised <= ALLOWED[title]


@pytest.mark.parametrize("title", ALLOWED)
def test_the_formatter_leaves_an_example_as_it_is(title: str, tmp_path: Path) -> None:
    for number, program in enumerate(sections()[title][1:]):
        file = tmp_path / f"{number}.py"
        file.write_text(program, encoding="utf-8")
        command = [sys.executable, "-m", "ruff", "format", "--check", "--isolated", "--line-length", "120", str(file)]
        assert subprocess.run(command, check=False, capture_output=True).returncode == 0, program


def test_a_durable_chat_is_answered_once(tmp_path: Path) -> None:
    program = tmp_path / "chat.py"
    program.write_text(sections()["A durable chat"][2], encoding="utf-8")
    said = [subprocess.check_output([sys.executable, str(program)], cwd=tmp_path, text=True) for _ in range(2)]
    assert said == ["You said 1 thing(s).\n"] * 2
