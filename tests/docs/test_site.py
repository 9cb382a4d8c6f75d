"""No page is orphaned, no link is dead, no command in the docs is wrong, and every public name is documented."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

import holdfast
from holdfast.cli.parser import COMMANDS, COMMON, EXIT_CODES, GROUPS, build
from holdfast.public_names import places, value_at

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DECISIONS = sorted((DOCS / "adr").glob("0*.md"))
READABLE = sorted([*ROOT.glob("*.md"), *PAGES])
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
CONSOLE = re.compile(r"^```(?:console|bash|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!`)\[[^\]]+\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
DEFINITION = re.compile(r"^\[([^\]]+)\]: (\S+)$", re.MULTILINE)
WRITTEN = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tool(name: str) -> ModuleType:
    """Return a script of `tools/`, which is not a package."""
    spec = importlib.util.spec_from_file_location(f"{name}_tool", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Pages and links.


def test_every_page_is_in_the_navigation_once() -> None:
    site = tool("site")
    nav = yaml.safe_load(CONFIG)["nav"]
    listed = list(site.entries_of(site.expanded(nav, DOCS, set(site.entries_of(nav)))))
    assert sorted(listed) == [page.relative_to(DOCS).as_posix() for page in PAGES if page not in DECISIONS]


def test_the_list_of_decisions_has_the_title_of_each() -> None:
    titles = [(page.name, page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")) for page in DECISIONS]
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", (DOCS / "adr" / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [(title, name) for name, title in titles]
    assert len(titles) > 40


def test_a_link_that_shows_the_number_of_a_decision_leads_to_it() -> None:
    links = [
        (page.name, shown, target)
        for page in (*ROOT.glob("*.md"), *PAGES)
        for shown, target in re.findall(
            r"\[(?:[^\]]*\s)?0*(\d+)\]\([^)]*?0*(\d+)-[a-z0-9-]+\.md", page.read_text(encoding="utf-8")
        )
    ]
    assert [link for link in links if link[1] != link[2]] == []
    assert len(links) > 40


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_a_front_page_names_every_extra(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [extra for extra in project["optional-dependencies"] if not re.search(rf"`{extra}`|\[{extra}\]", text)] == []


@pytest.mark.parametrize(
    ("page", "text", "says"),
    [
        ("index.md", "[gone](gone.md)", "'gone.md'"),
        ("index.md", "[nowhere](other.md#nowhere)", "#nowhere"),
        ("orphan.md", "nothing leads here", "orphan.md"),
        ("index.md", "fine", None),
    ],
    ids=["a dead link", "a dead anchor", "an orphaned page", "nothing wrong"],
)
def test_a_fault_in_the_site_ends_its_build(tmp_path: Path, page: str, text: str, says: str | None) -> None:
    pages = {"index.md": "[other](other.md)", "other.md": "# Other", page: text}
    (tmp_path / "docs").mkdir()
    for name, content in pages.items():
        (tmp_path / "docs" / name).write_text(f"{content}\n", encoding="utf-8")
    # The tested settings are those of the real site; only the pages differ.
    settings = CONFIG.split("\nnav:\n")[0].replace("tools/site.py", str(ROOT / "tools" / "site.py"))
    (tmp_path / "mkdocs.yml").write_text(f"{settings}\nnav:\n  - index.md\n  - other.md\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if says is None else 1), done.stderr
    assert (says or "") in done.stderr


def test_the_build_with_these_settings_is_part_of_the_test_command() -> None:
    tasks = (ROOT / "tasks.py").read_text(encoding="utf-8")
    assert '"mkdocs", "build", "--strict"]' in tasks
    assert "run_docs()" in tasks.split("def run_everything()", 1)[1].split("\ndef ", 1)[0]


@pytest.mark.parametrize("page", READABLE, ids=name_of)
def test_a_link_leads_to_a_file(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []


def test_the_links_of_the_changelog_are_defined_and_lead_to_a_section() -> None:
    page = ROOT / "CHANGELOG.md"
    text = re.sub(r"`[^`\n]*`", "", page.read_text(encoding="utf-8"))
    targets = dict(DEFINITION.findall(text))
    used = {" ".join(name.split()) for name in re.findall(r"\[([^\]]+)\](?!\(|:)", text)}
    assert sorted(used) == sorted(targets)
    for target in targets.values():
        path, _, anchor = target.partition("#")
        to = page.parent / path if path else page
        assert to.is_file(), target
        assert not anchor or anchor in anchors_of(to.read_text(encoding="utf-8")), target


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page: those that a repository's browser makes of its headings, and those written out."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles} | set(
        re.findall(r'id="([^"]+)"', text)
    )


# Commands.


def calls() -> Iterator[str]:
    """Return every command line that a page shows."""
    for page in READABLE:
        for block in CONSOLE.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                if line.removeprefix("$ ").startswith("holdfast "):
                    yield line.removeprefix("$ ")


@pytest.mark.parametrize("call", sorted(set(calls())))
def test_a_call_in_the_docs_is_one_that_the_parser_takes(call: str) -> None:
    words = shlex.split(call, comments=True)[1:]
    end = next((index for index, word in enumerate(words) if word in {"|", ">", "&&"}), len(words))
    assert build().parse_args(words[:end]).declared in COMMANDS


# Everything public.


@pytest.mark.parametrize("place", places())
def test_a_public_name_is_in_the_docs(place: str) -> None:
    assert re.search(rf"\b{re.escape(place)}\b", WRITTEN)


@pytest.mark.parametrize(
    "name",
    [
        place.rpartition(".")[2]
        for place in places()
        if inspect.isclass(value_at(place)) and value_at(place).__module__ == "holdfast.errors"
    ],
)
def test_an_error_has_a_section_that_says_whether_to_retry(name: str) -> None:
    page = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]
    assert "Retrying the same call" in section
    assert name in page.split("```text", 1)[1].split("```", 1)[0]  # the tree


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_and_its_options_are_in_the_docs(command: Any) -> None:
    assert f"holdfast {command.name}" in WRITTEN
    for name in (name for one in (*command.arguments, *COMMON) for name in one.names if name.startswith("--")):
        assert f"`{name}`" in WRITTEN


@pytest.mark.parametrize("options", ["SqliteOptions", "PostgresOptions", "Limits", "RetentionPolicy"])
def test_a_setting_is_in_the_reference(options: str) -> None:
    for field in getattr(holdfast, options).__struct_fields__:
        assert f"| `{field}` |" in WRITTEN


def test_exit_codes_and_groups_of_commands_are_in_the_docs() -> None:
    page = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    assert all(f"| {code} | {meaning} |" in page for code, meaning in EXIT_CODES.items())
    assert all(f"`holdfast {group} " in page for group in GROUPS)
    assert "`HOLDFAST_URL`" in page
    assert "`NO_COLOR`" in page


# The pictures.


def words_of(picture: str) -> str:
    lines = (one for one in ElementTree.fromstring(picture).iter() if one.tag.endswith("}text"))
    return "\n".join("".join(line.itertext()) for line in lines)


def test_the_recording_in_the_readme_is_of_a_run_that_went_well() -> None:
    words = words_of((DOCS / "images" / "demo.svg").read_text(encoding="utf-8"))
    assert words.startswith("$ holdfast demo")
    assert words.count("KILLED with SIGKILL") == 2
    assert "nothing was lost, and nothing was done twice" in words
    assert "WRONG" not in words
    assert "\n  holdfast status --url agent.db" in words
    assert "(docs/images/demo.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_picture_is_made_from_a_real_run(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "tools" / "record.py", tmp_path / "demo.svg", "--seed", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    picture = (tmp_path / "demo.svg").read_text(encoding="utf-8")
    assert words_of(picture).count("KILLED with SIGKILL") == 2
    assert 'class="red"' in picture
    assert "\x1b" not in picture
