"""An exported session arrives unchanged in any other store, once; damaged, newer and conflicting files are refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.failing import until_it_is_done

import holdfast


@pytest.fixture
def other(tmp_path: Path) -> str:
    """A second, empty store."""
    made = str(tmp_path / "other.db")
    holdfast.open_blocking(made).close()
    return made


def facts(url: str, session_id: str) -> dict[str, Any]:
    """Return everything that a move promises to keep."""
    with holdfast.open_blocking(url) as store:
        session = store.sessions.handle(session_id)
        view = session.load(holdfast.sessions.FullGraph())
        assert view is not None
        attachments = {}
        for ref in session.attachments.list():
            entry = session.attachments.entry(ref.id)
            data = None if ref.id == "far" else session.attachments.get(ref.id).data
            attachments[ref.id] = (ref, entry.uri, entry.committed_at_ms is not None, data)
        path = session.load()
        assert path is not None
        return {
            "meta": session.meta(),
            "nodes": view.graph.nodes,
            "leaf": view.graph.leaf,
            "path": path.graph.nodes,
            "config": view.config,
            "frames": view.frames,
            "current_frame_id": view.current_frame_id,
            "manifest": view.manifest,
            "checkpoint": view.checkpoint,
            "ledger": view.ledger,
            "attachments": attachments,
            "work": [
                ([item.payload for item in one.items], one.merge_key, one.slot, one.delivery, one.available_at_ms)
                for one in store.queue.list(session_id)
            ],
        }


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.jsonl.gz"])
def test_a_session_comes_back_equal_in_another_store(
    on: Any, run: Any, filled: Any, url: str, other: str, tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    said = on("sessions", "export", "chat", "-o", file, "--json")
    counts = {"meta": 1, "attachment": 3, "node": 5, "component": 2, "frame": 1, "head": 1, "batch": 2}
    assert said.json["manifest"]["counts"] == counts
    imported = run("sessions", "import", file, "--url", other, "--json")
    assert imported.json == {"session_id": "chat", "outcome": "imported", "manifest": said.json["manifest"]}
    assert facts(other, "chat") == facts(url, "chat")
    assert run("verify", "--url", other).code == 0


def test_a_large_state_that_is_stored_as_a_delta_moves_whole(
    on: Any, run: Any, url: str, other: str, tmp_path: Path
) -> None:
    states = [bytes([number]) * 9 + hashlib.shake_128(b"state").digest(70_000) for number in range(3)]
    with holdfast.open_blocking(url) as store:
        session = store.sessions.create("large")
        for state in states:
            session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=state)))
        assert store.maintenance.stats().blob_bytes < 71_000
    file = tmp_path / "large.jsonl"
    on("sessions", "export", "large", "-o", file)
    assert run("sessions", "import", file, "--url", other).code == 0
    assert facts(other, "large") == facts(url, "large")
    assert facts(other, "large")["checkpoint"] == holdfast.Checkpoint(execution_state=states[2])
    with holdfast.open_blocking(other) as store:
        assert store.maintenance.stats().blobs == 1
        assert store.maintenance.verify().ok


def test_the_same_file_again_changes_nothing(on: Any, run: Any, filled: Any, other: str, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    on("sessions", "export", "chat", "-o", file)
    run("sessions", "import", file, "--url", other)
    with holdfast.open_blocking(other) as store:
        claim = store.queue.claim("chat", owner_id="worker")
        assert claim is not None
        store.sessions.handle("chat").commit(holdfast.Commit(turn_id="later", completes=[claim]))
    before = run("status", "--url", other, "--json").json
    again = run("sessions", "import", file, "--url", other, "--json")
    assert (again.code, again.json["outcome"]) == (0, "already_there")
    after = run("status", "--url", other, "--json").json
    assert {**after, "bytes_on_disk": 0} == {**before, "bytes_on_disk": 0}
    history = run("sessions", "history", "chat", "--url", other, "--json").json["items"]
    assert [one["turn_id"] for one in history][:1] == ["later"]


def test_a_session_can_be_imported_beside_itself_under_another_id(on: Any, filled: Any, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    on("sessions", "export", "chat", "-o", file)
    refused = on("sessions", "import", file)
    problem = "session 'chat' is there already, and did not come from this file: import it under another id with --as"
    assert (refused.code, refused.err) == (1, f"holdfast: error: {problem}\n")
    assert on("sessions", "import", file, "--as", "twin", "--json").json["session_id"] == "twin"
    assert on("sessions", "show", "twin", "--json").json["meta"]["session_id"] == "twin"


def test_an_import_that_was_interrupted_continues(
    on: Any, run: Any, filled: Any, url: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "chat.jsonl"
    on("sessions", "export", "chat", "-o", file)
    codes = until_it_is_done(run, monkeypatch, "sessions", "import", file, "--url", other, most=50)
    assert len(codes) > 5
    assert set(codes[:-1]) == {3}
    assert facts(other, "chat") == facts(url, "chat")


def test_another_session_of_that_id_is_neither_overwritten_nor_mixed(
    on: Any, run: Any, filled: Any, other: str, tmp_path: Path
) -> None:
    file = tmp_path / "chat.jsonl"
    on("sessions", "export", "chat", "-o", file)
    with holdfast.open_blocking(other) as store:
        store.sessions.create("chat", name="Mine")
        store.sessions.handle("nodes").add_nodes([holdfast.Node("mine")])
        store.sessions.create("gone")
        store.sessions.delete("gone")
    for name, why in [
        ("chat", "begun here, and not by this file"),
        ("nodes", "begun here, and not by this file"),
        ("gone", "deleted here"),
    ]:
        refused = run("sessions", "import", file, "--as", name, "--url", other)
        assert refused.code == 1
        assert why in refused.err
    with holdfast.open_blocking(other) as store:
        meta = store.sessions.handle("chat").meta()
        assert meta is not None
        assert meta.name == "Mine"
        assert len(store.sessions.handle("nodes").nodes()) == 1


@pytest.mark.parametrize(
    "data", [b"", b"hello\n", b"[]\n", b"\x1f\x8b\x08broken", b"{}\n"], ids=["empty", "text", "list", "gzip", "object"]
)
def test_any_other_file_is_refused(run: Any, tmp_path: Path, other: str, data: bytes) -> None:
    file = tmp_path / "any"
    file.write_bytes(data)
    assert run("sessions", "import", file, "--url", other).code == 1
    assert run("sessions", "import", tmp_path / "missing", "--url", other).code == 2


def test_a_cut_anywhere_and_a_changed_byte_of_a_packed_file_are_noticed(run: Any, tmp_path: Path, other: str) -> None:
    with holdfast.open_blocking(tmp_path / "source.db") as store:
        store.sessions.create("chat").add_nodes([holdfast.Node("n1", payload="hi")])
    for name in ("chat.jsonl", "chat.jsonl.gz"):
        file = tmp_path / name
        run("sessions", "export", "chat", "-o", file, "--url", tmp_path / "source.db")
        data = file.read_bytes()
        for index in range(0, len(data), 17):
            file.write_bytes(data[:index])
            assert run("sessions", "import", file, "--url", other).code == 1, index
    with holdfast.open_blocking(other) as store:
        assert len(store.sessions.list()) == 0
    for index in range(0, len(data), 5):
        file.write_bytes(data[:index] + bytes([data[index] ^ 0x41]) + data[index + 1 :])
        # The header of a gzip file has bytes without meaning.
        assert run("sessions", "import", file, "--url", other).code in {0, 1}, index


def test_the_manifest_vouches_for_every_line(on: Any, filled: Any, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl.gz"
    on("sessions", "export", "chat", "-o", file)
    first, *rest = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    said = json.loads(first)
    assert (said["format"], said["version"]) == ("holdfast-session", 1)
    manifest = said["manifest"]
    assert said["sha256"] == hashlib.sha256(json.dumps(manifest, separators=(",", ":")).encode()).hexdigest()
    assert manifest["session_id"] == "chat"
    assert manifest["source"] == {"revision": 1, "node_count": 5}
    assert manifest["sha256"] == hashlib.sha256(b"".join(rest)).hexdigest()
    order = ["meta", *["attachment"] * 3, *["node"] * 5, *["component"] * 2, "frame", "head", "batch", "batch"]
    assert [json.loads(line)["line"] for line in rest] == order


def test_an_export_to_standard_output_is_the_file(on: Any, filled: Any, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    on("sessions", "export", "chat", "-o", file)
    assert on("sessions", "export", "chat").out == file.read_text()
    assert on("sessions", "export", "chat", "-o", file).code == 2
    assert on("sessions", "export", "chat", "-o", file, "--yes").code == 0
    assert on("sessions", "export", "chat", "--json").code == 2
    assert on("sessions", "export", "nobody").code == 1
    assert [one.name for one in tmp_path.glob("*unfinished*")] == []


def test_an_import_under_an_empty_id_is_refused(on: Any, filled: Any, tmp_path: Path) -> None:
    on("sessions", "export", "chat", "-o", tmp_path / "chat.jsonl")
    said = on("sessions", "import", tmp_path / "chat.jsonl", "--as", "")
    assert (said.code, "--as: " in said.err) == (2, True)


def test_attachments_whose_bytes_are_not_found_are_counted(run: Any, tmp_path: Path) -> None:
    source, target, folder = tmp_path / "source.db", tmp_path / "target.db", tmp_path / "bytes"
    with holdfast.open_blocking(source, attachments=folder) as store:
        store.sessions.create("chat").attachments.put(b"abc")
    run("init", "--url", target)
    said = run("sessions", "export", "chat", "-o", tmp_path / "a.jsonl", "--url", source)
    assert "without the bytes of 1 attachment: " in said.out
    assert "name it with --attachments" in said.out
    said = run("copy", "--from", source, "--to", target)
    assert (said.code, "name it with --from-attachments" in said.out) == (0, True)
    for option in ("--attachments", "--from-attachments"):
        command = ["sessions", "export", "chat", "-o", tmp_path / "b.jsonl", "--url", source, "--yes"]
        if option == "--from-attachments":
            command = ["copy", "--from", source, "--to", target]
        said = run(*command, option, tmp_path / "typo")
        assert (said.code, f"{option}: there is no folder" in said.err) == (2, True)
        said = run(*command, option, folder)
        assert (said.code, "without the bytes" in said.out) == (0, False)


def test_an_id_that_other_programs_could_not_use_is_not_chosen(on: Any, filled: Any, tmp_path: Path) -> None:
    on("sessions", "export", "chat", "-o", tmp_path / "chat.jsonl")
    for command in (["sessions", "import", tmp_path / "chat.jsonl", "--as"], ["sessions", "fork", "chat"]):
        said = on(*command, "x" * 600)
        assert (said.code, "is 600 bytes long" in said.err) == (2, True)


def test_a_session_is_imported_from_standard_input(
    on: Any, run: Any, filled: Any, url: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "chat.jsonl.gz"
    on("sessions", "export", "chat", "-o", file)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert run("sessions", "import", "-", "--url", other).out == "imported: chat, 5 nodes\n"
    assert facts(other, "chat") == facts(url, "chat")


# A whole store.


def test_a_store_is_copied_once_and_a_second_run_continues(run: Any, filled: Any, url: str, other: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.artifacts.put("module", "main", b"code")
    first = run("copy", "--from", url, "--to", other, "--json")
    others = {name: {"copied": 1, "already_there": 0} for name in ("subscriptions", "processes", "artifacts")}
    others |= {name: {"copied": 0, "already_there": 0} for name in ("occurrences", "schedules")}
    left = {"live_leases": 0, "deleted_sessions": 0, "attachment_bytes": 1}
    said = {"copied": ["chat", "fork"], "already_there": 0, "refused": [], "left_behind": left, "others": others}
    assert first.code == 0
    assert first.json == {**said, "forgotten": ["turn_ids", "settled_source_keys"]}
    for name in ("chat", "fork"):
        assert facts(other, name) == facts(url, name)
    before = run("status", "--url", other, "--json").json
    second = run("copy", "--from", url, "--to", other, "--json")
    others = {name: {"copied": 0, "already_there": count["copied"]} for name, count in others.items()}
    said = {"copied": [], "already_there": 2, "refused": [], "left_behind": left, "others": others, "forgotten": []}
    assert second.json == said
    assert run("status", "--url", other, "--json").json == before
    with holdfast.open_blocking(url) as store:
        store.sessions.create("new")
        store.sessions.handle("fork").commit(holdfast.Commit(turn_id="more"))
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["late"], source_key="late"))
    third = run("copy", "--from", url, "--to", other)
    assert third.code == 1
    said = third.out.splitlines()
    assert said[0] == "copied 2 sessions, 0 were there already, 1 refused"
    assert said[-2].startswith("fork: it is there already in another state")
    assert facts(other, "chat")["work"] == facts(url, "chat")["work"]


def test_a_copy_that_was_interrupted_anywhere_continues_and_copies_nothing_twice(
    run: Any, tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(tmp_path / "source.db")
    with holdfast.open_blocking(source) as store:
        for name in ("a", "b"):
            session = store.sessions.create(name)
            ref = session.attachments.put(b"abc")
            graph = holdfast.Append([holdfast.Node("n1"), holdfast.Node("n2", parent="n1")], leaf="n2")
            session.commit(holdfast.Commit(turn_id="t", graph=graph, attachments=[ref.id]))
            store.queue.enqueue(holdfast.WorkDraft(session_id=name, payloads=[name]))
    codes = until_it_is_done(run, monkeypatch, "copy", "--from", source, "--to", other, most=50)
    assert len(codes) > 5
    assert set(codes[:-1]) == {3}
    for name in ("a", "b"):
        assert facts(other, name) == facts(source, name)
    counted = run("status", "--url", other, "--json").json
    assert (counted["revisions"], counted["nodes"], counted["pending_batches"], counted["attachments"]) == (2, 4, 2, 2)


def test_a_head_that_is_tombstoned_stays_so(run: Any, tmp_path: Path, other: str) -> None:
    source = str(tmp_path / "source.db")
    with holdfast.open_blocking(source) as store:
        session = store.sessions.create("chat")
        nodes = [holdfast.Node("a"), holdfast.Node("b", parent="a"), holdfast.Node("c", parent="b")]
        session.commit(holdfast.Commit(graph=holdfast.Append(nodes, leaf="c")))
        session.tombstone(["c"])
    assert run("copy", "--from", source, "--to", other).code == 0
    moved = facts(other, "chat")
    assert moved == facts(source, "chat")
    assert (moved["leaf"], moved["path"]) == ("c", ())
    assert run("copy", "--from", source, "--to", other, "--json").json["already_there"] == 1


def test_sessions_without_a_commit_move_too_and_empty_ones_are_left(run: Any, tmp_path: Path, other: str) -> None:
    source = str(tmp_path / "source.db")
    with holdfast.open_blocking(source) as store:
        store.sessions.handle("nodes").add_nodes([holdfast.Node("n1")])
        store.queue.enqueue(holdfast.WorkDraft(session_id="work", payloads=[1]))
        store.leases.claim(holdfast.leases.OnSession("leased"), owner_id="worker")
    assert run("copy", "--from", source, "--to", other, "--json").json["copied"] == ["nodes", "work"]
    again = run("copy", "--from", source, "--to", other, "--json").json
    assert (again["copied"], again["already_there"]) == ([], 3)
    assert [one["revision"] for one in run("sessions", "list", "--url", other, "--json").json["items"]] == [0, 0]
    assert run("sessions", "export", "leased", "--url", source).code == 1


def test_a_store_is_not_copied_onto_itself_or_into_nothing(run: Any, other: str, tmp_path: Path) -> None:
    assert run("copy", "--from", other, "--to", other).code == 2
    assert run("copy", "--from", other, "--to", tmp_path / "nothing.db").code == 4
    assert run("copy", "--from", other).code == 2


def test_sessions_move_between_sqlite_and_postgres(
    run: Any, clean_postgres_url: str, tmp_path: Path, other: str
) -> None:
    run("init", "--url", clean_postgres_url)
    with holdfast.open_blocking(other) as store:
        nodes = [holdfast.Node(f"n{number}", parent=f"n{number - 1}" if number else None) for number in range(1200)]
        store.sessions.create("long").commit(holdfast.Commit(graph=holdfast.Append(nodes, leaf="n1199")))
    assert run("copy", "--from", other, "--to", clean_postgres_url, "--json").json["copied"] == ["long"]
    back = tmp_path / "back.db"
    run("init", "--url", back)
    assert run("copy", "--from", clean_postgres_url, "--to", back, "--json").json["copied"] == ["long"]
    assert facts(str(back), "long") == facts(other, "long")
