"""Every command does on SQLite and on PostgreSQL what its help says, and its JSON has the documented keys."""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.sqlite import backend, schema_setup
from holdfast.cli import sessions as cli_sessions
from holdfast.errors import StoreMissing
from holdfast.leases import OnSession
from holdfast.paging import every
from holdfast.processes import Completed, External
from holdfast.sessions import Graph, ReplaceGraph
from holdfast.testing.clock import ManualClock

NOW = 1_700_000_000_000
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
CHAT: dict[str, Any] = {
    "session_id": "chat",
    "name": "First",
    "owner": "ada",
    "model": "some-model",
    "parent_session_id": None,
    "revision": 1,
    "node_count": 5,
    "created_at_ms": NOW,
    "changed_at_ms": NOW,
    "labels": {},
}
FORK = {
    **CHAT,
    "session_id": "fork",
    "name": "fork",
    "owner": "bob",
    "model": None,
    "parent_session_id": "chat",
    "node_count": 1,
}
USAGE = {
    "source": "turn",
    "model": "some-model",
    "input_tokens": 3,
    "output_tokens": 0,
    "cached_input_tokens": 1,
    "reasoning_tokens": 0,
}


def batch(batch_id: str, **changed: Any) -> dict[str, Any]:
    return {
        "batch_id": batch_id,
        "session_id": "chat",
        "enqueue_seq": 1,
        "source_key": None,
        "delivery": "earliest_safe_boundary",
        "slot": "join",
        "merge_key": "never",
        "available_at_ms": 0,
        "enqueued_at_ms": NOW,
        "items": [],
        "state": "pending",
        "settled_at_ms": None,
        "settled_revision": None,
        "kind": "turn",
        "priority": 0,
        "attempts": 0,
        "last_error": None,
        "retry_at_ms": 0,
        "claimed_by": None,
        "claim_expires_at_ms": None,
        "key": None,
        **changed,
    }


def without_times(value: Any) -> Any:
    """Return the value with every time replaced, because commands write the current time."""
    if isinstance(value, dict):
        return {key: "ms" if key.endswith("_ms") and one else without_times(one) for key, one in value.items()}
    return [without_times(one) for one in value] if isinstance(value, list) else value


# The store itself.


