"""A hook of mkdocs that expands a folder in the navigation to its pages that are not named elsewhere in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

Nav: TypeAlias = "str | list[Nav] | dict[str, Nav]"


def on_config(config: Any) -> Any:
    docs = Path(config["docs_dir"])
    named = set(entries_of(config["nav"]))
    config["nav"] = expanded(config["nav"], docs, named)
    return config


def entries_of(nav: Nav) -> Iterator[str]:
    """Yield every page and folder that the navigation names."""
    if isinstance(nav, str):
        yield nav
        return
    for child in nav.values() if isinstance(nav, dict) else nav:
        yield from entries_of(child)


def expanded(nav: Nav, docs: Path, named: set[str]) -> Nav:
    """Return the navigation with each folder replaced by its pages: in place inside a list, otherwise as a list."""
    if isinstance(nav, str):
        return [*pages_of(nav, docs, named)] if nav.endswith("/") else nav
    if isinstance(nav, dict):
        return {title: expanded(child, docs, named) for title, child in nav.items()}
    flat: list[Nav] = []
    for child in nav:
        pages = expanded(child, docs, named)
        flat.extend(pages if isinstance(pages, list) else [pages])
    return flat


def pages_of(folder: str, docs: Path, named: set[str]) -> list[str]:
    found = sorted((docs / folder).glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
    return [name for page in found if (name := page.relative_to(docs).as_posix()) not in named]
