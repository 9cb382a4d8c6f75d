"""Load SQL statements by name from the files of a package, and leave out the parts that a call does not need.

A file holds statements, each below a line `-- name: find_session`. Other comments are for people and are left out. The
schema's name, written `{schema}`, must be a plain identifier. Lines between `-- part: nodes` and `-- end part` can be
left out: `commit+nodes+` is the statement `commit` with only this one of its parts, `commit+` has none of them. The
remaining parameters keep their order and are renumbered. A row that a writer locks and a reader does not is one
statement with a part `lock`.

A listing whose pages are limited by bytes is the middle of the text below `-- wrapper: page`. Three lines above it name
the columns that it shows, their order, and the columns that count with the parameter that limits them:

    -- page: name, body
    -- order: name
    -- bytes: body up to $3

Columns that several statements list stand once in the folder, below a line `-- columns: session_columns`. A statement
of any file lists them as `{session_columns}` or, each with the name of a table or a record before it, as
`{named.session_columns}` and `{(record).session_columns}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

_HEADING = re.compile(r"--\s*(name|columns|wrapper):\s*(\S+)\s*")
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_PART = re.compile(r"\s*--\s*part:\s*(\w+)\s*")
_END_OF_PART = re.compile(r"\s*--\s*end part\s*")
_PAGE_LINE = re.compile(r"-- (?:page|order|bytes): \S.*")
_PAGE = re.compile(r"-- page: (.+)\n-- order: (.+)\n-- bytes: (.+) up to (\$\d+)\n")
_PARAMETER = re.compile(r"\$(\d+)")
_SLOT = re.compile(r"\{(shown|order|bytes|most|statement)\}")
_SCHEMA = "{schema}"
_COLUMNS = re.compile(r"\{(?:(\w+|\(\w+\))\.)?(\w+_columns)\}")
_INDEX = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+)", re.MULTILINE)


class Statements(dict[str, str]):
    """Statement texts by name."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__({name: without_parts(text, frozenset()) for name, text in texts.items()})
        self._marked = {name: text for name, text in texts.items() if parts_of(text)}

    def __missing__(self, name: str) -> str:
        whole, *kept = name.split("+")
        marked = self._marked[whole]
        parts = set(parts_of(marked))
        if not parts.issuperset(kept[:-1]) or kept[-1:] != [""]:
            raise KeyError(name)
        text = self[name] = without_parts(marked, parts.difference(kept))
        return text


NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def load_statements(
    package: str,
    folder: str = "sql",
    *,
    schema: str | None = None,
    settled: Mapping[str, bool] = NONE,
    swaps: Mapping[str, str] = NONE,
) -> Statements:
    """Return every statement in the `.sql` files of a package's folder.

    `settled` includes or excludes parts for good; a statement without any text left is dropped. `swaps` maps words to
    their replacements.
    """
    texts: dict[str, str] = {}
    entries = sorted(files(package).joinpath(folder).iterdir(), key=lambda entry: entry.name)
    sources = {entry.name: entry.read_text(encoding="utf-8") for entry in entries if entry.name.endswith(".sql")}
    blocks = {file: list(_parse(source, file)) for file, source in sources.items()}
    columns = _columns_of(blocks)
    wrappers = {name: text for found in blocks.values() for kind, name, text in found if kind == "wrapper"}
    for file, found in blocks.items():
        for kind, name, text in found:
            if kind != "name":
                continue
            if name in texts:
                raise ValueError(f"{file}: the statement {name!r} exists twice")
            origin = f"{file}: {name}"
            whole = with_columns(_as_page(text, wrappers, origin), columns, origin=origin)
            for part, kept in settled.items():
                whole = with_part_settled(whole, part, kept=kept)
            for word, other in swaps.items():
                whole = whole.replace(word, other)
            if whole.strip():
                texts[name] = with_schema(whole, schema, origin=origin)
    if not texts:
        raise ValueError(f"{package} has no statements in {folder!r}")
    return Statements(texts)


def _columns_of(blocks: Mapping[str, list[tuple[str, str, str]]]) -> dict[str, list[str]]:
    """Return the lists of columns of all files."""
    columns: dict[str, list[str]] = {}
    for file, found in blocks.items():
        for kind, name, text in found:
            if kind != "columns":
                continue
            if name in columns:
                raise ValueError(f"{file}: the columns {name!r} exist twice")
            columns[name] = text.replace(",", " ").split()
    return columns