def test_init_makes_a_store_once_and_nothing_else_makes_one(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    refused = run("status", "--url", file)
    assert (refused.code, refused.out, refused.err) == (
        4,
        "",
        f"holdfast: error: there is no file {file}: check the name, or make a new store with holdfast init\n",
    )
    assert not file.exists()
    assert run("init", "--url", file, "--json").json == {"created": True, "schema_version": 1}
    assert run("init", "--url", file, "--json").json == {"created": False, "schema_version": 1}
    assert run("init", "--url", file).out == "already there: schema version 1\n"
    assert run("migrate", "--url", file, "--json").json == {"from": 1, "to": 1}
    assert run("migrate", "--url", tmp_path / "other.db").code == 4


def test_init_leaves_a_file_alone_that_is_something_else(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database " * 100)
    for command in ("init", "status", "doctor"):
        said = run(command, "--url", file)
        assert (said.code, f"{file} is not a Holdfast store" in said.err) == (4, True)
    assert file.read_text() == "not a database " * 100


def test_a_mistyped_name_is_reported_with_those_that_exist(run: Any, tmp_path: Path) -> None:
    run("init", "--url", tmp_path / "agent.db")
    (tmp_path / "agnt.db").write_text("a text")
    said = run("status", "--url", tmp_path / "agnet.db")
    assert (
        said.err
        == f"holdfast: error: there is no file {tmp_path / 'agnet.db'}: did you mean {tmp_path / 'agent.db'}?\n"
    )
    said = run("status", "--url", tmp_path / "no folder" / "agent.db")
    assert f"there is no file {tmp_path / 'no folder' / 'agent.db'}: check the name" in said.err
    with pytest.raises(StoreMissing, match="did you mean") as caught:
        holdfast.open_blocking(tmp_path / "agnet.db", options=holdfast.SqliteOptions(migrate=False))
    assert caught.value.similar == (str(tmp_path / "agent.db"),)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["agent.db", "agnt.db"]


def test_migrate_upgrades_an_older_store_and_nothing_else_does(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "older.db"
    run("init", "--url", file)
    # The next release, whose migration is written here.
    steps = {**schema_setup.migrations(), 2: "CREATE TABLE later (id INTEGER) STRICT;"}
    monkeypatch.setattr(schema_setup, "migrations", lambda: steps)
    for module in (schema_setup, backend):
        monkeypatch.setattr(module, "SCHEMA_VERSION", 2)
    for arguments in (["status"], ["init"]):
        refused = run(*arguments, "--url", file)
        assert refused.code == 4
        assert refused.err.endswith(") has schema version 1, this program 2: run holdfast migrate\n")
    assert run("migrate", "--url", file, "--json").json == {"from": 1, "to": 2}
    assert run("migrate", "--url", file).out.startswith("current: ")


def test_init_makes_a_schema_of_any_name(run: Any, postgres_url: str) -> None:
    where = ("--url", postgres_url, "--schema", "agents")
    assert run("status", *where).code == 4
    assert run("init", *where, "--json").json == {"created": True, "schema_version": 1}
    assert run("status", *where).code == 0
    assert run("status", "--url", postgres_url).code == 4


def test_a_schema_can_be_made_from_what_schema_prints(run: Any, postgres_url: str) -> None:
    printed = run("schema", "--url", postgres_url, "--schema", "printed")
    assert printed.code == 0
    sys.modules["holdfast_postgres_server"].run_sql(postgres_url, printed.out)
    assert run("status", "--url", postgres_url, "--schema", "printed").code == 0
    assert run("schema", "--url", "any.db", "--json").json == {"ddl": holdfast.ddl("any.db")}
    assert not Path("any.db").exists()
    assert run("schema", "--url", "memory:").code == 2


def test_schema_prints_how_to_spread_a_store_over_nodes(run: Any) -> None:
    url = "postgresql://db.example.net/agents"
    for key, word in (("schema", "citus_schema_distribute"), ("family", "create_distributed_table")):
        printed = run("schema", "--url", url, "--distribute-by", key)
        assert printed.out.rstrip() == holdfast.ddl(url, distribute_by=key).rstrip()
        assert word in printed.out
    refused = run("schema", "--url", "any.db", "--distribute-by", "family")
    assert (refused.code, "only a PostgreSQL store" in refused.err) == (2, True)


def test_the_schema_of_a_url_is_that_of_the_store_behind_it(url: str) -> None:
    with holdfast.open_blocking(url) as store:
        assert holdfast.ddl(url) == store.ddl()


def test_status_counts_everything(on: Any, filled: Any) -> None:
    said = on("status", "--json")
    assert said.code == 0
    on_disk = said.json.pop("bytes_on_disk")
    facts = said.json
    assert on_disk > 0
    facts.pop("bytes_on_disk")
    assert facts.pop("blob_bytes") > 0
    assert facts == {
        "durability": "durable",
        "schema_version": 1,
        "sessions": 2,
        "deleted_sessions": 0,
        "revisions": 2,
        "nodes": 5,
        "blobs": 5,
        "pending_batches": 2,
        "claimed_batches": 0,
        "settled_batches": 0,
        "attachments": 4,
        "attachment_bytes": 8,
        "processes": 1,
        "running_processes": 1,
        "events": 1,
        "grants": 0,
        "live_leases": 0,
        "subscriptions": 1,
        "occurrences": 0,
        "undelivered": 0,
        "schedules": 0,
        "artifacts": 0,
        "oldest_pending_batch_at_ms": NOW,
    }
    assert "batches               2 pending, 0 claimed, 0 settled\n" in on("status").out


# Sessions.


def test_sessions_are_listed_in_pages(on: Any, filled: Any) -> None:
    first = on("sessions", "list", "--json", "--limit", 1).json
    assert first["items"] == [CHAT]
    assert on("sessions", "list", "--json", "--after", first["next"]).json == {"items": [FORK], "next": None}
    assert on("sessions", "list", "--owner", "bob", "--json").json == {"items": [FORK], "next": None}
    assert on("sessions", "list", "--parent", "chat", "--json").json == {"items": [FORK], "next": None}
    assert on("sessions", "list", "--changed-since", NOW + 1, "--json").json == {"items": [], "next": None}
    text = on("sessions", "list", "--limit", 1)
    assert text.out == (
        "session  name   owner  model       labels  revision  nodes  changed\n"
        "chat     First  ada    some-model  -       1         5      2023-11-14 22:13:20Z\n"
    )
    assert text.err.startswith("there is more: --after ")


def test_a_session_is_shown_as_it_stands(on: Any, filled: Any) -> None:
    said = on("sessions", "show", "chat", "--last", 1, "--json").json
    refs = said.pop("components")
    assert sorted(refs) == ["execution_state", "turn_state"]
    assert said.pop("checkpoint_ref").startswith("checkpoint-sha256:")
    assert said["frames"][0].pop("execution_state_ref").startswith("bytes-sha256:")
    assert said == {
        "session_id": "chat",
        "meta": {
            "session_id": "chat",
            "name": "First",
            "created_at_ms": NOW,
            "model": "some-model",
            "owner": "ada",
            "cwd": None,
            "relation": {"kind": "root"},
            "labels": {},
        },
        "revision": 1,
        "node_count": 5,
        "leaf": "n2",
        "config": {"mode": "fast"},
        "frames": [
            {
                "frame_id": "f1",
                "previous_frame_id": None,
                "status": "active",
                "reason": "initial",
                "caused_by": None,
                "created_at_ms": 0,
                "assignment": None,
                "turn_options": None,
            }
        ],
        "current_frame_id": "f1",
        "ledger": [USAGE],
        "lease": None,
        "unsettled_batches": 2,
        "paused": False,
        "path": [
            {
                "id": "n2",
                "parent": "n1",
                "kind": "event",
                "payload": "hello",
                "frame_id": None,
                "caused_by": None,
                "created_at_ms": NOW,
            }
        ],
    }
    assert "n2  event  hello\n" in on("sessions", "show", "chat").out
    assert on("sessions", "show", "nobody").code == 1


def test_history_lists_revisions(on: Any, filled: Any) -> None:
    (entry,) = on("sessions", "history", "chat", "--json").json["items"]
    assert entry.pop("checkpoint_ref").startswith("checkpoint-sha256:")
    assert entry == {"revision": 1, "turn_id": "turn-1", "leaf": "n2", "usage": [USAGE], "committed_at_ms": NOW}
    assert on("sessions", "history", "chat", "--oldest-first").out.splitlines()[1].split()[:4] == [
        "1",
        "turn-1",
        "n2",
        "3",
    ]
    assert on("sessions", "history", "nobody").code == 1


def test_a_graph_is_drawn_with_branches_head_and_tombstones(on: Any, filled: Any) -> None:
    said = on("sessions", "graph", "chat")
    assert said.out == (
        "✗ s2  tombstoned\n"
        "○ s3  event  null\n"
        '● n1  event  {"z":1,"a":2}\n'
        "├─○ s1  event  null\n"
        "◆ n2  event  hello  <- head\n"
        "4 nodes, 1 tombstoned, revision 1\n"
    )
    assert on("sessions", "graph", "chat", "--json").json == {
        "session_id": "chat",
        "revision": 1,
        "leaf": "n2",
        "tombstoned": 1,
        "nodes": [
            {"id": "s2", "parent": None, "kind": None, "mark": "tombstone"},
            {"id": "s3", "parent": "s2", "kind": "event", "mark": "side"},
            {"id": "n1", "parent": None, "kind": "event", "mark": "path"},
            {"id": "s1", "parent": "n1", "kind": "event", "mark": "side"},
            {"id": "n2", "parent": "n1", "kind": "event", "mark": "head"},
        ],
    }
    assert on("sessions", "graph", "chat", "--at", 1).out.endswith("2 nodes, 0 tombstoned, revision 1\n")
    assert on("sessions", "graph", "chat", "--at", 9).code == 1
    assert on("sessions", "graph", "nobody").code == 1


@pytest.mark.parametrize(("replacements", "code"), [(1, 0), (3, 0), (9, 1)])
def test_a_graph_that_is_replaced_while_it_is_drawn_is_drawn_anew(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replacements: int, code: int
) -> None:
    file = tmp_path / "agent.db"
    names = [f"n{number}" for number in range(250)]
    with holdfast.open_blocking(file) as store:
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(name, parent=None) for name in names])))
        left = replacements

        def meanwhile(*args: Any, **named: Any) -> Iterator[Any]:
            nonlocal left
            for number, one in enumerate(every(*args, **named)):
                if number == 100 and left:
                    left -= 1
                    nodes = tuple(holdfast.Node(name, parent=None, payload=left) for name in names)
                    session.commit(holdfast.Commit(graph=ReplaceGraph(Graph(nodes, "n0"))))
                yield one

        monkeypatch.setattr(cli_sessions, "every", meanwhile)
        said = run("sessions", "graph", "chat", "--json", "--url", file)
    assert said.code == code
    if code == 0:
        assert sorted(node["id"] for node in said.json["nodes"]) == sorted(names)
    else:
        assert "name a revision with --at" in said.err


