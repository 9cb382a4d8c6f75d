"""A statement has one name and one text, read whole from a package's SQL files; what a call does not need is left out.

A file holds statements, each below a line `-- name: find_session`. Other comments are for people and are left out. The
schema's name, written `{schema}`, must be a plain identifier. Lines between `-- part: nodes` and `-- end part` can be
left out: `commit+nodes+` is the statement `commit` with this one of its parts, `commit+` has none of them. The
parameters that are left keep their order and are numbered anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from importlib.resources import files

_NAME = re.compile(r"--\s*name:\s*(\S+)\s*")
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_PART = re.compile(r"\s*--\s*part:\s*(\w+)\s*")
_END_OF_PART = re.compile(r"\s*--\s*end part\s*")
_PARAMETER = re.compile(r"\$(\d+)")
_SCHEMA = "{schema}"
_INDEX = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+)", re.MULTILINE)


class Statements(Mapping[str, str]):
    """Statement texts by name."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._marked = {name: text for name, text in texts.items() if parts_of(text)}
        self._texts = {name: without_parts(text, frozenset()) for name, text in texts.items()}

    def __getitem__(self, name: str) -> str:
        text = self._texts.get(name)
        if text is None:
            whole, *kept = name.split("+")
            marked = self._marked[whole]
            parts = set(parts_of(marked))
            if not parts.issuperset(kept[:-1]) or kept[-1:] != [""]:
                raise KeyError(name)
            text = self._texts[name] = without_parts(marked, parts.difference(kept))
        return text

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
        elif line.strip() and (not line.lstrip().startswith("--") or _is_mark(line)):
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


def _is_mark(line: str) -> bool:
    return _PART.fullmatch(line) is not None or _END_OF_PART.fullmatch(line) is not None


def parts_of(text: str) -> list[str]:
    """The parts of a statement that can be left out, each as often as it is marked."""
    return [found[1] for found in map(_PART.fullmatch, text.splitlines()) if found is not None]


def without_parts(text: str, absent: Set[str]) -> str:
    """The text without its marks and without some of its parts."""
    lines: list[str] = []
    part: str | None = None
    for line in text.splitlines():
        mark = _PART.fullmatch(line)
        if mark is not None:
            part = mark[1]
        elif _END_OF_PART.fullmatch(line):
            part = None
        elif part is None or part not in absent:
            lines.append(line)
    kept = "\n".join(lines)
    if not absent:
        return kept
    numbers = sorted({int(number) for number in _PARAMETER.findall(kept)})
    places = {str(number): place for place, number in enumerate(numbers, 1)}
    return _PARAMETER.sub(lambda parameter: f"${places[parameter[1]]}", kept)


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
