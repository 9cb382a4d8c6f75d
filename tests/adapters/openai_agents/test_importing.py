"""`holdfast import openai-agents` takes over sessions and branches, resumes, and overwrites nothing."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession

import holdfast
from holdfast import cli
from holdfast.adapters.openai_agents import HoldfastSession, importing
from holdfast.adapters.openai_agents.importing import import_sessions

Item = Any


def user(text: object) -> Item:
    return {"role": "user", "content": str(text)}


def fill(path: Path, session_id: str, items: list[Item]) -> None:
    async def main() -> None:
        session = SQLiteSession(session_id, path)
        await session.add_items(items)
        session.close()

    asyncio.run(main())


def items_at(url: str, session_id: str) -> list[Item]:
    async def main() -> list[Item]:
        session = HoldfastSession(session_id, url)
        items = await session.get_items()
        await session.aclose()
        return items

    return asyncio.run(main())


def test_sessions_are_taken_over_and_a_second_run_adds_what_is_new(tmp_path: Path, lasting_url: str) -> None:
    source = tmp_path / "sessions.db"
    fill(source, "a", [user(number) for number in range(2_300)])
    fill(source, "b", [user("hi")])
    with holdfast.open_blocking(lasting_url) as store:
        report = import_sessions(store, source)
        assert (report.imported, report.items, report.refused) == (["a", "b"], 2_301, {})
        node = store.sessions.handle("b").load()
        assert node is not None
        assert node.graph.nodes[0].created_at_ms
        fill(source, "b", [user("more")])
        again = import_sessions(store, source)
        assert (again.imported, again.already_there, again.items) == (["b"], 1, 1)
    assert items_at(lasting_url, "a") == [user(number) for number in range(2_300)]
    assert items_at(lasting_url, "b") == [user("hi"), user("more")]


def test_long_items_are_spread_over_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "BYTES_A_COMMIT", 1_000)
    source = tmp_path / "sessions.db"
    fill(source, "a", [user("x" * size) for size in (400, 400, 5_000, 100, 100, 400)])
    with holdfast.open_blocking(tmp_path / "agent.db") as store:
        report = import_sessions(store, source)
        assert (report.items, report.refused) == (6, {})
        view = store.sessions.handle("a").load()
        assert view is not None
        assert view.revision == 3


def test_a_refused_item_is_named_by_its_place_and_leaves_no_empty_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "ITEMS_A_COMMIT", 2)
    source = tmp_path / "sessions.db"
    fill(source, "first", [user(1)])
    fill(source, "fourth", [user(number) for number in range(4)])
    with sqlite3.connect(source) as connection:
        last = "SELECT max(id) FROM agent_messages WHERE session_id = ?"
        damage = f"UPDATE agent_messages SET message_data = '{{\"a\":1e999}}' WHERE id = ({last})"
        connection.execute(damage, ("first",))
        connection.execute(damage, ("fourth",))
    connection.close()
    with holdfast.open_blocking(tmp_path / "agent.db") as store:
        report = import_sessions(store, source)
        assert {name: text.partition(":")[0] for name, text in report.refused.items()} == {
            "first": "items[0]",
            "fourth": "items[3]",
        }
        assert [one.session_id for one in store.sessions.list()] == ["fourth"]


def test_a_session_that_was_deleted_is_not_brought_back(tmp_path: Path) -> None:
    source = tmp_path / "sessions.db"
    fill(source, "a", [user("hi")])
    with holdfast.open_blocking(tmp_path / "agent.db") as store:
        import_sessions(store, source)
        store.sessions.delete("a")
        report = import_sessions(store, source)
        assert (report.imported, list(report.refused)) == ([], ["a"])


def test_an_interrupted_import_continues(tmp_path: Path) -> None:
    source = tmp_path / "sessions.db"
    fill(source, "a", [user(number) for number in range(1_500)])
    with holdfast.open_blocking(tmp_path / "agent.db") as store:
        session = store.sessions.create("a")
        session.commit(
            holdfast.Commit(
                graph=holdfast.Append([holdfast.Node(kind="openai-agents.item", payload=user(n)) for n in range(1_000)])
            )
        )
        report = import_sessions(store, source)
        assert (report.imported, report.items) == (["a"], 500)
        assert len(session.messages()) == 1_500


@pytest.mark.parametrize("at", [1, -1, 2, -2, 3], ids=str)
def test_an_import_that_is_killed_continues_and_stores_nothing_twice(
    tmp_path: Path, lasting_url: str, killed_import: Callable[..., None], at: int
) -> None:
    source = tmp_path / "sessions.db"
    fill(source, "a", [user(number) for number in range(1_500)])
    fill(source, "b", [user("hi")])
    with holdfast.open_blocking(lasting_url):
        pass
    killed_import(at, "openai-agents", "--from", str(source), "--url", lasting_url)
    with holdfast.open_blocking(lasting_url) as store:
        report = import_sessions(store, source)
        assert report.refused == {}
        assert len(report.imported) + report.already_there == 2
        assert import_sessions(store, source).already_there == 2
        assert store.maintenance.verify().findings == ()
    assert items_at(lasting_url, "a") == [user(number) for number in range(1_500)]
    assert items_at(lasting_url, "b") == [user("hi")]


def test_a_session_that_differs_is_refused_and_the_others_continue(tmp_path: Path) -> None:
    source = tmp_path / "sessions.db"
    fill(source, "a", [user("theirs")])
    fill(source, "b", [user("hi")])
    fill(source, "c", [{"role": "user", "content": float("nan")}])
    with holdfast.open_blocking("memory:") as store:
        store.sessions.handle("a").append(user("ours"))
        report = import_sessions(store, source)
        assert report.imported == ["b"]
        assert "differs from item 1 on" in report.refused["a"]
        assert "NaN or infinite" in report.refused["c"]
        assert store.sessions.handle("a").messages() == [user("ours")]


def test_rows_without_json_are_skipped_and_reported(tmp_path: Path) -> None:
    source = tmp_path / "sessions.db"
    fill(source, "a", [user("hi")])
    with sqlite3.connect(source) as connection:
        connection.execute("INSERT INTO agent_messages (session_id, message_data) VALUES ('a', 'not JSON')")
        connection.execute("UPDATE agent_messages SET created_at = 'yesterday'")
    connection.close()
    with holdfast.open_blocking("memory:") as store:
        report = import_sessions(store, source)
        assert (report.imported, report.skipped_rows) == (["a"], [2])


@pytest.mark.parametrize(
    ("change", "refused", "skipped"),
    [
        ("UPDATE agent_messages SET session_id = x'ff' WHERE session_id = 'a'", ["b'\\xff'"], 0),
        ("UPDATE agent_messages SET session_id = CAST(x'ff' AS TEXT) WHERE session_id = 'a'", ["b'\\xff'"], 0),
        ("UPDATE agent_messages SET message_data = CAST(x'22ff22' AS TEXT) WHERE session_id = 'a'", [], 1),
        ("UPDATE agent_messages SET message_data = '{\"a\": NaN}' WHERE session_id = 'a'", ["a"], 0),
        ("UPDATE agent_messages SET message_data = '\"\\ud800\"' WHERE session_id = 'a'", ["a"], 0),
        ("UPDATE agent_messages SET created_at = CAST(x'ff' AS TEXT)", [], 0),
    ],
    ids=["id", "text of an id", "text", "nan", "surrogate", "time"],
)
def test_damaged_rows_are_refused_or_reported_and_the_others_continue(
    tmp_path: Path, change: str, refused: list[str], skipped: int
) -> None:
    source = tmp_path / "sessions.db"
    for name in ("a", "b"):
        fill(source, name, [user("hi")])
    with sqlite3.connect(source) as connection:
        connection.execute(change)
    connection.close()
    with holdfast.open_blocking("memory:") as store:
        report = import_sessions(store, source)
        assert (list(report.refused), len(report.skipped_rows)) == (refused, skipped)
        assert store.sessions.handle("b").messages() == [user("hi")]


def test_damaged_pages_are_refused_with_what_to_do(tmp_path: Path) -> None:
    source = tmp_path / "sessions.db"
    fill(source, "a", [user("word " * 50) for _ in range(200)])
    with sqlite3.connect(source) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = source.read_bytes()
    source.write_bytes(data[: len(data) // 2] + b"\xff" * (len(data) - len(data) // 2))
    with holdfast.open_blocking("memory:") as store:
        report = import_sessions(store, source)
        assert "save the rest of a damaged file with the command `.recover`" in report.refused["a"]
        assert store.sessions.handle("a").load() is None


def test_branches_become_sessions(tmp_path: Path) -> None:
    async def main() -> None:
        session = AdvancedSQLiteSession(session_id="a", db_path=tmp_path / "sessions.db", create_tables=True)
        await session.add_items([user("q1"), user("q2")])
        await session.create_branch_from_turn(2, "retry")
        await session.add_items([user("q3")])
        session.close()

    asyncio.run(main())
    with holdfast.open_blocking("memory:") as store:
        report = import_sessions(store, tmp_path / "sessions.db")
        assert report.imported == ["a", "a.retry"]
        assert store.sessions.handle("a").messages() == [user("q1"), user("q2")]
        assert store.sessions.handle("a.retry").messages() == [user("q1"), user("q3")]


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        (None, {}, "there is no file"),
        (b"not a database, but long enough to be one" * 100, {}, "is not a SQLite database"),
        (b"", {}, "has no table 'agent_sessions'"),
        (b"", {"messages_table": ""}, "is not the name of a table"),
    ],
    ids=["missing", "text", "empty", "unnamed"],
)
def test_a_file_of_another_form_is_refused(
    tmp_path: Path, content: bytes | None, options: dict[str, str], problem: str
) -> None:
    source = tmp_path / "sessions.db"
    if content is not None:
        source.write_bytes(content)
    with holdfast.open_blocking("memory:") as store, pytest.raises(holdfast.InvalidRequest, match=problem):
        import_sessions(store, source, **options)


def test_the_command_reports_and_names_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "sessions.db", str(tmp_path / "agent.db")
    fill(source, "a", [user("hi")])
    with sqlite3.connect(source) as connection:
        connection.execute("CREATE TABLE turn_usage (id INTEGER)")
        connection.execute("INSERT INTO turn_usage VALUES (1)")
        connection.execute("INSERT INTO agent_messages (session_id, message_data) VALUES ('a', 'not JSON')")
    connection.close()
    holdfast.open_blocking(target).close()
    arguments = ["import", "openai-agents", "--from", str(source), "--url", target]
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        "imported 1 session with 1 item, 0 were there already, 0 refused",
        "skipped 1 row without JSON: 2",
        "left behind 1 row about tokens",
    ]
    with holdfast.open_blocking(target) as store:
        store.sessions.handle("a").append(user("moved on"))
    assert cli.main([*arguments, "--json"]) == 1
    assert "differs from item 2 on" in json.loads(capsys.readouterr().out)["refused"]["a"]
    assert cli.main(arguments) == 1
    assert "a: from: the store has a session 'a' that differs" in capsys.readouterr().out