def test_a_fork_starts_at_the_given_point(on: Any, filled: Any) -> None:
    made = on("sessions", "fork", "chat", "again", "--at", "n1", "--json")
    assert made.json == {"session_id": "again", "source": "chat", "at": "n1", "revision": 1, "leaf": "n1"}
    assert on("sessions", "fork", "chat", "third", "--at-revision", 1).out == "forked chat into third, leaf n2\n"
    taken = on("sessions", "fork", "chat", "again")
    assert taken.code == 1
    assert "exists already" in taken.err


def test_a_deleted_session_is_reported_and_gone(on: Any, filled: Any) -> None:
    said = on("sessions", "delete", "fork", "--yes", "--json")
    assert said.code == 0
    assert said.json == {
        "session_id": "fork",
        "deleted": True,
        "revisions": 1,
        "nodes": 0,
        "usage_rows": 0,
        "batches": 0,
        "attachments": 1,
        "blobs": 0,
        "revoked_grants": 0,
        "subscriptions": 0,
        "cleared_wake_targets": 0,
        "orphaned_process_ids": [],
        "preserved_process_ids": [],
        "descendant_ids": [],
    }
    again = on("sessions", "delete", "fork", "--yes", "--json")
    assert (again.code, "session 'fork' was deleted" in again.err) == (1, True)
    assert on("sessions", "show", "fork").code == 1


def test_a_tree_is_deleted_only_at_the_revision_that_was_seen(on: Any, filled: Any) -> None:
    refused = on("sessions", "delete", "chat", "--tree", "--expected-revision", 9, "--yes")
    assert (refused.code, "session 'chat' is at revision" in refused.err) == (1, True)
    said = on("sessions", "delete", "chat", "--tree", "--yes", "--json")
    assert (said.code, said.json["deleted"], said.json["descendant_ids"]) == (0, True, ["fork"])
    assert on("sessions", "show", "fork").code == 1


