"""Limits and pauses by command: kinds of work are limited, listed, paused and resumed; so are sessions."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast


@pytest.fixture
def queued(url: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.sessions.create("chat-42").enqueue("hi", kind="mail", key="ada")


@pytest.mark.usefixtures("queued")
def test_a_limit_is_set_listed_and_taken_away(on: Any) -> None:
    assert on("queue", "limit", "mail", "--at-once", 10).out == "mail: at once 10, per key any\n"
    answer = on("queue", "limit", "mail", "--at-once", 3, "--per-key", 2, "--json").json
    assert (answer["kind"], answer["at_once"], answer["per_key"], answer["paused"]) == ("mail", 3, 2, False)
    lines = on("queue", "limits").out.splitlines()
    assert [line.split() for line in lines] == [["kind", "at", "once", "per", "key", "state"], ["mail", "3", "2"]]
    assert on("queue", "limit", "mail").out == "mail: at once 3, per key 2\n", "a look changes nothing"
    assert on("queue", "limit", "mail", "--json").json == answer
    refused = on("queue", "limit", "mail", "--none", "--at-once", 1)
    assert (refused.code != 0, "leave out --at-once" in refused.err) == (True, True)
    assert on("queue", "limit", "mail", "--none").out == "mail has no limits\n"
    assert on("queue", "limit", "mail", "--none", "--json").json == {"name": "mail", "changed": False}
    assert on("queue", "limit", "mail").out == "mail has no limits\n"
    assert on("queue", "limit", "mail", "--json").json is None
    assert on("queue", "limits", "--json").json["items"] == []
    on("queue", "pause", "mail")
    assert on("queue", "limit", "mail").out == "mail: at once any, per key any, paused\n"


@pytest.mark.usefixtures("queued")
def test_a_paused_kind_is_listed_and_is_not_claimed_until_it_continues(on: Any, url: str) -> None:
    assert on("queue", "pause", "mail").out == "mail is paused\n"
    assert on("queue", "pause", "mail").out == "mail was paused already\n"
    [shown] = on("queue", "limits", "--json").json["items"]
    assert (shown["kind"], shown["paused"]) == ("mail", True)
    with holdfast.open_blocking(url) as store:
        assert store.queue.claim_next(owner_id="w1") is None
        assert on("queue", "resume", "mail").out == "mail continues\n"
        assert on("queue", "resume", "mail", "--json").json == {"name": "mail", "changed": False}
        assert store.queue.claim_next(owner_id="w1") is not None


@pytest.mark.usefixtures("queued")
def test_a_paused_session_says_so_where_it_is_shown(on: Any) -> None:
    assert on("sessions", "show", "chat-42", "--json").json["paused"] is False
    assert on("sessions", "pause", "chat-42").out == "chat-42 is paused\n"
    assert on("sessions", "pause", "chat-42").out == "chat-42 was paused already\n"
    assert on("sessions", "show", "chat-42", "--json").json["paused"] is True
    assert "yes: nothing in its queue is claimed" in on("sessions", "show", "chat-42").out
    assert on("sessions", "paused", "--json").json["items"] == ["chat-42"]
    assert on("sessions", "resume", "chat-42").out == "chat-42 continues\n"
    assert on("sessions", "paused").out.splitlines()[1:] == []
    assert on("sessions", "resume", "chat-42", "--json").json == {"name": "chat-42", "changed": False}


@pytest.mark.usefixtures("queued")
def test_a_wrong_limit_or_session_is_refused_by_name(on: Any) -> None:
    refused = on("queue", "limit", "mail", "--at-once", 0)
    assert refused.code != 0
    assert "at_once" in refused.err or "at-once" in refused.err
    assert on("sessions", "pause", "chat-43").code != 0