def parse_statements(source: str, *, origin: str) -> Iterator[tuple[str, str]]:
    """Yield the named statements of one file, in order."""
    return ((name, text) for kind, name, text in _parse(source, origin) if kind == "name")


def _parse(source: str, origin: str) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the name and the text of each block of a file."""
    heading: tuple[str, str] | None = None
    lines: list[str] = []
    for line in source.splitlines():
        found = _HEADING.fullmatch(line)
        if found is not None:
            if heading is not None:
                yield _block(heading, lines, origin)
            heading, lines = (found[1], found[2]), []
        elif line.strip() and (not line.lstrip().startswith("--") or _is_mark(line)):
            if heading is None:
                raise ValueError(f"{origin}: a statement has no name: {line.strip()!r}")
            lines.append(line)
    if heading is not None:
        yield _block(heading, lines, origin)


def _block(heading: tuple[str, str], lines: list[str], origin: str) -> tuple[str, str, str]:
    kind, name = heading
    if not name.isidentifier():
        raise ValueError(f"{origin}: {name!r} is not a name for a statement")
    text = "\n".join(lines).rstrip().removesuffix(";")
    if not text:
        raise ValueError(f"{origin}: the statement {name!r} is empty")
    return kind, name, text


def _is_mark(line: str) -> bool:
    return any(mark.fullmatch(line) is not None for mark in (_PART, _END_OF_PART, _PAGE_LINE))


def _as_page(text: str, wrappers: Mapping[str, str], origin: str) -> str:
    """Return the text inside of the wrapper of pages, if it is marked as one."""
    marked = _PAGE.match(text)
    if marked is None:
        if _PAGE_LINE.search(text) is not None:
            raise ValueError(f"{origin}: a page begins with three lines: page, order and bytes up to a parameter")
        return text
    shown, order, counted, most = marked.groups()
    bytes_of = " + ".join(f"coalesce(octet_length({column}), 0)" for column in counted.split(", "))
    filled = {"shown": shown, "order": order, "bytes": bytes_of, "most": most, "statement": text[marked.end() :]}
    return _SLOT.sub(lambda slot: filled[slot[1]], wrappers["page"])


def parts_of(text: str) -> list[str]:
    """Return the parts of a statement that can be left out, each as often as it is marked."""
    return [found[1] for found in map(_PART.fullmatch, text.splitlines()) if found is not None]


def with_part_settled(text: str, part: str, *, kept: bool) -> str:
    """Return the text with one part in or out for good. Parameters of only that part must have the highest numbers."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        mark = _PART.fullmatch(line)
        if mark is not None and mark[1] == part:
            inside = True
        elif inside and _END_OF_PART.fullmatch(line):
            inside = False
        elif kept or not inside:
            lines.append(line)
    return "\n".join(lines)


def without_parts(text: str, absent: Set[str]) -> str:
    """Return the text without its marks and without some of its parts."""
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


def with_columns(text: str, columns: Mapping[str, list[str]], *, origin: str) -> str:
    """Return the text with the lists of columns filled in."""

    def listed(found: re.Match[str]) -> str:
        table, name = found.groups()
        if name not in columns:
            raise ValueError(f"{origin}: there are no columns {name!r}")
        return ", ".join(columns[name] if table is None else [f"{table}.{one}" for one in columns[name]])

    return _COLUMNS.sub(listed, text)


def with_schema(text: str, schema: str | None, *, origin: str) -> str:
    """Return the text with the schema's name filled in."""
    if schema is not None and _IDENTIFIER.fullmatch(schema) is None:
        raise ValueError(f"{schema!r} is not a schema name: use lowercase letters, digits and underscores")
    if _SCHEMA not in text:
        return text
    if schema is None:
        raise ValueError(f"{origin}: the statement names a schema, but none was given")
    # Quoted, because an SQL keyword is a plain identifier, too.
    return text.replace(_SCHEMA, f'"{schema}"')


def index_names(schema_text: str) -> list[str]:
    """Return the indexes that a schema creates, except those of primary keys."""
    return _INDEX.findall(schema_text)