# The queue.


def test_work_is_listed_shown_and_cancelled(on: Any, filled: Any) -> None:
    listed = on("queue", "list", "--json").json
    assert listed["complete"] is True
    keyed, plain = listed["items"]
    item = keyed["items"][0].pop("item_id")
    assert item
    plain_item = plain["items"][0].pop("item_id")
    assert keyed == batch(filled.keyed, source_key="key-1", items=[{"payload": {"x": 1}}])
    assert plain == batch(filled.plain, enqueue_seq=2, merge_key={"name": "g"}, items=[{"payload": "y"}])
    assert on("queue", "list", "--session", "chat", "--pending", "--limit", 1, "--json").json["complete"] is False
    text = on("queue", "list", "--limit", 1)
    assert text.out.splitlines()[1].split()[:4] == [filled.keyed, "chat", "turn", "pending"]
    assert "key-1" in text.out.splitlines()[1].split()
    assert text.err == "there is more: raise --limit, or name a --session\n"
    shown = on("queue", "show", "chat", filled.plain, "--json").json
    assert shown["items"] == [{"item_id": plain_item, "payload": "y"}]
    lines = [line.split(maxsplit=2) for line in on("queue", "show", "chat", filled.plain).out.splitlines()]
    assert ["merge", "key", "group g"] in lines
    cancelled = on("queue", "cancel", "chat", filled.keyed, "--yes", "--json")
    assert (cancelled.code, cancelled.json["state"]) == (0, "cancelled")
    assert on("queue", "cancel", "chat", filled.keyed, "--yes").code == 1
    assert on("queue", "cancel", "chat", filled.plain, "--yes").out == f"cancelled {filled.plain}\n"
    assert on("queue", "show", "chat", "batch:none").code == 1


@pytest.mark.usefixtures("filled")
def test_claimed_and_dead_work_is_shown_and_dead_work_is_retried_and_dropped(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        held = store.queue.claim_next(owner_id="worker-7")
        assert held is not None
    shown = on("queue", "show", "chat", held.batches[0].batch_id, "--json").json
    assert (shown["state"], shown["claimed_by"], shown["attempts"]) == ("claimed", "worker-7", 1)
    assert shown["claim_expires_at_ms"] == held.expires_at_ms
    assert str(held.token) not in on("queue", "show", "chat", held.batches[0].batch_id, "--json").out
    assert on("queue", "dead", "--json").json == {"items": [], "complete": True}
    with holdfast.open_blocking(url) as store:
        store.queue.fail(held, "no answer", retry_in_ms=None)
        other = store.queue.claim_next(owner_id="worker-7")
        assert other is not None
        store.queue.fail(other, "no route", retry_in_ms=None)
    dead = on("queue", "dead", "--kind", "turn", "--json").json["items"]
    assert [(one["state"], one["last_error"]) for one in dead] == [("dead", "no answer"), ("dead", "no route")]
    text = on("queue", "dead", "--session", "chat", "--limit", 1)
    assert "no answer" in text.out
    assert text.err == "there is more: raise --limit, or name a --session or a --kind\n"
    first, second = (one["batch_id"] for one in dead)
    assert on("queue", "retry", "chat", first, "--yes").out == f"retried {first}\n"
    assert on("queue", "drop", "chat", second, "--yes", "--json").json["state"] == "cancelled"
    again = on("queue", "retry", "chat", first, "--yes")
    assert (again.code, "it is not dead" in again.err) == (1, True)
    assert on("queue", "drop", "chat", "batch:none", "--yes").code == 1


# Processes.


def test_a_batch_that_cannot_be_cancelled_is_named_before_the_question(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.sessions.create("chat")
        batch = store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1], source_key="once"))
        store.queue.cancel("chat", batch.batch_id)
        store.processes.register(holdfast.ProcessRegistration("build", External()))
        store.processes.complete("build", Completed())
    said = on("queue", "cancel", "chat", batch.batch_id)
    assert (said.code, "was not cancelled" in said.err) == (1, True)
    said = on("processes", "cancel", "build")
    assert (said.code, "is already terminal (completed)" in said.err) == (1, True)


def test_a_missing_batch_is_named_before_the_question(on: Any, filled: Any) -> None:
    said = on("queue", "cancel", "chat", "batch:nope")
    assert (said.code, "session 'chat' has no batch 'batch:nope'" in said.err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("sessions fork chat other --at n1 --at-revision 1", "--at and --at-revision"),
        ("tail --session chat --process build --for 1ms", "--process and --session"),
        ("tail --from-start --for 1ms", "--from-start"),
        ("queue list --limit 0", "--limit"),
        ("queue list --limit 1001", "--limit"),
        ("processes list --limit 1001", "--limit"),
    ],
)
def test_options_that_mean_nothing_together_or_at_all_are_refused(
    on: Any, filled: Any, arguments: str, says: str
) -> None:
    said = on(*arguments.split())
    assert (said.code, said.out, says in said.err) == (2, "", True)


