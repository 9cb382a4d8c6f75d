"""The streaming chat of the examples, by an HTTP client and in a browser, while its server is killed and restarted."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.docs.browser import Browser, find_browser

import holdfast

EXAMPLE = Path(__file__).parents[2] / "examples" / "streaming_chat.py"
WAIT_S = 60
WORDS = ["You", "said:", "hello", *(f"word{number}" for number in range(40))]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def serving(database: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """Run the example until the block ends, then kill it."""
    command = [sys.executable, str(EXAMPLE), str(database), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"http://localhost:{port}/\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def post(port: int, path: str, text: str = "") -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("POST", path, text)
    assert connection.getresponse().status == 200
    connection.close()


def events(port: int, last_event_id: str | None) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield id, name and data of server-sent events until the connection ends."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    connection.request("GET", "/events?after=0", headers=headers)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
    try:
        while line := answer.readline().decode():
            place = line.removeprefix("id: ").rstrip()
            name = answer.readline().decode().removeprefix("event: ").rstrip()
            data = json.loads(answer.readline().decode().removeprefix("data: "))
            assert answer.readline() == b"\n"
            yield place, name, data
    finally:
        connection.close()


def test_a_client_that_reconnects_sees_each_word_once(tmp_path: Path) -> None:
    port = free_port()
    seen: list[tuple[str, dict[str, Any]]] = []
    last: str | None = None
    with serving(tmp_path / "chat.db", port):
        post(port, "/messages", "hello")
        while not seen or seen[-1][0] != "commit":
            for count, (place, name, data) in enumerate(events(port, last)):
                last = place
                seen.append((name, data))
                if count == 6:
                    break  # the connection is cut
    words = [data["value"].strip() for name, data in seen if name == "delta"]
    assert words == WORDS[: len(words)]
    assert len(words) > 10
    assert [name for name, _ in seen if name != "delta"] == ["commit"]
    assert [message["text"].split() for message in seen[-1][1]["messages"]] == [["hello"], WORDS]


def test_a_client_learns_that_words_of_a_killed_worker_are_void(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path / "chat.db", port) as process:
        post(port, "/messages", "hello")
        last = next(place for place, _, data in events(port, None) if data.get("value") == "word3 ")
        process.kill()
    names: list[str] = []
    with serving(tmp_path / "chat.db", port):
        while "commit" not in names:
            for place, name, _ in events(port, last):
                last = place
                names.append(name)
                if name == "commit":
                    break
    assert names.count("void") == 1
    assert names.index("void") < names.index("delta") if "delta" in names else True


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium is installed: the page is not tried in a browser")
    with Browser(program, tmp_path / "profile") as browser:
        yield browser


TEXT = "[...document.querySelectorAll('#messages li')].map((line) => line.textContent.trim())"
PARTIAL = "document.getElementById('partial').textContent"


def test_a_browser_shows_an_answer_while_its_server_is_killed_and_restarted(tmp_path: Path, browser: Browser) -> None:
    port = free_port()
    database = tmp_path / "chat.db"
    with serving(database, port):
        browser.go(f"http://127.0.0.1:{port}/")
        browser.wait("document.forms.length", WAIT_S)
        browser.value("document.getElementById('text').value = 'hello'")
        browser.value("document.forms[0].requestSubmit()")
        browser.wait(f"{PARTIAL}.includes('word3')", WAIT_S)
    # Killed: server and worker. The browser reconnects by itself.
    with serving(database, port):
        browser.wait(f"{TEXT}.length == 2", WAIT_S)
        assert browser.value(TEXT) == ["hello", " ".join(WORDS)]
        assert browser.value(PARTIAL) == ""
        with holdfast.open_blocking(database) as store:
            assert [one["text"].strip() for one in store.sessions.handle("chat").messages()] == browser.value(TEXT)


def test_a_browser_stops_an_answer_and_keeps_what_it_saw(tmp_path: Path, browser: Browser) -> None:
    port = free_port()
    with serving(tmp_path / "chat.db", port):
        browser.go(f"http://127.0.0.1:{port}/")
        browser.wait("document.forms.length", WAIT_S)
        browser.value("document.getElementById('text').value = 'hello'")
        browser.value("document.forms[0].requestSubmit()")
        browser.wait(f"{PARTIAL}.includes('word3')", WAIT_S)
        browser.value("document.getElementById('stop').click()")
        browser.wait(f"{TEXT}.length == 2", WAIT_S)
        question, answer = browser.value(TEXT)
    assert question == "hello"
    words = answer.split()
    assert words == WORDS[: len(words)]
    assert 5 < len(words) < len(WORDS)
