"""Each page of the inspector shows its facts, and shows hostile text as text."""

from __future__ import annotations

import asyncio
import html
import json
import random
import re
import time
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from tests.inspector.conftest import HOST, HOSTILE, SESSION, TOKEN

import holdfast
from holdfast.activity import Pace
from holdfast.cli.terminal import moment
from holdfast.inspector import activity_sampler, app, comparing, conversation, inspector, searching, views
from holdfast.inspector.app import PAGES
from holdfast.inspector.conversation import blocks_of
from holdfast.inspector.source import Source
from holdfast.operations import workers
from holdfast.processes import BySession, Provenance, Run, SignalWait
from holdfast.store import Maintenance
from holdfast.triggers import SubscriptionDraft
from holdfast.workers import WorkerInfo

ADDRESSES: dict[str, dict[str, str]] = {
    "/": {},
    "/sessions": {},
    "/session": {"id": SESSION},
    "/tree": {"id": SESSION},
    "/node": {"id": SESSION, "node": "turn-1/0"},
    "/processes": {},
    "/process": {"id": "run <i>"},
    "/queue": {},
    "/triggers": {},
    "/why": {"id": SESSION},
}


def test_every_page_is_tried() -> None:
    assert set(ADDRESSES) == set(PAGES)


@pytest.mark.parametrize("path", ADDRESSES)
def test_a_page_shows_hostile_text_as_text(client: Any, path: str) -> None:
    answer = client.get(path, params=ADDRESSES[path])
    assert answer.status_code == 200, answer.text
    assert "<script>alert" not in answer.text
    assert "<i>" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert re.findall(r"<script(?![^>]* src=)", answer.text) == [], "no script stands in a page"


def test_hidden_characters_are_written_out_and_keep_their_place_in_links(url: str, client: Any) -> None:
    odd, rtl = "paid\u202e\x1b[2J\x9b\u2066", "שלום \u200d مرحبا"
    with holdfast.open_blocking(url) as store:
        session = store.sessions.create(odd, owner=odd)
        session.append({"role": "user", "content": f"{odd} {rtl} a\tb\nc"})
        session.append({"role": "user", "content": "more"})
    answers = [client.get(path, params={"id": odd}) for path in ("/session", "/tree", "/why")]
    answers.append(client.get("/sessions", params={"owner": odd}))
    assert [one.status_code for one in answers] == [200] * 4
    page, listed = answers[0].text, answers[3].text
    shown = r"paid\u202e\x1b[2J\x9b\u2066"
    assert f"<h1>{shown}</h1>" in page
    assert f"{shown} {rtl} a\tb\nc" in html.unescape(page)
    for answer in answers:
        text = re.sub(r'value="[^"]*"', "", html.unescape(answer.text))
        assert not re.search("[\x1b\x9b\u202e\u2066]", text), answer.url
    assert f'name="id" value="{odd}"' in page, "a form sends the id as it is"
    assert f'name="owner" value="{odd}"' in listed
    assert f">{shown}</a>" in listed
    assert client.get(html.unescape(re.findall(r'href="(/session\?[^"]+)"', listed)[0])).status_code == 200


def test_a_session_reads_like_a_conversation(client: Any) -> None:
    text = client.get("/session", params={"id": SESSION}).text
    assert text.count("role-user") == 2
    assert text.count("role-assistant") == 2
    assert "dead-letter" in text
    assert "revision 2 · 4 nodes" in text
    assert "&#34;turn&#34;: 2" in text, "the state, and what the turn changed"
    assert "fork" in text


AS_STORED: dict[str, tuple[str, Any, list[tuple[str, str]]]] = {
    "pydantic ai, request": (
        "pydantic-ai.message",
        {
            "parts": [
                {"part_kind": "system-prompt", "content": "Be kind"},
                {"part_kind": "user-prompt", "content": "What now?"},
            ]
        },
        [("system", "Be kind"), ("user", "What now?")],
    ),
    "pydantic ai, response": (
        "pydantic-ai.message",
        {"parts": [{"part_kind": "thinking", "content": "hm"}, {"part_kind": "text", "content": "Tea"}]},
        [("reasoning", "hm"), ("assistant", "Tea")],
    ),
    "adk, user": ("adk.event", {"author": "user", "content": {"parts": [{"text": "hi"}]}}, [("user", "hi")]),
    "adk, agent": (
        "adk.event",
        {"author": "helper", "content": {"parts": [{"text": "call me"}]}},
        [("assistant", "call me")],
    ),
    "adk, call": (
        "adk.event",
        {"author": "helper", "content": {"parts": [{"function_call": {"name": "weather", "args": {}}}]}},
        [("call", "weather()")],
    ),
    "a2a": ("a2a.message", {"role": "ROLE_AGENT", "parts": [{"text": "done"}]}, [("assistant", "done")]),
    "langgraph": (
        "langgraph.write",
        b'{"channel":"messages","type":"msgpack"}\n' + msgspec.msgpack.encode([{"type": "ai", "content": "hello"}]),
        [("assistant", "hello")],
    ),
    "openai agents": ("openai-agents.item", {"role": "user", "content": "hi"}, [("user", "hi")]),
}


@pytest.mark.parametrize("name", AS_STORED)
def test_messages_of_an_adapter_read_like_a_conversation(name: str) -> None:
    kind, payload, shown = AS_STORED[name]
    blocks = blocks_of([holdfast.Node("n", kind=kind, payload=payload)])
    assert [(entry.role, entry.text) for block in blocks for entry in block.entries] == shown


def a_thread(store: holdfast.BlockingStore, *messages: dict[str, Any]) -> None:
    """Store checkpoints of a graph, each with one message more, as the adapter of LangGraph does."""
    session = store.sessions.create("thread")
    for number in range(1, len(messages) + 1):
        objects = [msgspec.msgpack.encode(["a.module", "Message", one]) for one in messages[:number]]
        value = msgspec.msgpack.encode([msgspec.msgpack.Ext(5, one) for one in objects])
        plan = b64encode(msgspec.msgpack.encode(["look", number])).decode()
        payload = {
            "format": 1,
            "metadata": {"step": number, "source": "loop"},
            "values": {"plan": ["msgpack", plan], "gone": ["null", ""], "odd": ["msgpack", "?"], "short": ["msgpack"]},
            "components": {"messages": "msgpack", "large": "msgpack"},
        }
        node = holdfast.Node(f"c{number}", kind="langgraph.checkpoint", payload=payload)
        state = holdfast.Checkpoint.of({"messages": value, "large": b"\xc1"})
        session.commit(holdfast.Commit(graph=holdfast.Append([node]), checkpoint=state))


