"""An id that does not exist is reported as unknown: no output would look like an idle session."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.cli import ids
from holdfast.processes import BySession, Completed, External, Provenance
from holdfast.triggers import SubscriptionDraft

OF_A_SESSION = [
    "queue list --session {}",
    "queue show {} work:1",
    "queue cancel {} work:1",
    "queue dead --session {}",
    "queue retry {} work:1",
    "queue drop {} work:1",
    "tail --session {} --for 1ms",
    "vacuum --session {} --yes",
    "sessions list --parent {}",
    "sessions show {}",
    "sessions history {}",
    "sessions graph {}",
    "sessions export {}",
    "sessions label {}",
    "sessions label {} user=u1",
    "sessions fork {} other",
    "sessions delete {}",
    "attachments list {}",
    "attachments list {} --uncommitted",
    "attachments get {} ba7816bf",
    "triggers list --session {}",
    "processes list --started-by {}",
]
OF_A_PROCESS = [
    "tail --process {}",
    "processes show {}",
    "processes events {}",
    "processes signal {} go",
    "processes cancel {} --yes",
]


@pytest.mark.parametrize("command", OF_A_SESSION)
def test_there_is_no_such_session(on: Any, command: str) -> None:
    said = on(*command.format("nope").split())
    assert (said.code, said.out) == (1, "")
    assert "unknown session 'nope'" in said.err


@pytest.mark.parametrize("command", OF_A_PROCESS)
def test_there_is_no_such_process(on: Any, command: str) -> None:
    said = on(*command.format("nope").split())
    assert (said.code, said.out) == (1, "")
    assert "unknown process 'nope'" in said.err


@pytest.mark.parametrize("command", OF_A_SESSION)
def test_the_message_names_a_deleted_session_as_deleted(on: Any, url: str, command: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.sessions.create("gone")
        store.sessions.delete("gone")
    said = on(*command.format("gone").split())
    assert (said.code, said.out) == (1, "")
    assert "session 'gone' was deleted" in said.err


@pytest.mark.parametrize(
    "command",
    [
        "queue list --session {}",
        "tail --session {} --for 1ms",
        "vacuum --session {} --yes",
        "sessions list --parent {}",
        "sessions history {}",
        "attachments list {}",
        "triggers list --session {}",
        "triggers list --undelivered --session {}",
        "processes list --started-by {}",
    ],
)
@pytest.mark.parametrize("with_work", [False, True], ids=["made", "only work"])
def test_a_session_that_has_nothing_to_show_is_known(on: Any, url: str, command: str, *, with_work: bool) -> None:
    with holdfast.open_blocking(url) as store:
        if with_work:
            store.queue.enqueue(holdfast.WorkDraft(session_id="idle", payloads=["x"]))
        else:
            store.sessions.create("idle")
    assert on(*command.format("idle").split()).code == 0


def test_one_that_started_processes_and_did_nothing_else_is_known(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        scope = Provenance(BySession(holdfast.Scope("starter")))
        store.processes.register(holdfast.ProcessRegistration("p", External(), provenance=scope))
        store.processes.complete("p", Completed())
    assert on("processes", "list", "--started-by", "starter").code == 0


# Suggestions.


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sesions"], "there is no command 'sesions': did you mean `holdfast sessions`? See holdfast --help"),
        (["retry"], "did you mean `holdfast queue retry` or `holdfast processes retry`?"),
        (["queue", "lst"], "did you mean `holdfast queue list`? See holdfast queue --help"),
        (["sessions", "list", "--limt", "4"], "did you mean --limit? See holdfast sessions list --help"),
        (["xyzzy"], "there is no command 'xyzzy': see holdfast --help"),
    ],
    ids=str,
)
def test_a_mistyped_command_or_option_is_guessed(run: Any, arguments: list[str], says: str) -> None:
    said = run(*arguments)
    assert (said.code, says in said.err) == (2, True), said.err


def test_a_mistyped_id_is_guessed(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.sessions.create("Chat-42")
        store.processes.start("research", id="research-1")
        store.schedules.put("nightly", "0 3 * * *")
    assert "did you mean 'Chat-42'?" in on("sessions", "show", "chat_42").err
    assert "did you mean 'research-1'?" in on("processes", "show", "reserch-1").err
    assert "did you mean 'nightly'?" in on("schedules", "pause", "nightli").err
    assert "did you mean 'Chat-42'?" in on("why", "chat42").err
    assert "did you mean" not in on("sessions", "show", "something else").err


def test_an_id_that_begins_with_a_dash_comes_after_two(on: Any) -> None:
    said = on("why", "-x")
    assert (said.code, said.err.endswith("an id that begins with a dash comes last, after --: -- -x\n")) == (2, True)


def test_ids_are_listed_for_completion(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.sessions.create("chat-1")
        store.sessions.create("mail")
    assert on("complete", "sessions", "ch").out == "chat-1\n"
    assert on("complete", "any", "--json").json == {"ids": ["mail", "chat-1"]}


def test_batches_are_listed_for_completion(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.sessions.create("chat").enqueue("x", source_key="k1")
        waiting = [one.batch_id for one in store.queue.list("chat")]
    assert on("complete", "batches", "--session", "chat").out.split() == waiting
    assert on("complete", "batches", "--session", "chat", "no").out == ""
    for words in (["batches"], ["sessions", "--session", "chat"]):
        said = on("complete", *words)
        assert (said.code, "--session" in said.err) == (2, True)


def test_ids_are_found_by_their_beginning_among_many(on: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "MOST", 10)
    with holdfast.open_blocking(url) as store:
        for number in range(40):
            store.sessions.create(f"chat-{number:02}")
    assert on("complete", "sessions", "chat-07").out == "chat-07\n"
    assert on("complete", "sessions", "chat-1").out.split() == [f"chat-1{number}" for number in range(10)]
    assert on("complete", "sessions").out.split()[0] == "chat-39"
    assert "did you mean 'chat-07'" in on("why", "chat-07x").err
    assert on("complete", "any", "%").out == ""


def test_ids_of_every_kind_are_guessed(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        batch_id = store.sessions.create("chat").enqueue("hi").batch_id
        store.schedules.put("nightly", "0 3 * * *")
        store.triggers.subscribe(SubscriptionDraft(source_type="cron", source_key="daily", target=External()))
    for command, meant in (
        (f"queue show chat {batch_id[:-4]}", batch_id),
        ("schedules remove nightli --yes", "nightly"),
        ("triggers cancel triger:1 --yes", "trigger:1"),
    ):
        said = on(*command.split())
        assert (said.code, f"did you mean {meant!r}?" in said.err) == (1, True), said
        assert ": see holdfast " in said.err
