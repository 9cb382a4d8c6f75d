"""An import takes over whole threads of a SqliteSaver file, and builds nothing of hostile data."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver, importing
from holdfast.adapters.langgraph.importing import import_threads
from holdfast.cli import main


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    seen: Annotated[list[Any], add]


def answer(state: Chat) -> Any:
    return {"messages": [AIMessage(f"answer {len(state['messages'])}")], "seen": [b"x" * 200, None]}


def graph(saver: Any) -> Any:
    inner = StateGraph(Chat)
    inner.add_node("answer", answer)
    inner.add_edge(START, "answer")
    builder = StateGraph(Chat)
    builder.add_node("inner", inner.compile(checkpointer=True))
    builder.add_edge(START, "inner")
    return builder.compile(checkpointer=saver)


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


def said(state: Any) -> list[str]:
    return [message.content for message in state["messages"]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with two threads that have subgraphs."""
    path = tmp_path / "checkpoints.db"
    write(path, "a", "b")
    return path


def write(path: Path, *names: str) -> None:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        for name in names:
            graph(saver).invoke({"messages": [HumanMessage(f"hi {name}")], "seen": []}, thread(name))


def listed(saver: Any, name: str) -> list[Any]:
    found = saver.list(thread(name))
    return [
        (one.config["configurable"]["checkpoint_id"], one.checkpoint, one.metadata, one.pending_writes)
        for one in sorted(found, key=lambda one: one.config["configurable"]["checkpoint_id"])
    ]


def test_every_checkpoint_and_write_is_taken_over_and_the_thread_continues(url: str, path: Path) -> None:
    with holdfast.open_blocking(url) as store, HoldfastSaver(store) as ours:
        report = import_threads(store, path)
        assert (len(report.threads), report.already_there, report.refused) == (4, 0, {})
        with SqliteSaver.from_conn_string(str(path)) as theirs:
            assert listed(ours, "a") == listed(theirs, "a")
            assert len(listed(ours, "a")) + len(listed(ours, "b")) == report.checkpoints
        state = graph(ours).invoke({"messages": [HumanMessage("again")], "seen": []}, thread("a"))
        assert said(state)[:3] == ["hi a", "answer 1", "again"]
        assert store.maintenance.verify().findings == ()


def test_a_second_run_adds_only_new_checkpoints(url: str, path: Path) -> None:
    with holdfast.open_blocking(url) as store:
        first = import_threads(store, path)
        write(path, "c")
        again = import_threads(store, path)
        assert again.already_there == first.checkpoints
        assert again.checkpoints == first.checkpoints // 2
        assert again.refused == {}


def test_a_thread_that_differs_is_refused_and_left_as_it_is(url: str, path: Path) -> None:
    with holdfast.open_blocking(url) as store, HoldfastSaver(store) as ours:
        import_threads(store, path)
        before = listed(ours, "a")
        change(path, lambda data: data.replace(b"hi a", b"HI a"))
        report = import_threads(store, path)
        assert "with other content: import into another store" in report.refused["a"]
        assert listed(ours, "a") == before
        assert "b" in report.threads


def change(path: Path, changed: Callable[[bytes], bytes], *, kind: str = "msgpack") -> None:
    """Change every checkpoint of thread a."""
    with sqlite3.connect(path) as file:
        rows = file.execute("SELECT checkpoint_id, checkpoint FROM checkpoints WHERE thread_id = 'a'").fetchall()
        for id, data in rows:
            statement = "UPDATE checkpoints SET checkpoint = ?, type = ? WHERE thread_id = 'a' AND checkpoint_id = ?"
            file.execute(statement, (changed(data), kind, id))
    file.close()


@pytest.mark.parametrize(
    ("kind", "data", "problem"),
    [
        ("pickle", b"cos\nsystem\n(S'touch hostile'\ntR.", "has the format 'pickle': only msgpack is taken over"),
        ("msgpack", b"\xc1", "does not decode"),
        ("msgpack", b"\x93\x01\x02\x03", "does not decode"),
    ],
    ids=["pickle", "garbage", "no map"],
)
def test_hostile_data_is_refused_and_the_other_threads_continue(
    tmp_path: Path, path: Path, kind: str, data: bytes, problem: str
) -> None:
    change(path, lambda _: data, kind=kind)
    with holdfast.open_blocking("memory:") as store:
        report = import_threads(store, path)
        assert problem in report.refused["a"]
        assert [name for name in report.threads if name.startswith("b")] != []
    assert not (tmp_path / "hostile").exists()


@pytest.mark.parametrize("levels", [100, 500, 5_000])
def test_deeply_nested_data_is_taken_over_or_refused_and_the_other_threads_continue(path: Path, levels: int) -> None:
    deep = b"\x82\xa1v\x01\xa3odd" + b"\x91" * levels + b"\x01"
    change(path, lambda _: deep)
    with holdfast.open_blocking("memory:") as store:
        report = import_threads(store, path)
        assert [name for name in report.threads if name.startswith("b")] != []
        assert ("a" in report.threads) is (levels < 1_000)


