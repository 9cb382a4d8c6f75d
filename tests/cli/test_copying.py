"""A whole store is copied to another unchanged, once; what could not be copied is reported, also by the exit code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.failing import until_it_is_done

import holdfast
from holdfast.artifacts import ArtifactSummary
from holdfast.events import EventType, Payload, WakeRule
from holdfast.grants import HandleDescriptor
from holdfast.leases import OnProcess
from holdfast.processes import BySession, Completed, External, Failed, Run
from holdfast.testing.clock import ManualClock
from holdfast.triggers import SubscriptionDraft, registration_for


def fill(url: str) -> None:
    """Create processes in every state, handles, subscriptions with gaps, occurrences in every state, artifacts."""
    clock = ManualClock(1_600_000_000_000)
    with holdfast.open_blocking(url, clock=clock) as store:
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(turn_id="t1", graph=holdfast.Append([holdfast.Node("n1")], leaf="n1")))
        kinds = [
            EventType("progress"),
            EventType("news", wake=WakeRule(input=Payload())),
        ]
        for name in ("running", "done", "failed"):
            clock.advance(1_000)
            store.processes.register(
                holdfast.ProcessRegistration(
                    name, External({"n": name}), event_types=kinds, wake_target=holdfast.Scope("chat")
                )
            )
            for number in range(3):
                clock.advance(10)
                store.events.append(name, "progress", {"percent": number}, replay_key=f"k{number}")
            store.events.append(name, "news", f"{name} has news")
        store.processes.complete("done", Completed({"ok": True}))
        store.processes.complete("failed", Failed("no luck"))
        store.grants.grant(holdfast.Scope("chat"), "running", HandleDescriptor(label="mine"))
        store.grants.grant(holdfast.Scope("chat", "frame"), "done")
        draft = SubscriptionDraft(source_type="cron", source_key="daily", target=External())
        gone = SubscriptionDraft(source_type="cron", target=External(), registrant=BySession(holdfast.Scope("gone")))
        store.triggers.subscribe(gone)
        for _ in range(3):
            store.triggers.subscribe(draft)
        store.triggers.forget_session("gone")
        store.triggers.cancel("trigger:4")
        one, two = store.triggers.emit("cron", "daily", idempotency_key="1", payload=[1]).deliveries
        store.processes.register(registration_for(one))
        store.triggers.mark_failed(two, "no")
        store.triggers.emit("cron", "daily", idempotency_key="2")
        store.schedules.put("nightly", "0 3 * * *", tz="Europe/Vienna", run=Run("report"))
        store.artifacts.put("module", "main", b"code")
        store.artifacts.put_content("environment", b"{}" * 5_000)
    with holdfast.open_blocking(url) as store:
        store.leases.claim(OnProcess("running"), owner_id="worker")


def facts(url: str) -> dict[str, Any]:
    """Return everything that a copy promises to keep."""
    with holdfast.open_blocking(url) as store:
        processes = list(store.processes.list(status="any"))
        occurrences = list(store.triggers.occurrences())
        return {
            "processes": processes,
            "events": {one.id: list(store.events.after(one.id)) for one in processes},
            "wakes": {one.id: list(store.events.wakes(one.id)) for one in processes},
            "grants": {one.id: list(store.grants.of_process(one.id)) for one in processes},
            "subscriptions": list(store.triggers.list()),
            "occurrences": occurrences,
            "deliveries": {
                one.occurrence_id: list(store.triggers.deliveries(one.occurrence_id)) for one in occurrences
            },
            "undelivered": list(store.triggers.undelivered()),
            "schedules": list(store.schedules.list()),
            "artifacts": {(one.kind, one.ref): data_of(store, one) for one in store.artifacts.list()},
            "work": [[item.payload for item in one.items] for one in store.queue.list("chat")],
        }


def data_of(store: holdfast.BlockingStore, one: ArtifactSummary) -> bytes:
    found = store.artifacts.get(one.kind, one.ref)
    assert found is not None
    return found.data


@pytest.fixture
def source(tmp_path: Path) -> str:
    made = str(tmp_path / "source.db")
    fill(made)
    return made


def test_everything_moves_to_postgresql_and_back_equal(
    run: Any, source: str, tmp_path: Path, clean_postgres_url: str
) -> None:
    back = str(tmp_path / "back.db")
    for url in (clean_postgres_url, back):
        assert run("init", "--url", url).code == 0
    there = run("copy", "--from", source, "--to", clean_postgres_url, "--json")
    counts = {
        "subscriptions": {"copied": 3, "already_there": 0},
        "occurrences": {"copied": 2, "already_there": 0},
        "schedules": {"copied": 1, "already_there": 0},
        "processes": {"copied": 4, "already_there": 0},
        "artifacts": {"copied": 2, "already_there": 0},
    }
    assert there.json == {
        "copied": ["chat"],
        "already_there": 0,
        "others": counts,
        "refused": [],
        "left_behind": {"live_leases": 1, "deleted_sessions": 0, "attachment_bytes": 0},
        "forgotten": ["turn_ids", "settled_source_keys"],
    }
    assert there.code == 0
    assert run("copy", "--from", clean_postgres_url, "--to", back).code == 0
    expected = facts(source)
    assert [one.status for one in expected["processes"]][:3] == ["completed", "failed", "running"]
    assert len(expected["work"]) == 3
    assert facts(clean_postgres_url) == expected
    assert facts(back) == expected
    for url in (clean_postgres_url, back):
        assert run("verify", "--url", url).code == 0
        with holdfast.open_blocking(url) as store:
            assert store.leases.claim(OnProcess("running"), owner_id="another").owner_id == "another"


def test_a_second_run_copies_nothing(run: Any, source: str, tmp_path: Path) -> None:
    target = str(tmp_path / "target.db")
    run("init", "--url", target)
    assert run("copy", "--from", source, "--to", target).code == 0
    before = facts(target)
    again = run("copy", "--from", source, "--to", target)
    assert (again.code, again.out) == (
        0,
        "copied 0 sessions, 1 were there already, 0 refused\n"
        "copied 0 subscriptions, 3 were there already, 0 refused\n"
        "copied 0 occurrences, 2 were there already, 0 refused\n"
        "copied 0 schedules, 1 were there already, 0 refused\n"
        "copied 0 processes, 4 were there already, 0 refused\n"
        "copied 0 artifacts, 2 were there already, 0 refused\n"
        "not copied: 1 live lease\n",
    )
    assert facts(target) == before


def test_a_copy_that_fails_at_any_write_continues_and_ends_equal(
    run: Any, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(tmp_path / "target.db")
    run("init", "--url", target)
    codes = until_it_is_done(run, monkeypatch, "copy", "--from", source, "--to", target, most=100)
    assert len(codes) > 10
    assert set(codes[:-1]) == {3}
    assert facts(target) == facts(source)


def test_conflicting_sessions_are_refused_by_name_and_the_rest_is_copied(run: Any, source: str, tmp_path: Path) -> None:
    target = str(tmp_path / "target.db")
    with holdfast.open_blocking(target) as store:
        store.processes.register(holdfast.ProcessRegistration("running", External({"another": 1})))
        store.artifacts.put("module", "main", b"other code")
        draft = SubscriptionDraft(source_type="mine", target=External())
        for _ in range(2):
            store.triggers.subscribe(draft)
    said = run("copy", "--from", source, "--to", target, "--json")
    assert said.code == 1
    refused = [(one["part"], one["id"]) for one in said.json["refused"]]
    assert refused[0] == ("subscriptions", "trigger:2")
    assert ("processes", "running") in refused
    assert ("artifacts", "module/main") in refused
    assert said.json["others"]["processes"]["copied"] == 3
    with holdfast.open_blocking(target) as store:
        assert data_of(store, next(one for one in store.artifacts.list() if one.ref == "main")) == b"other code"
    text = run("copy", "--from", source, "--to", target)
    assert (text.code, "module/main: it is there already with other bytes" in text.out) == (1, True)


def test_a_process_that_continued_after_it_was_copied_is_refused(run: Any, source: str, tmp_path: Path) -> None:
    target = str(tmp_path / "target.db")
    run("init", "--url", target)
    run("copy", "--from", source, "--to", target)
    with holdfast.open_blocking(source) as store:
        store.processes.complete("running", Completed())
    said = run("copy", "--from", source, "--to", target, "--json")
    assert (said.code, [one["id"] for one in said.json["refused"]]) == (1, ["running"])


def test_sessions_alone_are_copied_on_request_and_the_rest_is_named(run: Any, source: str, tmp_path: Path) -> None:
    target = str(tmp_path / "target.db")
    run("init", "--url", target)
    said = run("copy", "--from", source, "--to", target, "--sessions-only", "--json")
    left = {
        "processes": 4,
        "events": 14,
        "grants": 2,
        "subscriptions": 3,
        "occurrences": 2,
        "schedules": 1,
        "artifacts": 2,
        "live_leases": 1,
        "deleted_sessions": 0,
        "attachment_bytes": 0,
    }
    assert (said.code, said.json["others"], said.json["left_behind"]) == (0, {}, left)
    counted = run("status", "--url", target, "--json").json
    assert (counted["sessions"], counted["processes"], counted["artifacts"]) == (1, 0, 0)


@pytest.mark.parametrize("spelling", ["sqlite:{}", "link", "parameter"])
def test_a_store_under_another_name_is_not_copied_onto_itself(
    run: Any, request: pytest.FixtureRequest, tmp_path: Path, spelling: str
) -> None:
    if spelling == "parameter":
        url = str(request.getfixturevalue("clean_postgres_url"))
        other = f"{url}{'&' if '?' in url else '?'}application_name=another"
    else:
        url = str(tmp_path / "source.db")
        other = spelling.format(url)
    fill(url)
    if spelling == "link":
        (tmp_path / "folder").symlink_to(tmp_path)
        other = str(tmp_path / "folder" / "source.db")
    before = facts(url)
    said = run("copy", "--from", url, "--to", other)
    assert (said.code, said.out) == (2, "")
    assert said.err == "holdfast: error: source and target are the same store: nothing was copied\n"
    assert facts(url) == before


def test_leftovers_of_a_killed_copy_neither_move_nor_stay(run: Any, source: str, tmp_path: Path) -> None:
    target = str(tmp_path / "target.db")
    for url in (source, target):
        with holdfast.open_blocking(url) as store:
            store.artifacts.put("holdfast-copy", "marker", b"left")
    assert run("copy", "--from", source, "--to", target, "--json").json["others"]["artifacts"]["copied"] == 2
    assert ("holdfast-copy", "marker") not in facts(target)["artifacts"]


def test_a_copy_says_which_retries_the_target_does_not_know(run: Any, tmp_path: Path) -> None:
    source, target = str(tmp_path / "source.db"), str(tmp_path / "target.db")
    work = holdfast.WorkDraft(session_id="chat", payloads=[1], source_key="mail-7")
    turn = holdfast.Commit(turn_id="t1", graph=holdfast.Append([holdfast.Node("n1")]))
    with holdfast.open_blocking(source) as store:
        store.queue.enqueue(work)
        claim = store.queue.claim("chat", owner_id="worker")
        assert claim is not None
        session = store.sessions.create("chat")
        session.commit(turn)
        session.commit(holdfast.Commit(turn_id="t2", completes=[claim]))
        assert session.commit(turn).replayed
        assert store.queue.enqueue(work).state == "completed"
    run("init", "--url", target)
    said = run("copy", "--from", source, "--to", target).out.splitlines()
    assert said[1] == "their earlier turn ids and settled source keys stay behind: sent to the target, they run again"
    with holdfast.open_blocking(target) as store:
        assert store.queue.enqueue(work).state == "pending"
        assert not store.sessions.handle("chat").commit(holdfast.Commit(turn_id="t1")).replayed
    again = run("copy", "--from", source, "--to", target, "--json").json
    assert (again["copied"], again["forgotten"]) == ([], [])


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_a_store_without_a_name_is_refused_by_the_option_that_names_it(run: Any, tmp_path: Path, option: str) -> None:
    urls = {"--from": tmp_path / "source.db", "--to": tmp_path / "target.db", option: ""}
    said = run("copy", *(word for pair in urls.items() for word in pair))
    assert (said.code, f"{option} is empty" in said.err) == (2, True)


def test_a_target_that_is_not_there_is_named(run: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "source.db", tmp_path / "target.db"
    run("init", "--url", source)
    said = run("copy", "--from", source, "--to", target)
    assert said.code == 4
    assert f"there is no file {target}: did you mean" not in said.err
    assert f"there is no file {target}: check the name, or make a new store with holdfast init" in said.err
    assert not target.exists()


def test_bytes_that_an_interrupted_copy_or_import_did_not_put_are_put_by_the_next(run: Any, tmp_path: Path) -> None:
    source, target, folder = tmp_path / "source.db", tmp_path / "target.db", tmp_path / "bytes"
    with holdfast.open_blocking(source) as store:
        session = store.sessions.create("chat")
        ref = session.attachments.put(b"abc")
        session.commit(holdfast.Commit(attachments=[ref.id]))
    bundle = tmp_path / "chat.jsonl"
    run("sessions", "export", "chat", "-o", bundle, "--url", source)
    run("init", "--url", target)
    where = ("--url", target, "--attachments", folder)
    ways = [
        ("copy", "--from", source, "--to", target, "--to-attachments", folder),
        ("sessions", "import", bundle, *where),
    ]
    for again in (ways[0], *ways):
        assert run(*again).code == 0
        assert run("attachments", "get", "chat", ref.id, *where).out == "abc"
        assert run("verify", *where).code == 0
        # The state after a crash between storing the row and storing the bytes.
        shutil.rmtree(folder)
    # Wrong bytes are written again.
    assert run(*ways[1]).code == 0
    for way in ways:
        [kept] = [path for path in folder.rglob("*") if path.is_file()]
        kept.write_bytes(b"xyz")
        assert run(*way).code == 0
        assert kept.read_bytes() == b"abc"


def test_refusals_use_the_words_of_the_command(run: Any, tmp_path: Path) -> None:
    source, target, folder = tmp_path / "source.db", tmp_path / "target.db", tmp_path / "bytes"
    with holdfast.open_blocking(source, attachments=folder) as store:
        session = store.sessions.create("pictures")
        session.commit(holdfast.Commit(attachments=[session.attachments.put(b"abc").id]))
        store.sessions.create("gone there")
        store.sessions.create("gone here")
        store.sessions.delete("gone here")
    with holdfast.open_blocking(target) as store:
        store.sessions.create("gone there")
        store.sessions.delete("gone there")
    said = run("copy", "--from", source, "--to", target)
    assert said.code == 1
    lines = said.out.splitlines()
    assert "open the store with the --from-attachments or --to-attachments that it was written with" in lines[1]
    assert lines[2].endswith(
        "was deleted here: import it under another id with sessions export, then sessions import --as"
    )
    assert lines[3] == "not copied: 1 deleted session"
    again = run("copy", "--from", source, "--to", target, "--from-attachments", folder, "--json").json
    assert (again["copied"], len(again["refused"])) == (["pictures"], 1)