ASKED = {"type": "human", "content": f"what is the weather? {HOSTILE}", "id": "m1"}
CALLED = {"type": "ai", "content": "", "tool_calls": [{"name": "weather", "args": {"city": "Oslo"}}]}
ANSWERED = {"type": "ai", "content": "sunny " * 1_000, "id": "m3"}


def test_a_thread_reads_like_a_conversation(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store:
        a_thread(store, {"type": "system", "content": "You are an agent."}, ASKED, CALLED, ANSWERED)
    page = client.get("/session", params={"id": "thread"}).text
    roles = re.findall(r'<li class="entry role-(\w+)">', page)
    assert roles == ["system", "user", "tool", "assistant"]
    assert "weather({&#34;city&#34;:&#34;Oslo&#34;})" in page
    assert "<script>alert" not in page
    (place,) = set(re.findall(r'<a href="([^"]*)">the whole<', page))
    whole = client.get(html.unescape(place)).text
    assert ("sunny " * 1_000).strip() in whole
    assert client.get(html.unescape(place).replace("message=3", "message=4")).status_code == 404
    saved = client.get("/payload", params={"id": "thread", "at": 4, "message": 3})
    assert saved.json() == ANSWERED
    cut = conversation.blocks_of_thread([ASKED, ANSWERED], 1)
    assert [(entry.role, entry.message) for block in cut for entry in block.entries] == [("assistant", 1)]
    assert "checkpoint" not in "".join(re.findall(r'<span class="role">(.*?)</span>', page))


def test_time_travel_in_a_thread_shows_the_messages_that_came(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store:
        a_thread(store, ASKED, CALLED, ANSWERED)
    page = client.get("/session", params={"id": "thread", "at": 2}).text
    assert re.findall(r'<li class="entry role-(\w+)">', page) == ["user", "tool"]
    changed = re.findall(r'<span class="(plus|minus)">(.*?)\n</span>', page, re.DOTALL)
    assert ("plus", "+call: weather({&#34;city&#34;:&#34;Oslo&#34;})") in changed
    assert [sign for sign, line in changed if "leaf" in line or "messages" in line] == []
    assert "<h3>plan</h3>" in page
    back = client.get("/session", params={"id": "thread", "at": 1, "since": 2}).text
    assert '<span class="minus">-call: weather' in back
    first = client.get("/session", params={"id": "thread", "at": 1}).text
    assert first.count('<span class="plus">+user: what is') == 1


def test_a_search_finds_messages_of_a_thread(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store:
        a_thread(store, ASKED, CALLED, ANSWERED)
    assert "id=thread" in client.get("/sessions", params={"message": "SUNNY sunny"}).text


def test_a_graph_without_messages_shows_its_steps() -> None:
    node = holdfast.Node("c1", kind="langgraph.checkpoint", payload={"metadata": {"step": 1}, "values": "none"})
    assert blocks_of([node])[0].entries[0].text == "step 1"


@pytest.mark.parametrize(("line", "shown"), [("call go(1)", "go(1)"), ("result of go: 1", "go: 1")])
def test_a_tool_is_not_announced_twice(line: str, shown: str) -> None:
    name, _, value = shown.partition(": ")
    call = {"type": "function_call", "name": "go", "arguments": "1"}
    result = {"type": "function_call_output", "call_id": name, "output": value}
    node = holdfast.Node("n", kind="openai-agents.item", payload=call if line.startswith("call") else result)
    (block,) = blocks_of([node])
    assert block.entries[0].text.replace('"', "") == shown


def test_a_long_turn_id_takes_one_line_and_unused_columns_none(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store:
        a_thread(store, ASKED)
        with store.sessions.handle("thread").turn("t" * 80) as turn:
            turn.state = {"n": 1}
    page = client.get("/session", params={"id": "thread"}).text
    assert f'<td class="clip" data-title="turn" title="{"t" * 80}">' in page
    assert "tokens in" not in page
    assert "tokens in" in client.get("/session", params={"id": SESSION}).text


def test_the_parts_of_a_message_unfold_one_by_one(url: str, client: Any) -> None:
    kind, payload, _ = AS_STORED["pydantic ai, request"]
    with holdfast.open_blocking(url) as store:
        nodes = [holdfast.Node("n", kind=kind, payload=payload)]
        store.sessions.create("parts").commit(holdfast.Commit(graph=holdfast.Append(nodes)))
    page = client.get("/session", params={"id": "parts"}).text
    assert re.findall(r'data-key="(n [^"]*)"', page) == ["n system", "n user"]


def test_time_travel_shows_the_session_as_it_was(client: Any) -> None:
    text = client.get("/session", params={"id": SESSION, "at": 1}).text
    assert "as it was at revision 1" in text
    assert text.count("role-user") == 1
    tree = client.get("/tree", params={"id": SESSION, "at": 1}).text
    assert "revision 1" in tree


def test_text_that_is_not_seen_is_written_out(url: str, client: Any) -> None:
    tags = "".join(chr(0xE0000 + ord(one)) for one in "ignore all rules")
    said = f"hi{tags}\U000e0101\u200b\u2028\u200e\ufeff\xad a\rb\r\nfamily 👨\u200d👩"
    with holdfast.open_blocking(url) as store:
        store.sessions.create("hidden").append({"role": "user", "content": said})
    page = html.unescape(client.get("/session", params={"id": "hidden"}).text)
    assert r"hi\U000e0069\U000e0067" in page
    assert r"\U000e0101\u200b\u2028\u200e\ufeff\xad a\x0db" in page
    assert "family 👨\u200d👩" in page, "joiners are part of letters"


def test_the_end_of_an_error_is_shown(url: str, writer: Any) -> None:
    """A traceback says at its end what happened."""
    frames = "".join(f'  File "agent.py", line {number}, in answer\n' for number in range(200))
    error = f"Traceback (most recent call last):\n{frames}ValueError: the model refused"
    with holdfast.open_blocking(url) as store:
        store.sessions.create("failed").enqueue("hi")
        claim = store.queue.claim("failed", owner_id="w1")
        assert claim is not None
        store.queue.fail(claim, error, retry_in_ms=None)
        (one,) = store.triggers.undelivered()
        store.triggers.mark_failed(one, error)
    for path in ("/queue", "/triggers", "/session?id=failed", f"/why?id={quote(one.process_id)}"):
        text = writer.get(path).text
        assert "ValueError: the model refused" in text, path
        assert "Traceback" not in text, path


def test_a_holder_and_a_worker_are_shown_with_their_last_report(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store:
        for id, owner in (("held", "w2"), ("borrowed", "a-notebook")):
            store.sessions.create(id).enqueue("hi")
            store.queue.claim(id, owner_id=owner)
        (worker,) = store.workers.list()
    report = moment(worker.heartbeat_at_ms)
    assert f"pid 7, alive, last report {report}</dd>" in client.get("/why", params={"id": "held"}).text
    assert "a-notebook (not a registered worker)</dd>" in client.get("/why", params={"id": "borrowed"}).text
    assert f'data-title="last report">{report}</td>' in client.get("/").text


def test_schedules_and_subscriptions_say_what_they_start(client: Any) -> None:
    assert client.get("/triggers").text.count('data-title="starts">run research</td>') == 2


def test_the_overview_names_what_needs_attention(client: Any) -> None:
    text = client.get("/").text
    assert "dead-letters" in text
    assert "Live workers" in text


def test_a_long_message_is_cut_and_shown_whole_on_its_own_page(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store, store.sessions.create("long").turn("t") as turn:
        turn.add({"role": "user", "content": "x" * 200_000})
    page = client.get("/session", params={"id": "long"}).text
    assert len(page) < 30_000
    assert "the whole" in page
    assert "x" * 200_000 in client.get("/node", params={"id": "long", "node": "t/0"}).text


def test_a_message_of_many_lines_is_cut() -> None:
    line = "a\n"
    for number, is_cut in ((99, False), (100, True)):
        entry = conversation.entry_of(holdfast.Node("n", payload={"role": "user", "content": line * number + "end"}))
        assert (entry.text, entry.is_cut) == ((line * number).rstrip() + ("" if is_cut else "\nend"), is_cut)


def test_a_payload_is_saved_and_never_served_as_a_page(url: str, client: Any) -> None:
    page = "<script>alert(1)</script>"
    with holdfast.open_blocking(url) as store, store.sessions.create("saved").turn("t") as turn:
        turn.add({"role": "user", "content": page})
        turn.add(page.encode())
    for node, data, name in (("t/0", {"role": "user", "content": page}, "payload.json"), ("t/1", page, "payload")):
        answer = client.get("/payload", params={"id": "saved", "node": node})
        assert (answer.json() if node == "t/0" else answer.text) == data
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    assert "Save the whole payload" in client.get("/node", params={"id": "saved", "node": "t/1"}).text
    assert "Save the whole payload" not in client.get("/node", params={"id": "saved", "node": "t/0"}).text
    for id, node in (("saved", "none"), ("none", "t/0"), ("", "")):
        assert client.get("/payload", params={"id": id, "node": node}).status_code in {400, 404}


@pytest.mark.parametrize(
    ("payload", "shown"),
    [({"role": "user", "content": "hi"}, 25), ({"role": "user", "content": "x" * 60_000}, 20), (b"x" * 60_000, 20)],
    ids=["short", "long", "bytes"],
)
def test_of_large_messages_a_page_reads_only_the_last(url: str, client: Any, payload: Any, shown: int) -> None:
    with holdfast.open_blocking(url) as store, store.sessions.create("large").turn("t") as turn:
        for _ in range(25):
            turn.add(payload)
    page = client.get("/session", params={"id": "large"}).text
    assert ("The last 20 nodes of this branch; the session has 25." in page) == (shown == 20)


def test_large_messages_behind_small_ones_are_not_all_read(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store, store.sessions.create("large").turn("t") as turn:
        for number in range(150):
            turn.add({"role": "user", "content": "x" * (60_000 if number < 120 else 10)})
    page = client.get("/session", params={"id": "large"}).text
    assert "The last 60 nodes of this branch; the session has 150." in page


@pytest.mark.parametrize("forked", [False, True], ids=["alone", "forked"])
def test_a_long_conversation_is_shown_whole_and_each_of_its_nodes_is_read_once(
    url: str, client: Any, monkeypatch: pytest.MonkeyPatch, forked: bool
) -> None:
    with holdfast.open_blocking(url) as store:
        for begin in (0, 150):
            with store.sessions.handle("long talk").turn(f"t{begin}") as turn:
                for number in range(begin, 150 if begin == 0 else 199):
                    turn.add({"role": "user", "content": f"says {number}."})
        if forked:
            store.sessions.fork("long talk", into="fork of it", at=2)
            store.sessions.handle("fork of it").append({"role": "user", "content": "says 199."})
    read: list[str] = []
    load = holdfast.Session.load

    async def loading(self: holdfast.Session, *given: Any, **named: Any) -> Any:
        view = await load(self, *given, **named)
        read.extend(() if view is None else (node.id for node in view.graph.nodes))
        return view

    monkeypatch.setattr(holdfast.Session, "load", loading)
    page = client.get("/session", params={"id": "fork of it" if forked else "long talk"}).text
    number = 200 if forked else 199
    assert re.findall(r'<div class="text">says (\d+)\.', page) == [str(one) for one in range(number)]
    assert "The last" not in page
    assert len(read) == len(set(read)) == number


def test_a_branch_does_not_make_a_conversation_look_cut(url: str, client: Any) -> None:
    nodes = [holdfast.Node("n1"), holdfast.Node("n2", parent="n1"), holdfast.Node("n3", parent="n1")]
    with holdfast.open_blocking(url) as store:
        store.sessions.create("branched").commit(holdfast.Commit(graph=holdfast.Append(nodes, leaf="n3")))
    page = client.get("/session", params={"id": "branched"}).text
    assert "3 nodes" in page
    assert "The last" not in page


def test_a_short_text_with_a_long_payload_is_not_shown_as_cut(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store, store.sessions.create("meta").turn("t") as turn:
        turn.add({"role": "user", "content": "short", "meta": "x" * 5_000})
    page = client.get("/session", params={"id": "meta"}).text
    assert '<div class="text">short</div>' in page
    assert "the whole payload</a>" in page


@pytest.mark.parametrize("path", ["/session", "/tree", "/node", "/process"])
def test_an_unknown_id_is_not_found(client: Any, path: str) -> None:
    answer = client.get(path, params={"id": "nobody <i>", "node": "n"})
    assert answer.status_code == 404
    assert "<i>" not in answer.text


def test_a_bad_cursor_is_reported(client: Any) -> None:
    answer = client.get("/sessions", params={"after": "garbage"})
    assert (answer.status_code, "<h1>This cannot be shown</h1>" in answer.text) == (400, True)


def test_a_revision_that_is_not_there_is_not_found(client: Any) -> None:
    answer = client.get("/session", params={"id": SESSION, "at": 700})
    assert (answer.status_code, "<h1>Not found</h1>" in answer.text) == (404, True)
    assert "there is no such retained revision: see holdfast sessions history" in answer.text
    assert "session.history()" not in answer.text, "an operator has a command line"


def test_metrics_have_the_openmetrics_form(client: Any) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    lines = answer.text.splitlines()
    assert lines[-1] == "# EOF"
    assert "holdfast_sessions 2" in lines
    assert "holdfast_workers 1" in lines
    declared = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert set(declared) >= {line.split("{")[0].split()[0] for line in lines if not line.startswith("#")}


def test_a_remedy_is_offered_only_if_writes_are_allowed(client: Any, writer: Any) -> None:
    assert 'action="/remedy"' not in client.get("/session", params={"id": SESSION}).text
    assert "<button>Yes, retry it</button>" in writer.get("/session", params={"id": SESSION}).text, "it asks first"
    assert '<button aria-label="Resume mail &lt;i&gt;">Resume</button>' in writer.get("/queue").text, "it names its id"


def test_a_signal_is_sent_with_its_payload_after_a_question(url: str, writer: Any) -> None:
    with holdfast.open_blocking(url) as store:
        store.processes.start("approval", id="asking")
        claim = store.processes.claim_next(owner_id="w1", kinds=["approval"])
        assert claim is not None
        store.processes.suspend(claim.lease, seen=0, wait=holdfast.processes.SignalWait("approve", ordinal=1))
        page = writer.get("/process", params={"id": "asking"}).text
        assert "Yes, signal it</button>" in page
        assert '<input name="payload"' in page
        form = {"words": json.dumps(["processes", "signal", "asking", "approve"]), "back": "/"}
        for payload in ("{by", "[" * 100_000):
            refused = writer.post("/remedy", data={**form, "payload": payload})
            assert (refused.status_code, "payload" in refused.text) == (400, True)
        assert writer.post("/remedy", data={**form, "payload": '{"by": "ada"}'}).status_code == 200
        assert [one.payload for one in store.events.recent("asking")][-1] == {"by": "ada"}


def test_the_remedy_of_a_page_heals(url: str, writer: Any) -> None:
    page = writer.get("/queue").text.partition("<h2>Dead letters")[2]
    form = re.search(r'<form method="post".*?</form>', page, re.DOTALL)
    assert form is not None
    words = html.unescape(re.findall(r'name="words" value="([^"]*)"', form[0])[0])
    back = html.unescape(re.findall(r'name="back" value="([^"]*)"', form[0])[0])
    answer = writer.post("/remedy", data={"words": words, "back": back}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/queue?done=yes")
    assert "Done." in writer.get(answer.headers["location"]).text
    with holdfast.open_blocking(url) as store:
        assert len(store.queue.dead_letters()) == 0


def test_a_failed_run_is_retried_and_both_runs_name_each_other(url: str, writer: Any) -> None:
    with holdfast.open_blocking(url) as store:
        store.processes.start("research", id="failed-1")
        store.processes.complete("failed-1", holdfast.processes.Failed("no"))
    page = "/process?id=failed-1"
    words = json.dumps(["processes", "retry", "failed-1"])
    assert "processes retry failed-1" in writer.get(page).text
    answer = writer.post("/remedy", data={"words": words, "back": page}, headers={"origin": "http://testserver"})
    assert answer.status_code == 200
    assert 'retried as <a href="/process?id=failed-1~2"' in writer.get(page).text
    assert 'retries <a href="/process?id=failed-1"' in writer.get("/process?id=failed-1~2").text


def test_words_that_no_page_offers_are_refused(writer: Any) -> None:
    for words in (["sessions", "delete", SESSION], ["queue", "retry", SESSION], [], ["queue"], "queue", {"a": 1}, [1]):
        answer = writer.post("/remedy", data={"words": json.dumps(words)})
        assert (answer.status_code, "Nothing was done" in answer.text) == (400, True)
    for data in ({}, {"words": ""}, {"words": "[" * 100_000}, {"word": ["queue", "resume", "mail <i>"]}):
        assert writer.post("/remedy", data=data).status_code == 400


def test_a_remedy_redirects_only_to_a_page_of_the_inspector(writer: Any) -> None:
    for back in ("//evil.example/", "https://evil.example/", "/nowhere", ""):
        data = {"words": '["queue", "resume", "mail <i>"]', "back": back}
        assert writer.post("/remedy", data=data, follow_redirects=False).headers["location"].split("?")[0] == "/"


def test_text_of_every_kind_of_payload(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store, store.sessions.create("kinds").turn("t") as turn:
        for payload in ("plain", {"text": "only text"}, {"other": [1, {"deep": None}]}, [1], None, {"role": 7}):
            turn.add(payload)
    text = client.get("/session", params={"id": "kinds"}).text
    for part in ("plain", "only text", "&#34;deep&#34;"):
        assert part in text
    assert HOSTILE not in text


def test_the_overview_draws_the_pulse_of_the_store(url: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "is_due", lambda *_: True)
    client.get("/")  # a rate needs two looks
    with holdfast.open_blocking(url) as store:
        for number in range(3):
            store.sessions.handle(SESSION).append({"role": "user", "content": f"{number}"})
    text = client.get("/").text
    rates = re.findall(r"<dt>(turns|events) a second</dt><dd>([0-9.]+)</dd>", text)
    assert [name for name, _ in rates] == ["turns", "events"]
    assert float(rates[0][1]) > 0
    assert len(re.findall(r'<polyline points="[0-9., ]+"', text)) == 4
    assert " style=" not in text, "the policy forbids it"


def test_counts_of_whole_tables_are_shared_and_taken_seldom(url: str) -> None:
    async def counted() -> int:
        async with holdfast.open(url) as store:
            taken, calls = activity_sampler.ActivitySampler(), [0]
            stats = store.maintenance.stats

            async def counting() -> Any:
                calls[0] += 1
                return await stats()

            monkeypatched: Any = store.maintenance
            monkeypatched.stats = counting
            await asyncio.gather(*(taken.stats(store) for _ in range(5)))
            return calls[0]

    assert asyncio.run(counted()) == 1


def test_sessions_are_found_by_a_part_of_their_id_or_name(
    url: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open_blocking(url) as store:
        for number in range(30):
            store.sessions.create(f"many-{number:02}", name="Ülrich <i>" if number == 29 else None, owner="ada")
    by_name = client.get("/sessions", params={"text": "ülrich <"}).text
    assert "many-29" in by_name
    assert "1 found among 32 sessions." in by_name
    assert "<i>" not in by_name
    assert "0 found" in client.get("/sessions", params={"text": "MANY", "owner": "nobody"}).text
    assert "1 found" in client.get("/sessions", params={"text": HOSTILE[1:9].upper()}).text, "by a part of the owner"
    monkeypatch.setattr(searching, "SEARCHED", 10)
    monkeypatch.setattr(searching, "SEARCH_PAGE", 10)
    page = client.get("/sessions", params={"text": "CHAT/42"}).text
    assert "0 found among 10 sessions; there are more to search." in page
    seen = 1
    while (more := re.search(r'rel="next" href="([^"]*)"', page)) is not None:
        page = client.get(html.unescape(more[1])).text
        seen += 1
    assert seen == 4
    assert ">chat/42 " in page


def test_sessions_come_newest_change_first(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store:
        for number in range(60):
            store.sessions.create(f"many-{number:02}")
    page = client.get("/sessions").text
    assert re.findall(r">(many-\d\d)</a>", page) == [f"many-{number:02}" for number in range(59, 9, -1)]
    more = re.search(r'rel="next" href="([^"]*)"', page)
    assert more is not None
    assert re.findall(r">(many-\d\d)</a>", client.get(html.unescape(more[1])).text)[-1] == "many-00"


def test_sessions_are_found_by_label(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store:
        for number in range(6):
            labels = {"user": f"u{number % 2}", "place": 'my "<b>" home: here' if number == 3 else "my home"}
            store.sessions.create(f"many-{number}", labels=labels)

    def found(**query: str) -> list[str]:
        return re.findall(r">(many-\d)</a>", client.get("/sessions", params=query).text)

    assert found(text="user:u1") == ["many-5", "many-3", "many-1"]
    assert found(text='user:u1 place:"my home"') == ["many-5", "many-1"]
    assert found(text="user:u1 ANY-5") == ["many-5"]
    assert found(text='"user:u1"') == []
    assert found(text="user:u9") == []
    page = client.get("/sessions").text
    assert "<b>" not in page
    links = {html.unescape(link) for link in re.findall(r'class="label" href="([^"]*)"', page)}
    links.remove(f"/sessions?{urlencode({'label': f'<i>:{HOSTILE}'})}")
    assert len(links) == 4
    answers = [re.findall(r">(many-\d)</a>", client.get(link).text) for link in sorted(links)]
    assert sorted("".join(one[-1] for one in answer) for answer in answers) == ["3", "420", "531", "54210"]
    assert client.get("/sessions", params={"text": "k\0:v"}).status_code == 400
    assert 'class="label"' in client.get("/session", params={"id": "many-3"}).text


def test_sessions_are_found_by_their_messages_within_a_budget(
    url: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open_blocking(url) as store:
        for number in range(25):
            store.sessions.create(f"many-{number:02}").append({"role": "user", "content": f"Say Héllo {number:02} <i>"})
    answer = client.get("/sessions", params={"message": "say HÉLLO 20 <"}).text
    assert re.findall(r">(many-\d\d)</a>", answer) == ["many-20"]
    assert "1 found among 27 sessions. Searched the newest 50 messages of each." in answer
    assert "<i>" not in answer
    assert re.findall(
        r">(many-\d\d)</a>", client.get("/sessions", params={"message": "héllo", "text": "-07"}).text
    ) == ["many-07"]
    monkeypatch.setattr(searching, "MESSAGE_SESSIONS", 10)
    page = client.get("/sessions", params={"message": "hello"}).text
    assert "0 found among 10 sessions; there are more to search." in page
    monkeypatch.setattr(searching, "MESSAGE_SESSIONS", 200)
    monkeypatch.setattr(searching, "MESSAGE_S", 0.0)
    assert "0 found among 10 sessions; there are more" in client.get("/sessions", params={"message": "hello"}).text


def test_a_long_log_shows_its_newest_events(url: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "EVENTS", 5)
    with holdfast.open_blocking(url) as store:
        for number in range(8):
            store.events.append("run <i>", "progress", {"number": number})
    text = client.get("/process", params={"id": "run <i>"}).text
    assert 'value="8"' in text
    assert 'value="3"' not in text
    assert "3 older ones are not read here" in text


def test_a_damaged_row_is_not_the_fault_of_the_request(tmp_path: Path) -> None:
    import apsw

    file = tmp_path / "damaged.db"
    with holdfast.open_blocking(file) as store:
        store.processes.start("research", id="r1")
    connection = apsw.Connection(str(file))
    connection.execute("UPDATE processes SET body = x'00'")
    connection.close()
    with TestClient(inspector(str(file), token=TOKEN, hosts=[HOST])) as damaged:
        damaged.get("/", params={"token": TOKEN})
        answer = damaged.get("/process", params={"id": "r1"})
    assert (answer.status_code, "<h1>Damaged data</h1>" in answer.text) == (500, True)


# Conversations.


def test_calls_of_tools_and_their_results_are_one_line_that_unfolds(url: str, client: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "<i>Graz"}'}}
    with holdfast.open_blocking(url) as store, store.sessions.create("tools").turn("t") as turn:
        turn.add({"role": "user", "content": "How is it?"})
        turn.add({"role": "assistant", "content": None, "tool_calls": [call, call]})
        turn.add({"role": "tool", "tool_call_id": "c1", "content": "21 degrees"})
        turn.add({"role": "assistant", "content": "It is warm. Shall I look again?", "tool_calls": [call]})
        turn.add({"role": "assistant", "content": "Good.", "tool_calls": "nonsense"})
        turn.add({"role": "assistant", "content": None, "tool_calls": [7, {"function": 7}]})
    text = html.unescape(client.get("/session", params={"id": "tools"}).text)
    assert text.count('<summary><span class="role">call</span>') == 2
    assert 'weather({"city": "<i>Graz"}) weather({"city": "<i>Graz"})</code> and 1 more' in text
    assert "21 degrees" in text
    assert "Shall I look again?\n\nweather(" in text
    assert "a tool()" in text


def test_attachments_are_shown_if_they_are_pictures_and_saved_otherwise(client: Any) -> None:
    text = client.get("/session", params={"id": SESSION}).text
    links = [html.unescape(one) for one in re.findall(r'<a href="([^"]*/attachment[^"]*)">&lt;', text)]
    assert len(links) == 3
    assert text.count('<img class="preview"') == 1
    answers = [client.get(link) for link in links]
    for answer in answers:
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    kinds = sorted((one.headers["content-type"], one.headers.get("content-disposition", "")[:10]) for one in answers)
    saved = ("application/octet-stream", "attachment")
    assert kinds == [saved, saved, ("image/png", "")]
    assert client.get("/attachment", params={"id": SESSION, "attachment": "nothing"}).status_code == 404
    assert client.get("/attachment", params={"id": "nobody", "attachment": "nothing"}).status_code == 404
    assert client.get("/attachment").status_code == 400


def test_a_tree_shows_where_forks_began(client: Any) -> None:
    text = client.get("/tree", params={"id": SESSION}).text
    line = text.split('node=turn-1%2F1"')[1].split("</li>")[0]
    assert 'fork <a href="/tree?id=fork">fork</a>' in line
    assert text.count("fork <a") == 1
    assert (
        f'from <a href="{html.escape("/session?" + urlencode({"id": SESSION}))}"' in client.get("/session?id=fork").text
    )


# Lists and suggestions.


def listed(client: Any, place: str | None) -> list[str]:
    """Return the sessions of a listing, page by page."""
    seen: list[str] = []
    while place is not None:
        page = client.get(place).text
        seen += re.findall(r'<td data-title="session"><a href="[^"]+">([^<]+)</a>', page)
        following = re.search(r'<a rel="next" href="([^"]+)">', page)
        place = None if following is None else html.unescape(following[1])
    return seen


def test_sessions_are_filtered_by_their_state(url: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open_blocking(url) as store:
        store.sessions.create("ready").enqueue("x")
        store.sessions.create("later")
        paused = store.sessions.create("paused")
        paused.enqueue("x")
        paused.pause()
        store.queue.pause("turn")

    def found(state: str) -> list[str]:
        text = client.get("/sessions", params={"state": state}).text
        return re.findall(r'data-title="session"><a [^>]*>([^<]*)</a>', text)

    named = html.escape(SESSION).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
    assert sorted(found("stuck")) == sorted(["paused", "ready", named])
    assert found("failed") == [named]
    assert set(found("active")) >= {"later", "ready", "fork"}
    text = client.get("/sessions", params={"state": "stuck"}).text
    assert "dead-letter" in text
    assert "session-paused, kind-paused" in text
    monkeypatch.setattr(searching, "CANDIDATES", 1)
    monkeypatch.setattr(searching, "STUCK_PAGE", 1)
    text = client.get("/sessions", params={"state": "stuck"}).text
    assert (
        "1 stuck among 1 sessions with work, runs, dead letters, undelivered triggers, a pause or a dead worker" in text
    )
    assert "; more are left to search." in text
    monkeypatch.setattr(searching, "STUCK_S", 0.0)
    assert "0 stuck among 0 sessions" in client.get("/sessions", params={"state": "stuck"}).text
    assert "later" in client.get("/sessions", params={"state": "<i>"}).text, "an unknown state is no filter"


def test_every_session_of_dead_workers_is_found_page_by_page(
    url: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "PAGE", 4)
    monkeypatch.setattr(searching, "STUCK_PAGE", 4)
    monkeypatch.setattr(workers, "HOLDERS", 2)
    held = [f"held-{number}" for number in range(9)]
    with holdfast.open_blocking(url) as store:
        for id in held:
            session = store.sessions.create(id)
            session.enqueue({"text": "claimed"})
            assert store.queue.claim(id, owner_id="dead", ttl_ms=3_600_000) is not None
        for id in ("alive-1", "alive-2", "alive-3"):
            store.sessions.create(id).enqueue({"text": "claimed"})
            assert store.queue.claim(id, owner_id=id, ttl_ms=3_600_000) is not None
        store.sessions.handle(held[0]).pause()
        for id in ("alive-1", "alive-2", "alive-3"):
            store.workers.heartbeat(holdfast.workers.WorkerInfo(id, host="here", pid=7), ttl_ms=3_600_000)
        store.workers.heartbeat(holdfast.workers.WorkerInfo("dead", host="here", pid=7), ttl_ms=1)
    time.sleep(0.01)
    assert [id for id in listed(client, "/sessions?state=stuck") if id in held] == held
    with holdfast.open_blocking(url) as store:
        stuck = store.maintenance.diagnose(integrity=False).stuck
    assert stuck is not None
    assert (stuck.dead_workers, stuck.claimed_by_dead) == (("dead",), tuple(held[:5]))
    assert client.get("/sessions?state=stuck&after=9.x").status_code == 400, "a mistyped place is refused"


def test_every_session_of_a_stuck_run_limit_or_trigger_is_found_once(
    client: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "PAGE", 2)
    monkeypatch.setattr(searching, "STUCK_PAGE", 2)
    by = {id: BySession(holdfast.Scope(id)) for id in ("runs", "fired", "failed", "both", "letter", "holder", "full")}
    with holdfast.open_blocking(url) as store:
        for id in by:
            store.sessions.create(id)
        store.workers.heartbeat(WorkerInfo("dead", host="here", pid=7), ttl_ms=1)
        store.processes.start("lost", id="lost", provenance=Provenance(by["letter"]))
        assert store.processes.claim_next(owner_id="dead", kinds=["lost"], ttl_ms=3_600_000) is not None
        store.sessions.handle("letter").enqueue("x")
        letter = store.queue.claim("letter", owner_id="w1")
        assert letter is not None
        store.queue.fail(letter, "no", retry_in_ms=None)
        store.queue.set_limit("narrow", at_once=1)
        for id in ("holder", "full"):
            store.sessions.handle(id).enqueue("x", kind="narrow")
        assert store.queue.claim("holder", owner_id="dead", ttl_ms=3_600_000) is not None
        for number in range(7):
            provenance = Provenance(by["both" if number % 2 else "runs"])
            store.processes.start("asking", id=f"waits {number}", provenance=provenance)
            asking = store.processes.claim_next(owner_id="w1", kinds=["asking"])
            assert asking is not None
            store.processes.suspend(asking.lease, seen=0, wait=SignalWait("approve", ordinal=1))
            store.processes.start("unknown", id=f"r{number}", provenance=provenance)
        for key in ("fired", "failed", "both", "both"):
            draft = SubscriptionDraft(source_type="cron", source_key=key, target=Run("x"), registrant=by[key])
            store.triggers.subscribe(draft)
        for key in ("fired", "failed", "both"):
            store.triggers.emit("cron", key, idempotency_key="1")
        for one in store.triggers.undelivered(session_id="failed"):
            store.triggers.mark_failed(one, "no")
    time.sleep(0.01)
    assert sorted(id for id in listed(client, "/sessions?state=stuck") if id in by) == sorted(by)


@pytest.mark.parametrize("state", ["stuck", "failed"])
def test_a_session_with_many_dead_letters_is_listed_once(
    url: str, client: Any, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(searching, "PAGE", 2)
    monkeypatch.setattr(searching, "STUCK_PAGE", 2)
    with holdfast.open_blocking(url) as store:
        for id in ("many", "many", "many", "few", "many", "last", "many", "few"):
            store.queue.enqueue(holdfast.WorkDraft(session_id=id, payloads=[1]))
            claim = store.queue.claim(id, owner_id="w1")
            assert claim is not None
            store.queue.fail(claim, "no", retry_in_ms=None)
    assert [id for id in listed(client, f"/sessions?state={state}") if id.isalpha()] == ["many", "few", "last"]


def test_a_command_inside_a_cause_stands_out(client: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.sessions.create("chat").enqueue("x", kind="unknown")
    assert (
        "Start one with <code>holdfast worker MODULE:NAME</code>" in client.get("/session", params={"id": "chat"}).text
    )


def test_state_and_checkpoint_of_any_two_revisions_are_compared(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store:
        session = store.sessions.create("compared")
        for number in (1, 2, 3):
            with session.turn(f"t{number}") as turn:
                turn.add({"role": "user", "content": "hi"})
                turn.state = {"number": number, "kept": True}

    def lines(**query: int) -> list[str]:
        text = client.get("/session", params={"id": "compared", **query}).text
        return [
            html.unescape(one).strip()
            for one in re.findall(r'<span class="(?:plus|minus)">(.*?)</span>', text, re.DOTALL)
        ]

    def has(found: list[str], *wanted: str) -> bool:
        return all(any(re.fullmatch(one, line) for line in found) for one in wanted)

    assert has(lines(), r'-  "number": 2.*', r'\+  "number": 3.*')
    assert has(lines(at=2), r'-  "number": 1.*', r'\+  "number": 2.*')
    assert has(lines(at=3, since=1), r'-  "number": 1.*', r'\+  "number": 3.*')
    assert has(lines(at=1, since=3), r'-  "number": 3.*', r'\+  "number": 1.*')
    assert has(lines(at=1), r'\+  "number": 1.*', r'\+  "kept": true.*'), "the first revision began from nothing"
    assert has(lines(), r"\+user: hi")
    assert not any("nodes" in line for line in lines()), "the messages tell that it moved"
    assert has(lines(at=1, since=3), r"-user: hi")
    assert len([line for line in lines(at=3, since=1) if line == "+user: hi"]) == 2
    assert "There is no revision 9" in client.get("/session?id=compared&since=9").text
    assert "Nothing in its conversation, state or checkpoint" in client.get("/session?id=compared&since=3").text


def test_messages_of_the_branch_that_a_session_left_are_shown_as_gone(
    url: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*ids: str, parent: str | None) -> holdfast.Append:
        above = [parent, *ids]
        payloads = [{"role": "user", "content": f"says {id}"} for id in ids]
        return holdfast.Append(
            [holdfast.Node(id, parent=of, payload=one) for id, of, one in zip(ids, above, payloads, strict=False)]
        )

    with holdfast.open_blocking(url) as store:
        session = store.sessions.create("branched")
        for part in (said("a", "b", parent=None), said("c", parent="a"), said("d", "e", "f", parent="c")):
            session.commit(holdfast.Commit(graph=part))

    def lines(**query: int) -> list[str]:
        text = client.get("/session", params={"id": "branched", **query}).text
        return re.findall(r'<span class="(?:plus|minus)">([+-]user: .*?)\n', text)

    assert lines(at=2) == ["-user: says b", "+user: says c"]
    assert lines(at=3, since=1) == ["-user: says b", *(f"+user: says {id}" for id in "cdef")]
    assert lines(at=1, since=0) == ["+user: says a", "+user: says b"]
    monkeypatch.setattr(comparing, "FEW_NODES", 2)
    monkeypatch.setattr(comparing, "NODES", 2)
    assert lines(at=3, since=2) == ["+user: says e", "+user: says f"], "older ones are not shown, and did not go"


def test_a_diff_of_a_large_state_is_cut_before_it_is_computed() -> None:
    chance = random.Random(1)
    before, after = ([chance.randrange(150) for _ in range(30_000)] for _ in range(2))
    begun_s = time.process_time()
    ((name, lines),) = conversation.changes({"state": before}, {"state": after})
    assert time.process_time() - begun_s < 1, "5 s if all lines are compared"
    assert (name, len(lines)) == ("state", 200)


def test_a_diff_shows_a_change_at_the_end_of_a_large_state() -> None:
    before = list(range(30_000))
    ((_, lines),) = conversation.changes({"state": before}, {"state": [*before[:-2], -1, before[-1]]})
    assert lines == ["…", "   29996,", "   29997,", "-  29998,", "+  -1,", "   29999", " ]"]


def test_a_long_tree_continues_and_calls_no_earlier_node_tombstoned(
    url: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "NODES", 3)
    nodes = [holdfast.Node(f"n{at}", parent=f"n{at - 1}" if at else None) for at in range(8)]
    with holdfast.open_blocking(url) as store:
        store.sessions.create("tall").commit(holdfast.Commit(graph=holdfast.Append(nodes, leaf="n7")))
    seen: list[tuple[str, str]] = []
    place: str | None = "/tree?id=tall"
    while place is not None:
        page = client.get(place).text
        assert "tombstoned" not in page
        seen += re.findall(r'<li class="(\w+)">.*?>(n\d)</a>', page, re.DOTALL)
        following = re.search(r'<a rel="next" href="([^"]+)">', page)
        place = None if following is None else html.unescape(following[1])
    assert seen == [
        *[("earlier", "n4"), ("path", "n5"), ("path", "n6"), ("head", "n7")],
        *[("earlier", "n1"), ("path", "n2"), ("path", "n3"), ("path", "n4")],
        *[("path", "n0"), ("path", "n1")],
    ]


def streamed(pages: Any, *headers: tuple[bytes, bytes]) -> Any:
    """Return the stream of the page of the queue."""

    async def receive() -> dict[str, Any]:
        return await asyncio.Event().wait()  # type: ignore[return-value]  # never

    scope = {"type": "http", "query_string": b"path=/queue", "headers": list(headers), "root_path": ""}
    return pages.live(Request(scope, receive))


def test_a_stream_ends_soon_and_is_continued_without_a_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(app, "STREAM_S", 0.05)

    async def reported(*headers: tuple[bytes, bytes]) -> list[str]:
        pages = app.Pages(Source(str(tmp_path / "none.db"), None, None), allow_writes=False)
        return [part async for part in (await streamed(pages, *headers)).body_iterator]

    retry, event = asyncio.run(reported())
    assert retry == f"retry: {app.RETRY_MS}\n\n"
    kind, mark, text = event.split("\n", 2)
    assert (kind, mark[:4]) == ("event: away", "id: ")
    assert f"There is no file {str(tmp_path / 'none.db')!r}. This page continues" in html.unescape(text)
    assert asyncio.run(reported((b"last-event-id", mark[4:].encode()))) == [retry]


def test_a_page_that_takes_long_is_read_more_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the intervals that a stream asks for, of a page whose reading takes a second."""
    now_s: list[float] = [0.0]
    rests: list[float] = []

    class Clock:
        monotonic = staticmethod(lambda: now_s[0])

    async def resting(wait: Any, rest_s: float) -> None:
        wait.close()
        rests.append(rest_s)
        now_s[0] += rest_s

    async def reported(took_s: float, status: int) -> None:
        pages = app.Pages(Source(str(tmp_path / "none.db"), None, None), allow_writes=False)

        async def rendered(*_: object) -> tuple[str, str, int]:
            now_s[0] += took_s
            return "", str(now_s[0]), status

        monkeypatch.setattr(pages, "_main", rendered)
        answer = await streamed(pages)
        for _ in range(3):
            await anext(answer.body_iterator)

    monkeypatch.setattr(app, "time", Clock)
    monkeypatch.setattr(app, "STREAM_S", 1_000.0)
    monkeypatch.setattr(asyncio, "wait_for", resting)
    for took_s, status in ((0.1, 200), (1.0, 200), (60.0, 200), (60.0, 503)):
        asyncio.run(reported(took_s, status))
    assert rests == pytest.approx([1.5, 9.0, 30.0, 1.5])


def test_a_parameter_may_have_any_name(writer: Any) -> None:
    assert writer.get("/session", params={"id": SESSION, "base": "1", "path": "2"}).status_code == 200


def test_a_list_that_is_cut_says_so(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store:
        for number in range(views.PAGE + 1):
            work = holdfast.WorkDraft(session_id="scheduled", payloads=[number])
            store.schedules.put(f"nightly-{number:02}", "0 3 * * *", work=work)
    page = client.get("/triggers").text
    assert page.count("There are more.") == 1
    assert "nightly-48" in page
    assert "nightly-50" not in page
    assert "There are more." not in client.get("/queue").text


def test_an_id_with_blanks_around_it_is_explained(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store:
        store.sessions.create(" chat ")
        store.sessions.create("mail")
    for asked in (" chat ", " mail "):
        assert client.get("/why", params={"id": asked}).status_code == 200


def test_an_unknown_id_is_guessed(url: str, client: Any) -> None:
    with holdfast.open_blocking(url) as store:
        store.sessions.create("chat-42")
    answer = client.get("/why", params={"id": "chat_43"})
    assert (answer.status_code, 'Did you mean <a href="/why?id=chat-42">chat-42</a>?' in answer.text) == (404, True)
    assert client.get("/why").status_code == 200


# Commands.


def test_a_printed_command_names_the_store_and_survives_pasting(tmp_path: Path) -> None:
    file = tmp_path / "my stores.db"
    with holdfast.open_blocking(str(file)) as store:
        for id in ("two words", "-x", "a\nb"):
            session = store.sessions.create(id)
            session.enqueue("x")
            session.pause()
    with TestClient(inspector(str(file), token=TOKEN, hosts=[HOST])) as client:
        client.get("/", params={"token": TOKEN})
        text = html.unescape(client.get("/queue").text)
    assert f"<code>holdfast sessions resume 'two words' --url '{file}'</code>" in text
    assert f"<code>holdfast sessions resume --url '{file}' -- -x</code>" in text
    assert f"<code>holdfast sessions resume $'a\\x0ab' --url '{file}'</code>" in text


def test_no_page_repeats_a_password() -> None:
    source = Source("postgresql://ada:secret@localhost/x", holdfast.PostgresOptions(schema="s"), None)
    assert source.named == {"schema": "s", "pooler": None}
    assert source.has_password


def test_the_remedy_of_an_id_with_line_breaks_heals_it(tmp_path: Path) -> None:
    """A browser changes line breaks in the fields of a form."""
    file = str(tmp_path / "agent.db")
    with holdfast.open_blocking(file) as store:
        store.sessions.create("a\nb\r").pause()
    app = inspector(file, token=TOKEN, hosts=[HOST], allow_writes=True)
    with TestClient(app, headers={"origin": f"http://{HOST}"}) as client:
        client.get("/", params={"token": TOKEN})
        found = re.search(r'name="words" value="([^"]*)"', client.get("/queue").text)
        assert found is not None
        words = html.unescape(found[1])
        assert words.isprintable()
        assert words.isascii()
        assert client.post("/remedy", data={"words": words, "back": "/queue"}).status_code == 200
        again = client.post("/remedy", data={"words": words, "back": "/queue"})
        assert "There was nothing to do" in again.text
    with holdfast.open_blocking(file) as store:
        assert not store.queue.paused_sessions().items


# The store.


def test_looking_creates_no_store(tmp_path: Path) -> None:
    file = tmp_path / "mistyped.db"
    for place in (str(file), file, f"sqlite:{file}"):
        with TestClient(inspector(place, token=TOKEN, hosts=[HOST])) as client:
            client.get("/", params={"token": TOKEN})
            answer = client.get("/sessions")
            assert (answer.status_code, "There is no file" in answer.text) == (503, True)
    assert not list(tmp_path.iterdir())


def test_a_file_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    file, other = tmp_path / "agent.db", tmp_path / "other.db"
    for place, id in ((file, "old"), (other, "new")):
        with holdfast.open_blocking(place) as store:
            store.sessions.create(id)
    with TestClient(inspector(file, token=TOKEN, hosts=[HOST])) as client:
        client.get("/", params={"token": TOKEN})
        assert client.get("/session?id=old").status_code == 200
        other.rename(file)
        assert client.get("/session?id=old").status_code == 404
        assert client.get("/session?id=new").status_code == 200


def test_viewers_and_scrapers_share_one_diagnosis_and_one_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []

    def counting(name: str) -> None:
        real = getattr(Maintenance, name)

        async def called(self: Maintenance, **given: Any) -> Any:
            counted.append(name)
            return await real(self, **given)

        monkeypatch.setattr(Maintenance, name, called)

    counting("stats")
    counting("diagnose")
    monkeypatch.setattr(activity_sampler, "DIAGNOSE_EVERY_S", 3600.0)
    monkeypatch.setattr(activity_sampler, "COUNT_EVERY_S", 3600.0)
    file = tmp_path / "agent.db"
    holdfast.open_blocking(file).close()
    with TestClient(inspector(file, token=TOKEN, hosts=[HOST])) as client:
        for _ in range(5):
            assert client.get("/", params={"token": TOKEN}).status_code == 200
            assert client.get("/metrics").status_code == 200
        assert sorted(counted) == ["diagnose", "stats"]
        monkeypatch.setattr(Pace, "is_due", lambda *_: True)
        client.get("/")
        client.get("/metrics")
    assert sorted(counted) == ["diagnose", "diagnose", "stats", "stats", "stats"]


def test_a_store_that_was_given_open_stays_open() -> None:
    async def answers() -> list[int]:
        async with holdfast.open("memory:") as store:
            source = Source(store, None, None)
            assert await source.store() is store
            await source.close()
            await store.sessions.create("chat")
            return [len(await store.sessions.list()), len(source.named)]

    assert asyncio.run(answers()) == [1, 0]


def test_why_calls_a_deleted_session_deleted(client: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.sessions.create("gone")
        store.sessions.delete("gone")
    answer = client.get("/why", params={"id": "gone"})
    assert "session &#39;gone&#39; was deleted" in answer.text