def test_an_import_that_meets_the_bottom_of_the_stack_continues(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = importing._draft

    def deep(id: Any, parent: Any, kind: Any, body: Any, metadata: Any) -> Any:
        if b"hi a" in body:
            raise RecursionError
        return drafts(id, parent, kind, body, metadata)

    monkeypatch.setattr(importing, "_draft", deep)
    with holdfast.open_blocking("memory:") as store:
        report = import_threads(store, path)
        assert report.refused["a"] == "from: a checkpoint of it is nested too deeply"
        assert "b" in report.threads


def test_metadata_that_json_cannot_hold_are_taken_over(path: Path) -> None:
    with sqlite3.connect(path) as file:
        file.execute("""UPDATE checkpoints SET metadata = '{"source": "loop", "score": NaN, "big": 1e999}'""")
    file.close()
    with holdfast.open_blocking("memory:") as store:
        assert import_threads(store, path).refused == {}
        assert import_threads(store, path).refused == {}
        found: Any = HoldfastSaver(store).get_tuple(thread("a"))
        assert found.metadata["source"] == "loop"
        assert math.isnan(found.metadata["score"])
        assert found.metadata["big"] == math.inf


def test_metadata_that_differ_are_refused(path: Path) -> None:
    with holdfast.open_blocking("memory:") as store:
        import_threads(store, path)
        with sqlite3.connect(path) as file:
            file.execute("""UPDATE checkpoints SET metadata = '{"source": "fork"}' WHERE thread_id = 'a'""")
        file.close()
        assert "with other content" in import_threads(store, path).refused["a"]


def test_a_file_of_a_newer_framework_is_refused_with_advice(path: Path) -> None:
    with sqlite3.connect(path) as file:
        file.execute("ALTER TABLE checkpoints RENAME COLUMN metadata TO description")
    file.close()
    with holdfast.open_blocking("memory:") as store:
        refused = import_threads(store, path).refused
        assert {*refused} >= {"a", "b"}
        assert "upgrade holdfast" in refused["a"]


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("checkpoints", "checkpoint = 5"),
        ("checkpoints", "checkpoint = NULL"),
        ("checkpoints", "checkpoint_id = CAST('x' || checkpoint_id AS BLOB)"),
        ("checkpoints", "checkpoint_id = iif(parent_checkpoint_id IS NULL, '', checkpoint_id)"),
        ("checkpoints", "parent_checkpoint_id = x'ff'"),
        ("checkpoints", "metadata = 7"),
        ("checkpoints", "type = CAST(x'ff' AS TEXT)"),
        ("writes", "value = 1000000000000000"),
        ("writes", "idx = 'first' || task_id || idx"),
        ("writes", "channel = CAST(x'ff' AS TEXT)"),
        ("writes", "task_path = x'ff'"),
        ("writes", "type = 'pickle'"),
    ],
    ids=str,
)
def test_damaged_rows_are_refused_and_the_other_threads_continue(path: Path, table: str, change: str) -> None:
    with sqlite3.connect(path) as file:
        file.execute(f"UPDATE {table} SET {change} WHERE thread_id = 'a' AND checkpoint_ns = ''")
    file.close()
    with holdfast.open_blocking("memory:") as store:
        report = import_threads(store, path)
        assert list(report.refused) == ["a"]
        assert "from: checkpoint " in report.refused["a"]
        assert "b" in report.threads


def test_a_write_that_differs_is_refused_and_left_as_it_is(url: str, path: Path) -> None:
    with holdfast.open_blocking(url) as store:
        first = import_threads(store, path)
        assert first.writes > 0
        assert import_threads(store, path).writes == 0
        with sqlite3.connect(path) as file:
            file.execute(
                "UPDATE writes SET value = x'c0', type = 'msgpack' WHERE thread_id = 'a' AND checkpoint_ns = ''"
            )
        file.close()
        again = import_threads(store, path)
        assert "with other content" in again.refused["a"]
        assert (again.writes, list(again.refused)) == (0, ["a"])


@pytest.mark.parametrize("at", [1, -1, 2, -3], ids=str)
def test_an_import_that_is_killed_continues(
    lasting_url: str, path: Path, killed_import: Callable[..., None], at: int
) -> None:
    with holdfast.open_blocking(lasting_url):
        pass
    killed_import(at, "langgraph", "--from", str(path), "--url", lasting_url)
    with holdfast.open_blocking(lasting_url) as store, SqliteSaver.from_conn_string(str(path)) as theirs:
        report = import_threads(store, path)
        assert report.refused == {}
        assert report.already_there == abs(at) - (at > 0)
        again = import_threads(store, path)
        assert (again.checkpoints, again.writes) == (0, 0)
        ours = HoldfastSaver(store)
        for name in ("a", "b"):
            assert listed(ours, name) == listed(theirs, name)
        assert store.maintenance.verify().findings == ()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, not a database, not a database")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE checkpoints (a)").connection.close()
    with holdfast.open_blocking("memory:") as store:
        for name, problem in (("absent", "no file"), ("text", "not a SQLite"), ("other.db", "no table 'writes'")):
            with pytest.raises(holdfast.InvalidRequest, match=problem):
                import_threads(store, tmp_path / name)


def test_the_command_reports_what_it_did(tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["import", "langgraph", "--from", str(path), "--url", str(tmp_path / "agent.db")]
    assert main(["init", "--url", str(tmp_path / "agent.db")]) == 0
    assert main(command) == 0
    assert "0 were there already, 0 refused" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["already_there"] > 0
    change(path, lambda _: b"\xc1")
    assert main(command) == 1
    assert "a: from: checkpoint" in capsys.readouterr().out
    assert main(["sessions", "show", "b", "--url", str(tmp_path / "agent.db")]) == 0
    shown = capsys.readouterr().out
    assert "step -1, input\n" in shown
    assert "step 0, loop: human: hi b\n" in shown
    assert "step 1, loop: ai: answer 1\n" in shown


def test_messages_are_readable_in_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "agent.db")
    with HoldfastSaver(url) as saver:
        graph(saver).invoke({"messages": [HumanMessage("hi")], "seen": []}, thread("a"))
    assert main(["sessions", "show", "a", "--url", url]) == 0
    shown = capsys.readouterr().out
    assert "step 0, loop: human: hi" in shown
    assert "step 1, loop: ai: answer 1" in shown
    assert main(["sessions", "graph", "a", "--url", url]) == 0
    assert "messages: human: hi" in capsys.readouterr().out
