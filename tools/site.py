"""A hook of mkdocs: a folder in the navigation stands for its pages, so that a new page of it needs no second entry."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    config["nav"] = [expanded(entry, Path(config["docs_dir"])) for entry in config["nav"]]
    return config


def expanded(entry: Any, docs: Path) -> Any:
    if isinstance(entry, dict):
        return {title: expanded(value, docs) for title, value in entry.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(entry, list):
        return [expanded(value, docs) for value in entry]  # pyright: ignore[reportUnknownVariableType]
    return list(pages_of(docs, entry)) if entry.endswith("/") else entry


def pages_of(docs: Path, folder: str) -> Iterator[str]:
    found = sorted((docs / folder).glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
    for page in found:
        yield page.relative_to(docs).as_posix()