def test_processes_are_listed_and_shown(on: Any, filled: Any) -> None:
    listed = on("processes", "list", "--json").json
    assert listed["next"] is None
    (process,) = listed["items"]
    shown = on("processes", "show", "build", "--json").json
    assert shown == {"process": process, "lease": None, "grants": []}
    assert process.pop("registration_hash")
    assert [kind["name"] for kind in process.pop("event_types")][:2] == ["progress", "signal.go"]
    assert process == {
        "id": "build",
        "input": {"type": "external", "metadata": {"l": 1}},
        "identity": {"kind": "external", "label": None, "definition": None},
        "provenance": {"originator": {"type": "host"}, "caused_by": None},
        "env_ref": None,
        "wake_target": None,
        "created_at_ms": NOW,
        "updated_at_ms": NOW,
        "event_count": 1,
        "external_ref": None,
        "wait": None,
        "waits": [],
        "status": "running",
        "outcome": None,
        "recovery": "external",
        "due_at_ms": None,
        "attempt": 0,
        "suspended": False,
        "lost_owner_id": None,
        "last_error": None,
    }
    assert on("processes", "list", "--status", "failed", "--json").json == {"items": [], "next": None}
    assert on("processes", "list", "--waiting", "--json").json == {"items": [], "next": None}
    assert "status       running\n" in on("processes", "show", "build").out
    assert on("processes", "show", "nobody").code == 1


