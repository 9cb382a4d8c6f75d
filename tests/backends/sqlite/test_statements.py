"""A statement has one name and one text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.statements import load_statements, parse_statements


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[str, Path]:
    name = f"statements_{abs(hash(request.node.name))}"
    folder = tmp_path / name / "sql"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name, folder


def test_statements_are_read_by_name_without_their_comments(package: tuple[str, Path]) -> None:
    name, folder = package
    (folder / "a.sql").write_text(
        "-- About a.\n\n-- name: one\nSELECT 1\n-- Differs: why.\nFROM a;\n\n-- name: two\nSELECT 2\n"
    )
    (folder / "b.sql").write_text("-- name: three\nSELECT 3")
    (folder / "notes.txt").write_text("not SQL")
    found = load_statements(name)
    assert dict(found) == {"one": "SELECT 1\nFROM a", "two": "SELECT 2", "three": "SELECT 3"}
    assert len(found) == 3
    with pytest.raises(KeyError):
        found["four"]


def test_parts_of_a_statement_are_left_out_and_its_parameters_numbered_anew(package: tuple[str, Path]) -> None:
    name, folder = package
    (folder / "a.sql").write_text(
        "-- name: one\nSELECT $1\n-- part: some\n  , $2\n-- end part\nFROM a\nWHERE true\n  -- part: more\n"
        "  AND $3 = $1\n  -- end part\n  -- part: some\n  AND $2 = 2\n  -- end part\n"
    )
    found = load_statements(name)
    assert found["one"] == "SELECT $1\n  , $2\nFROM a\nWHERE true\n  AND $3 = $1\n  AND $2 = 2"
    assert found["one+"] == "SELECT $1\nFROM a\nWHERE true"
    assert found["one+more+"] == "SELECT $1\nFROM a\nWHERE true\n  AND $2 = $1"
    assert found["one+some+"] == "SELECT $1\n  , $2\nFROM a\nWHERE true\n  AND $2 = 2"
    assert found["one+some+more+"] == found["one"]
    for unknown in ("one+others+", "one+more", "two+"):
        with pytest.raises(KeyError):
            found[unknown]


def test_parts_that_are_settled_are_in_or_out_for_good(package: tuple[str, Path]) -> None:
    name, folder = package
    (folder / "a.sql").write_text(
        "-- name: one\nSELECT a + 0 = $1\n-- part: near\n  , $2\n-- end part\n-- part: some\n  , 3\n-- end part\n\n"
        "-- name: two\n-- part: near\nSELECT 2\n-- end part\n"
    )
    near = load_statements(name, settled={"near": True}, swaps={"a + 0": "a"})
    assert (near["one"], near["one+"]) == ("SELECT a = $1\n  , $2\n  , 3", "SELECT a = $1\n  , $2")
    assert near["two"] == "SELECT 2"
    with pytest.raises(KeyError):
        near["one+near+"]
    far = load_statements(name, settled={"near": False})
    assert far["one+"] == "SELECT a + 0 = $1"
    assert "two" not in far


def test_columns_that_statements_share_stand_once(package: tuple[str, Path]) -> None:
    name, folder = package
    (folder / "a.sql").write_text(
        "-- columns: thing_columns\nid, name,\nsize\n\n-- name: one\nSELECT {thing_columns}\nFROM a"
    )
    (folder / "b.sql").write_text("-- name: two\nSELECT {other.thing_columns}, {(one).thing_columns}\nFROM a AS other")
    assert dict(load_statements(name)) == {
        "one": "SELECT id, name, size\nFROM a",
        "two": "SELECT other.id, other.name, other.size, (one).id, (one).name, (one).size\nFROM a AS other",
    }


def test_columns_that_no_file_lists_or_that_two_list_are_refused(package: tuple[str, Path]) -> None:
    name, folder = package
    (folder / "a.sql").write_text("-- name: one\nSELECT {thing_columns}\nFROM a")
    with pytest.raises(ValueError, match="no columns 'thing_columns'"):
        load_statements(name)
    for file in ("b.sql", "c.sql"):
        (folder / file).write_text(f"-- columns: thing_columns\nid\n\n-- name: of_{file[0]}\nSELECT 1")
    with pytest.raises(ValueError, match="exist twice"):
        load_statements(name)


def test_a_page_is_the_middle_of_the_wrapper_of_pages(package: tuple[str, Path]) -> None:
    name, folder = package
    (folder / "a.sql").write_text(
        "-- columns: thing_columns\nid, body\n\n-- name: one\n-- page: {thing_columns}\n-- order: id DESC\n"
        "-- bytes: body, note up to $2\nSELECT {thing_columns}, note\nFROM a\nLIMIT $1"
    )
    (folder / "b.sql").write_text("-- wrapper: page\n{shown} | {order} | {bytes} | {most} | {statement}")
    weight = "coalesce(octet_length(body), 0) + coalesce(octet_length(note), 0)"
    text = f"id, body | id DESC | {weight} | $2 | SELECT id, body, note\nFROM a\nLIMIT $1"
    assert dict(load_statements(name)) == {"one": text}


def test_a_page_without_one_of_its_lines_is_refused(package: tuple[str, Path]) -> None:
    name, folder = package
    (folder / "a.sql").write_text("-- name: one\n-- page: id\n-- bytes: body up to $2\nSELECT id")
    with pytest.raises(ValueError, match="three lines"):
        load_statements(name)


def test_a_name_that_exists_twice_is_refused(package: tuple[str, Path]) -> None:
    name, folder = package
    (folder / "a.sql").write_text("-- name: one\nSELECT 1")
    (folder / "b.sql").write_text("-- name: one\nSELECT 2")
    with pytest.raises(ValueError, match="twice"):
        load_statements(name)


def test_a_folder_without_statements_is_refused(package: tuple[str, Path]) -> None:
    with pytest.raises(ValueError, match="no statements"):
        load_statements(package[0])


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("SELECT 1", "no name"),
        ("-- name: one\n\n-- name: two\nSELECT 2", "empty"),
        ("-- name: one\n", "empty"),
        ("-- name: not-a-name\nSELECT 1", "not a name for"),
    ],
)
def test_a_file_that_is_not_clear_is_refused(source: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        list(parse_statements(source, origin="a.sql"))


def test_only_a_plain_identifier_becomes_a_schema(package: tuple[str, Path]) -> None:
    name, folder = package
    (folder / "a.sql").write_text("-- name: one\nSELECT 1 FROM {schema}.a")
    assert load_statements(name, schema="mine")["one"] == 'SELECT 1 FROM "mine".a'
    with pytest.raises(ValueError, match="none was given"):
        load_statements(name)
    for bad in ("", "a b", "a;", 'a"', "1a", "A", "a" * 64):
        with pytest.raises(ValueError, match="not a schema name"):
            load_statements(name, schema=bad)
