"""`holdfast import openai-agents` takes over sessions and branches, resumes, and overwrites nothing."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession

import holdfast
from holdfast import cli
from holdfast.adapters.openai_agents import HoldfastSession
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