def test_a_run_is_shown_with_its_due_time_attempt_error_and_holder(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.processes.start("research", id="run-1", version="2", recovery="owner_bound")
        claim = store.processes.claim_next(owner_id="w1")
        assert claim is not None
        store.processes.retry_later(claim.lease, "no answer", retry_in_ms=0)
        store.processes.claim_next(owner_id="w2")
    [line] = [line for line in on("processes", "list").out.splitlines() if line.startswith("run-1")]
    for part in ("research 2", "no answer", "w2"):
        assert part in line
    shown = on("processes", "show", "run-1").out
    fields = dict(line.split(maxsplit=1) for line in shown.splitlines() if len(line.split()) > 1)
    assert (fields["attempt"], fields["recovery"], fields["kind"]) == ("2", "owner_bound", "research 2")
    assert "last error" in shown
    assert "w2 until" in shown


def test_a_signal_and_a_request_to_stop_are_events(on: Any, filled: Any) -> None:
    said = on("processes", "signal", "build", "go", "--payload", '{"by": "ada"}', "--replay-key", "k", "--json")
    shown = without_times(said.json)
    assert shown.pop("position").partition(":")[0] in {"sqlite", "postgresql"}
    assert shown == {
        "event": {
            "process_id": "build",
            "sequence": 2,
            "type": "signal.go",
            "payload": {"by": "ada"},
            "occurred_at_ms": "ms",
            "replay_key": "k",
            "terminal_state": None,
            "wake": None,
            "acknowledged": False,
        },
        "wake": None,
        "batch_id": None,
        "replayed": False,
    }
    again = on("processes", "signal", "build", "go", "--payload", '{"by": "ada"}', "--replay-key", "k")
    assert again.out == "signal.go #2 of build (it was there already)\n"
    other = on("processes", "signal", "build", "go", "--payload", "1", "--replay-key", "k")
    assert other.code == 1
    asked = on("processes", "cancel", "build", "--reason", "late", "--yes", "--json").json
    assert (asked["event"]["type"], asked["event"]["payload"]) == ("process.cancel_requested", {"reason": "late"})
    events = on("processes", "events", "build", "--json", "--after", 1).json
    assert [one["sequence"] for one in events["items"]] == [2, 3]
    assert [
        one["sequence"] for one in on("processes", "events", "build", "--type", "progress", "--json").json["items"]
    ] == [1]
    page = on("processes", "events", "build", "--limit", 2, "--json").json
    assert [
        one["sequence"] for one in on("processes", "events", "build", "--after", page["next"], "--json").json["items"]
    ] == [3]
    assert on("processes", "signal", "build", "stop").code == 2
    assert on("processes", "events", "nobody").code == 1


# Triggers.


def test_a_trigger_is_listed_fired_once_and_switched_off(on: Any, filled: Any) -> None:
    (listed,) = on("triggers", "list", "--json").json["items"]
    assert (listed["handle"], listed["enabled"], listed["draft"]["name"]) == ("trigger:1", True, "morning")
    fired = on("triggers", "emit", "cron", "daily", "--key", "today", "--payload", "[1]", "--json").json
    assert without_times(fired["occurrence"]) == {
        "occurrence_id": fired["occurrence"]["occurrence_id"],
        "source_type": "cron",
        "source_key": "daily",
        "idempotency_key": "today",
        "payload": [1],
        "source": None,
        "occurred_at_ms": "ms",
    }
    assert (len(fired["deliveries"]), fired["replayed"]) == (1, False)
    again = on("triggers", "emit", "cron", "daily", "--key", "today", "--payload", "[1]", "--json").json
    assert (again["deliveries"], again["replayed"]) == ([], True)
    (waiting,) = on("triggers", "list", "--undelivered", "--json").json["items"]
    assert waiting["process_id"] == fired["deliveries"][0]["process_id"]
    assert on("triggers", "emit", "cron", "daily", "--key", "today").code == 1
    text = on("triggers", "emit", "cron", "daily", "--key", "tomorrow").out.splitlines()
    assert text[0].endswith(": 1 deliveries reserved")
    assert text[1].endswith("  trigger:1")
    assert on("triggers", "cancel", "trigger:1", "--yes", "--json").json == {"handle": "trigger:1", "cancelled": True}
    assert on("triggers", "cancel", "trigger:1", "--yes").code == 1
    assert "no      " in on("triggers", "list", "--source-type", "cron").out


def test_deliveries_of_one_session_are_listed(on: Any, filled: Any) -> None:
    del filled
    on("triggers", "emit", "cron", "daily", "--key", "1")
    for word in ("--undelivered", "--failed"):
        every = on("triggers", "list", word, "--json").json["items"]
        assert on("triggers", "list", word, "--session", "chat", "--json").json["items"] == []
        assert len(every) == (word == "--undelivered")


# Attachments.


def test_attachments_are_listed_and_read(on: Any, filled: Any, tmp_path: Path) -> None:
    listed = on("attachments", "list", "chat", "--json").json
    assert listed["items"][1:] == [
        {"id": ABC, "media_type": "text/plain", "byte_count": 3, "width": None, "height": None, "label": "letters"},
        {"id": "far", "media_type": "image/png", "byte_count": 5, "width": None, "height": None, "label": None},
    ]
    uncommitted = on("attachments", "list", "--uncommitted", "--json").json["items"]
    assert uncommitted[1] == {
        "session_id": "chat",
        "attachment_id": "far",
        "uri": "s3://bucket/far",
        "intent_at_ms": NOW,
        "committed_at_ms": None,
    }
    assert len(on("attachments", "list", "fork", "--uncommitted", "--json").json["items"]) == 0
    assert on("attachments", "get", "chat", ABC).out == "abc"
    file = tmp_path / "letters.txt"
    said = on("attachments", "get", "chat", ABC, "--output", file, "--json")
    assert said.json == {"ref": listed["items"][1], "output": str(file)}
    assert file.read_bytes() == b"abc"
    file.write_bytes(b"mine")
    assert on("attachments", "get", "chat", ABC, "--output", file).code == 2
    assert file.read_bytes() == b"mine"
    assert on("attachments", "get", "chat", ABC, "--output", file, "--yes").code == 0
    assert file.read_bytes() == b"abc"
    assert on("attachments", "get", "chat", ABC, "--json").code == 2
    assert on("attachments", "get", "fork", "far").code == 1
    assert on("attachments", "list").code == 2


def test_a_sweep_forgets_uncommitted_intents(on: Any, filled: Any) -> None:
    assert on("attachments", "sweep", "--yes", "--json").json == {
        "forgotten_intents": 2,
        "deleted_objects": 1,
        "deleted_bytes": 5,
        "deleted_unfinished": 0,
    }
    assert on("attachments", "sweep", "--older-than", "7d", "--yes", "--json").json["forgotten_intents"] == 0


def test_attachment_bytes_in_a_folder_are_read_through_it(run: Any, url: str, tmp_path: Path) -> None:
    folder = tmp_path / "bytes"
    with holdfast.open_blocking(url, attachments=folder) as store:
        store.sessions.create("chat").attachments.put(b"abc")
    where = ("--url", url, "--attachments", folder)
    assert run("attachments", "get", "chat", ABC, *where).out == "abc"


# Housekeeping.


def test_housekeeping_reports_what_it_did(on: Any, filled: Any) -> None:
    assert on("gc", "--yes", "--json").json == {
        "roots": 5,
        "retained_blobs": 5,
        "deleted_blobs": 0,
        "deleted_bytes": 0,
        "deleted_nodes": 0,
        "deleted_results": 0,
    }
    assert on("vacuum", "--session", "chat", "--yes", "--json").json == {"removed_nodes": 1}
    assert on("vacuum", "--yes").out == "removed nodes  0\n"


def test_prune_foretells_and_forgets(on: Any, filled: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.sessions.handle("chat").commit(holdfast.Commit(turn_id="turn-2"))
    foretold = {
        "dry_run": True,
        "revisions": 1,
        "batches": 0,
        "processes": 0,
        "events": 0,
        "occurrences": 0,
        "deliveries": 0,
        "complete": True,
    }
    assert on("prune", "--keep-revisions", 1, "--dry-run", "--json").json == foretold
    assert on("prune", "--keep-revisions", 1, "--yes", "--json").json == {**foretold, "dry_run": False}
    assert on("prune", "--keep-revisions", 1, "--settled-batches", "1d", "--yes", "--json").json["revisions"] == 0
    nothing = on("prune", "--yes")
    assert nothing.code == 2
    assert "name what to forget" in nothing.err


def test_verify_says_ok(on: Any, filled: Any) -> None:
    said = on("verify", "--json")
    assert said.code == 0
    assert said.json == {
        "ok": True,
        "checked_sessions": 2,
        "checked_revisions": 2,
        "checked_nodes": 5,
        "checked_blobs": 5,
        "checked_processes": 1,
        "checked_events": 1,
        "checked_attachments": 4,
        "checked_artifacts": 0,
        "findings": [],
        "unread_attachments": 0,
        "foreign_attachments": 0,
    }
    assert on("verify").out.endswith("ok\n")


def test_verify_says_what_it_does_not_read(run: Any, url: str, tmp_path: Path) -> None:
    folder = tmp_path / "bytes"
    with holdfast.open_blocking(url, attachments=folder) as store:
        chat = store.sessions.create("chat")
        chat.attachments.record_intent("far", uri="s3://bucket/far", media_type="image/png", byte_count=5)
        chat.commit(holdfast.Commit(attachments=[chat.attachments.put(b"abc").id, "far"]))
    without = run("verify", "--url", url)
    assert without.code == 0
    assert "not read: 1 attachment outside of the database, name their folder with --attachments\n" in without.out
    assert "not read: 1 attachment at URIs outside the store" in without.out
    assert "outside of the database" not in run("verify", "--url", url, "--attachments", folder).out


def test_verify_finds_damage_and_says_so_with_its_exit_code(run: Any, tmp_path: Path) -> None:
    import apsw

    file = tmp_path / "damaged.db"
    with holdfast.open_blocking(file) as store:
        store.sessions.create("chat").commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state={"a": 1})))
    connection = apsw.Connection(str(file))
    connection.execute("UPDATE blobs SET body = x'00'")
    connection.close()
    said = run("verify", "--url", file, "--json")
    assert said.code == 1
    assert said.json["ok"] is False
    assert sorted(said.json["findings"][0]) == ["key", "problem", "table"]
    assert run("verify", "--url", file).out.endswith("\n1 finding: restore what is damaged from a backup\n")
    assert run("sessions", "show", "chat", "--url", file).code == 5


