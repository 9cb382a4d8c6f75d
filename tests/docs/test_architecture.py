"""The map of the code names every folder and module, and nothing that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "holdfast"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([^`\s]+)`", PAGE))
REPOSITORY_FOLDERS = {"src", "tests", "docs", "benchmarks", "examples", "tools"}


def rows_after(heading: str) -> set[str]:
    """Return the first cells of the table that follows a line of the page."""
    table = PAGE.split(heading, 1)[1].split("\n\n", 2)[1]
    return {line.split("`")[1].rstrip("/") for line in table.splitlines() if line.startswith("| `")}


def test_the_map_lists_every_folder_of_the_package() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/*.py")}
    assert rows_after("Of the package, `src/holdfast`:") == folders


def test_the_map_lists_every_module_beside_the_folders() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    table = PAGE.split("Modules next to these folders:", 1)[1].split("\n\n", 2)[1]
    cells = [line.split("|")[1] for line in table.splitlines()]
    assert sorted(re.findall(r"`(\w+)`", "".join(cells))) == sorted(modules)


def test_the_picture_shows_every_folder_of_the_package() -> None:
    picture = (ROOT / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8")
    assert set(re.findall(r"(\w+)/(?=[ <])", picture)) - {"memory", "sqlite", "postgres"} == rows_after(
        "Of the package, `src/holdfast`:"
    )


def test_the_map_lists_the_folders_of_the_repository() -> None:
    assert rows_after("Of the repository:") == REPOSITORY_FOLDERS
    assert all((ROOT / folder).is_dir() for folder in REPOSITORY_FOLDERS)


def test_every_path_on_the_map_exists() -> None:
    paths = {name for name in NAMED if "/" in name}
    assert len(paths) > 30
    assert [path for path in paths if not (PACKAGE / path).exists() and not (ROOT / path).exists()] == [
        path for path in paths if path in {"memory/", "sqlite/", "postgres/", "transaction/"}
    ]


def test_every_server_function_on_the_map_exists_in_its_file() -> None:
    rows = re.findall(r"^\| an? \w+ \| (`\w+_v\d+`.*?) \| `(\S+\.sql)` \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 3
    for functions, file in rows:
        text = (PACKAGE / file).read_text(encoding="utf-8")
        assert [name for name in re.findall(r"`(\w+)`", functions) if f"FUNCTION {{schema}}.{name}(" not in text] == []


def test_every_rule_on_the_map_is_decided_where_it_says() -> None:
    rows = re.findall(r"^\| [A-Z].*? \| `([\w/]+\.py)` \| `(\w+)` \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 39
    for file, function in rows:
        text = (PACKAGE / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *(?:async )?def {function}\(", text, flags=re.MULTILINE), f"{file} has no {function}"
