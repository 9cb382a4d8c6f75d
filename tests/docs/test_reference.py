"""The committed reference matches the docstrings, and contains every public name."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
from holdfast import public_names
from holdfast.cli.commands import Command
from holdfast.cli.completion import places
from holdfast.cli.parser import COMMANDS, COMMON, GROUPS, build

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
FACETS = {
    "sessions.md": ["store.sessions", "session"],
    "queue.md": ["store.queue"],
    "leases.md": ["store.leases"],
    "processes.md": ["store.processes", "store.events"],
    "grants.md": ["store.grants"],
    "triggers.md": ["store.triggers"],
    "schedules.md": ["store.schedules"],
    "attachments.md": ["session.attachments", "store.attachments"],
    "artifacts.md": ["store.artifacts"],
    "worker.md": ["store.workers"],
    "maintenance.md": ["store.maintenance"],
}


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """Return `tools/reference.py`, which is a script and not a package."""
    spec = importlib.util.spec_from_file_location("reference_tool", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up while its class is created.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def test_the_committed_reference_is_current(reference: ModuleType) -> None:
    assert reference.outdated() == [], "run: python tools/reference.py"


def test_a_signature_shows_which_arguments_may_be_repeated(reference: ModuleType) -> None:
    def function(first: "int", *rest: "str", flag: "bool" = False, **named: "int") -> "None": ...

    def plain(first: "int", *, flag: "bool" = False) -> "None": ...

    shown = "f(first: int, *rest: str, flag: bool = False, **named: int) -> None"
    assert reference.signature("f", function) == shown
    assert reference.signature("f", plain) == "f(first: int, *, flag: bool = False) -> None"


@pytest.mark.parametrize("place", public_names.places())
def test_a_public_name_is_in_the_index_and_on_the_page_that_it_links_to(place: str) -> None:
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    link = re.search(rf"\| \[`{re.escape(place)}`\]\((\w+\.md)#(\w+)\) \| (.+) \|", index)
    assert link is not None, f"{place} is not in the index, or has no docstring"
    headings = re.findall(r"^#+ `?([\w.]+)`?$", (FOLDER / link[1]).read_text(encoding="utf-8"), re.MULTILINE)
    assert link[2] in [heading.lower() for heading in headings]


@pytest.mark.parametrize(("page", "facets"), FACETS.items(), ids=FACETS)
def test_every_method_of_a_facet_has_a_section(page: str, facets: list[str]) -> None:
    text = (FOLDER / page).read_text(encoding="utf-8")
    with holdfast.open_blocking("memory:") as store:
        owners = {"store": store, "session": store.sessions.handle("any")}
        for facet in facets:
            owner, *path = facet.split(".")
            value = getattr(owners[owner], path[0]) if path else owners[owner]
            methods = [name for name in dir(value) if not name.startswith("_") and callable(getattr(value, name))]
            assert methods
            for method in methods:
                if method != "attachments":
                    assert f"### `{facet}.{method}`\n" in text


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_and_option_is_on_the_page_of_the_command_line(command: Command) -> None:
    text = (FOLDER / "command-line.md").read_text(encoding="utf-8")
    section = text.split(f"## `holdfast {command.name}`\n", 1)[1].split("\n## ", 1)[0]
    for one in command.arguments:
        for name in one.names if one.names[0].startswith("-") else (str(one.settings.get("metavar", "")),):
            assert f"`{name}`" in section or not name
    common = text.split("## Options of every command\n", 1)[1].split("\n## ", 1)[0]
    assert all(f"`{name}`" in common for one in COMMON for name in one.names)


def test_every_command_of_the_parser_is_declared_and_so_on_that_page() -> None:
    declared = {" ".join(place.path) for place in places(build()) if " ".join(place.path) not in GROUPS}
    assert declared - {""} == {command.name for command in COMMANDS}


def test_a_page_that_was_changed_by_hand_is_noticed(reference: ModuleType, tmp_path: Path) -> None:
    assert "errors.md" in reference.write(tmp_path)
    assert reference.outdated(tmp_path) == []
    (tmp_path / "errors.md").write_text("# Errors\n", encoding="utf-8")
    (tmp_path / "queue.md").unlink()
    (tmp_path / "older.md").write_text("left over\n", encoding="utf-8")
    assert reference.outdated(tmp_path) == ["errors.md", "older.md", "queue.md"]
    assert reference.write(tmp_path) == ["errors.md", "older.md", "queue.md"]
    assert reference.outdated(tmp_path) == []


def test_a_public_name_without_a_page_is_refused(reference: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stranger:
        """A name from a module that has no page."""

    Stranger.__module__ = "holdfast.elsewhere"
    monkeypatch.setattr(holdfast, "Stranger", Stranger, raising=False)
    with pytest.raises(LookupError, match="Stranger"):
        reference.topic_of("Stranger")