def test_doctor_finds_nothing_in_a_store_that_is_in_order(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "sound.db"
    run("init", "--url", file)
    said = run("doctor", "--url", file)
    assert (said.code, said.out) == (0, "ok\n")
    said = run("doctor", "--url", file, "--json", "--quick")
    assert said.code == 0
    assert sorted(said.json) == ["concerns", "facts", "ok", "stuck"]
    assert (said.json["ok"], said.json["concerns"]) == (True, [])
    assert said.json["facts"]["engine"]["type"] == "sqlite"


def test_doctor_names_what_is_dangerous_and_what_waits(on: Any, filled: Any, url: str) -> None:
    # Every row in the store dates from 2023.
    with holdfast.open_blocking(url, clock=ManualClock(NOW)) as store:
        store.leases.claim(OnSession("chat"), owner_id="w")
        store.triggers.emit("cron", "daily", idempotency_key="monday")
    said = on("doctor", "--json")
    assert said.code == 1
    assert said.json["ok"] is False
    found = {concern["name"]: concern for concern in said.json["concerns"]}
    # The tests' own server runs without durability.
    servers = {"fsync", "full-page-writes"} if url.startswith("postgresql") else set()
    assert set(found) == {"undelivered", "old-work"} | servers, "the next claim of a session ends an expired lease"
    assert sorted(found["old-work"]) == ["advice", "ids", "level", "name", "problem"]
    text = on("doctor")
    assert text.code == 1
    assert "warning  undelivered: 1 delivery reserved" in text.out
    assert "start each with `holdfast triggers redeliver`" in text.out
    [process_id] = found["undelivered"]["ids"]
    assert f"holdfast why {process_id} --url " in text.out


def test_deliveries_that_failed_are_listed_with_their_error(on: Any, url: str) -> None:
    target = holdfast.processes.Run("report")
    with holdfast.open_blocking(url) as store:
        store.triggers.subscribe(
            holdfast.triggers.SubscriptionDraft(source_type="cron", source_key="failing", target=target)
        )
        (delivery,) = store.triggers.emit("cron", "failing", idempotency_key="1").deliveries
        store.triggers.mark_failed(delivery, "the payload does not fit")
    (listed,) = on("triggers", "list", "--failed", "--json").json["items"]
    assert (listed["process_id"], listed["failure"]) == (delivery.process_id, "the payload does not fit")
    assert "the payload does not fit" in on("triggers", "list", "--failed").out


def test_doctor_says_that_a_schema_is_behind(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "older.db"
    run("init", "--url", file)
    for module in (schema_setup, backend):
        monkeypatch.setattr(module, "SCHEMA_VERSION", 2)
    said = run("doctor", "--url", file, "--json")
    assert (said.code, said.json["facts"]) == (1, None)
    (concern,) = said.json["concerns"]
    assert (concern["level"], concern["name"], concern["advice"]) == (
        "warning",
        "schema-behind",
        "run holdfast migrate",
    )
    assert run("doctor", "--url", tmp_path / "none.db").code == 4


# Tail.


def test_tail_shows_what_happened_since(on: Any, filled: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.sessions.handle("chat").commit(holdfast.Commit(turn_id="turn-2"))
        store.events.append("build", "progress", {"percent": 75})
    said = on("tail", "--since", "1h", "--for", "1ms", "--json")
    lines = [json.loads(line) for line in said.out.splitlines()]
    turn, event = sorted(lines, key=lambda one: one["what"], reverse=True)
    assert (turn["what"], turn["session_id"], turn["revision"]["turn_id"]) == ("turn", "chat", "turn-2")
    assert (event["what"], event["process_id"], event["event"]["payload"]) == ("event", "build", {"percent": 75})
    assert on("tail", "--session", "fork", "--since", "1h", "--for", "1ms").out.count("turn") == 0


def test_tail_shows_turns_of_one_millisecond_in_their_order(on: Any, url: str) -> None:
    now_ms = int(time.time() * 1000)
    with holdfast.open_blocking(url, clock=ManualClock(now_ms)) as store:
        sessions = [store.sessions.create(name) for name in ("a", "b")]
        for number in range(1, 6):
            for session in sessions:
                session.commit(holdfast.Commit(turn_id=f"turn-{number}"))
    result = [json.loads(line) for line in on("tail", "--since", "1h", "--for", "1ms", "--json").out.splitlines()]
    for name in ("a", "b"):
        assert [one["revision"]["revision"] for one in result if one["session_id"] == name] == [1, 2, 3, 4, 5]
    assert {one["at_ms"] for one in result} == {now_ms}


def test_tail_of_a_session_shows_its_first_work_long_before_the_next_look(
    on: Any, filled: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = holdfast.open_blocking
    waits = threading.Event()

    def opened(*args: Any, **kwargs: Any) -> holdfast.BlockingStore:
        store = original(*args, **kwargs)
        pause = store._backend.pause

        async def announcing(change: Any, timeout_ms: int) -> bool:
            waits.set()
            return await pause(change, timeout_ms)

        monkeypatch.setattr(store._backend, "pause", announcing)
        return store

    def enqueue() -> None:
        assert waits.wait(60)
        with original(url) as store:
            store.queue.enqueue(holdfast.WorkDraft(session_id="fork", payloads=[1]))

    monkeypatch.setattr(holdfast, "open_blocking", opened)
    writer = threading.Thread(target=enqueue)
    writer.start()
    # The next poll would be in an hour; the end comes before that.
    said = on("tail", "--session", "fork", "--interval", "1h", "--for", "10s", "--json")
    writer.join(60)
    result = [json.loads(line) for line in said.out.splitlines()]
    assert [(one["what"], one["session_id"], one["state"]) for one in result] == [("batch", "fork", "pending")]


def test_tail_of_a_process_ends_with_it(on: Any, filled: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.processes.complete("build", Completed(42))
    said = on("tail", "--process", "build", "--from-start")
    assert said.code == 0
    first, last = said.out.splitlines()
    assert first.endswith(' event build #1 progress {"percent":50}')
    assert " event build #2 process.completed " in last
    result = on("tail", "--process", "build", "--from-start", "--json").out.splitlines()
    assert [json.loads(line)["event"]["sequence"] for line in result] == [1, 2]
    assert on("tail", "--process", "nobody").code == 1


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(run: Any, kind: str) -> None:
    said = run("completion", kind, "--json")
    assert said.json == {"shell": kind, "script": run("completion", kind).out}


def test_bytes_in_json_are_base64(on: Any, filled: Any, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    on("sessions", "export", "chat", "-o", file)
    assert base64.b64encode(b"\x00\xff").decode() in file.read_text()


# Labels.


def test_sessions_are_labelled_and_listed_by_label_and_prefix(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        for name in ("acme/1", "acme/2", "globex/1"):
            store.sessions.create(name, labels={"user": name[-1]})
    changed = on("sessions", "label", "acme/2", "project=a=b", "empty=", "--remove", "user", "--json")
    assert changed.json == {"session_id": "acme/2", "labels": {"empty": "", "project": "a=b"}}
    assert on("sessions", "label", "acme/2").out.split() == ["empty", "project", "a=b"]

    def listed(*arguments: str) -> list[str]:
        found = on("sessions", "list", *arguments, "--json")
        return [one["session_id"] for one in found.json["items"]]

    assert listed("--label", "user=1") == ["acme/1", "globex/1"]
    assert listed("--label", "user=1", "--prefix", "acme/") == ["acme/1"]
    assert listed("--label", "project=a=b", "--label", "empty=") == ["acme/2"]
    assert listed("--newest-first", "--prefix", "acme/") == ["acme/2", "acme/1"]
    assert "user=1" in on("sessions", "show", "acme/1").out
    assert "user=1" in on("sessions", "list").out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("sessions", "label", "chat", "user"), "'user' is not a label: write KEY=VALUE"),
        (("sessions", "list", "--label", "=x"), "'=x' is not a label: write KEY=VALUE"),
        (("sessions", "label", "chat", "a=1", "--remove", "a"), "label 'a' is set and removed: give one"),
    ],
)
def test_anything_but_a_label_is_refused(on: Any, arguments: tuple[str, ...], problem: str) -> None:
    said = on(*arguments)
    assert (said.code, said.out) == (2, "")
    assert problem in said.err
