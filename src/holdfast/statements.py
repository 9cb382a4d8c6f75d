"""A statement has one name and one text, and is read from a package's SQL files, never put together.

A file holds statements, each below a line `-- name: find_session`. Other comments are for people and are left out. The
only thing that may vary is the schema's name, written `{schema}`, which must be a plain identifier.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files

_NAME = re.compile(r"--\s*name:\s*(\S+)\s*")
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SCHEMA = "{schema}"
_INDEX = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+)", re.MULTILINE)


class Statements(Mapping[str, str]):
    """Statement texts by name."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def load_statements(package: str, folder: str = "sql", *, schema: str | None = None) -> Statements:
    """Every statement in the `.sql` files of a package's folder."""
    texts: dict[str, str] = {}
    for file in sorted(files(package).joinpath(folder).iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        for name, text in parse_statements(file.read_text(encoding="utf-8"), origin=file.name):
            if name in texts:
                raise ValueError(f"{file.name}: the statement {name!r} exists twice")
            texts[name] = with_schema(text, schema, origin=f"{file.name}: {name}")
    if not texts:
        raise ValueError(f"{package} has no statements in {folder!r}")
    return Statements(texts)


def parse_statements(source: str, *, origin: str) -> Iterator[tuple[str, str]]:
    """The named statements of one file, in order."""
    name: str | None = None
    lines: list[str] = []
    for line in source.splitlines():
        heading = _NAME.fullmatch(line)
        if heading is not None:
            if name is not None:
                yield _statement(name, lines, origin)
            name, lines = heading[1], []
        elif line.strip() and not line.lstrip().startswith("--"):
            if name is None:
                raise ValueError(f"{origin}: a statement has no name: {line.strip()!r}")
            lines.append(line)
    if name is not None:
        yield _statement(name, lines, origin)


def _statement(name: str, lines: list[str], origin: str) -> tuple[str, str]:
    if not name.isidentifier():
        raise ValueError(f"{origin}: {name!r} is no name for a statement")
    text = "\n".join(lines).rstrip().removesuffix(";")
    if not text:
        raise ValueError(f"{origin}: the statement {name!r} is empty")
    return name, text


def with_schema(text: str, schema: str | None, *, origin: str) -> str:
    """The text with the schema's name filled in."""
    if schema is not None and _IDENTIFIER.fullmatch(schema) is None:
        raise ValueError(f"{schema!r} is no schema name: use lowercase letters, digits and underscores")
    if _SCHEMA not in text:
        return text
    if schema is None:
        raise ValueError(f"{origin}: the statement names a schema, but none was given")
    # Quoted, because a word of SQL's own is a plain identifier, too.
    return text.replace(_SCHEMA, f'"{schema}"')


def index_names(schema_text: str) -> list[str]:
    """The indexes that a schema makes, but for those of primary keys."""
    return _INDEX.findall(schema_text)
