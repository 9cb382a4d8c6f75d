"""The tutorial builds the agent that the demo kills: every part of it, exactly as in the file."""

from __future__ import annotations

import ast
import codeop
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
AGENT = ROOT / "src" / "holdfast" / "demo" / "agent.py"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def parts_of(source: str) -> dict[str, str]:
    """Return the source of every top-level definition, by name, with its decorators and without comments after it."""
    lines, found = source.splitlines(), {}
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                start = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                start = node.lineno
            case _:
                continue
        found[name] = "\n".join(lines[start - 1 : node.end_lineno])
    return found


BUILT = parts_of("\n".join(FENCE.findall(PAGE.read_text(encoding="utf-8"))))
SHIPPED = parts_of(AGENT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_part_of_the_agent_is_in_the_tutorial_word_for_word(name: str) -> None:
    assert BUILT.get(name) == SHIPPED[name]


def test_the_agent_is_small_enough_to_be_read() -> None:
    assert len(AGENT.read_text(encoding="utf-8").splitlines()) < 150
    assert len(SHIPPED) > 12


def test_the_tutorial_fits_a_narrow_terminal() -> None:
    assert [line for line in PAGE.read_text(encoding="utf-8").splitlines() if len(line) > 80] == []


def test_the_example_and_the_code_on_front_pages_fit_a_narrow_terminal() -> None:
    code = [AGENT.read_text(encoding="utf-8")]
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        blocks = re.findall(r"^```\w+\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        assert len(blocks) > 1, page
        code += blocks
    assert [line for text in code for line in text.splitlines() if len(line) > 80] == []


def pasted(block: str) -> list[str]:
    """Return the statements as which an interactive Python 3.11 reads a pasted block. Raise its SyntaxError."""
    statements: list[str] = []
    lines: list[str] = []
    for line in [*block.splitlines(), ""]:
        lines.append(line)
        if codeop.compile_command("\n".join(lines)) is not None:
            statements.append("\n".join(lines))
            lines = []
    assert lines == [], "unfinished"
    return statements


@pytest.mark.parametrize("page", [PAGE, ROOT / "README.md", ROOT / "docs" / "index.md"], ids=lambda page: page.stem)
def test_a_block_can_be_pasted_into_an_interactive_python(page: Path) -> None:
    blocks = FENCE.findall(page.read_text(encoding="utf-8"))
    assert all(pasted(block) for block in blocks)


def test_a_loop_without_an_empty_line_after_it_cannot_be_pasted() -> None:
    with pytest.raises(SyntaxError):
        pasted("for _ in range(2):\n    print()\nprint()\n")


def test_the_tutorial_can_be_run_twice(tmp_path: Path) -> None:
    program = tmp_path / "tutorial.py"
    program.write_text("\n".join(FENCE.findall(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
    for _ in range(2):
        done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Are you there?" in done.stdout


def test_the_example_is_the_file_of_the_package() -> None:
    example = ROOT / "examples" / "agent.py"
    assert example.is_symlink()
    assert example.resolve() == AGENT
