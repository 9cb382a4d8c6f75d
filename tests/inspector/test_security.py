"""The inspector answers only requests with the printed token, from this machine, and writes only if allowed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from tests.inspector.conftest import HOST, TOKEN

import holdfast
from holdfast.inspector import inspector

PATHS = ["/", "/sessions", "/live", "/metrics", "/static/inspector.js", "/nowhere"]


@pytest.fixture
def url() -> str:
    return "memory:"


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_shown(url: str, path: str) -> None:
    with TestClient(inspector(url, token=TOKEN, hosts=[HOST])) as client:
        for wrong in ({}, {"token": ""}, {"token": "guess"}, {"token": TOKEN[:-1]}):
            answer = client.get(path, params=wrong)
            assert (answer.status_code, "token is missing" in answer.text) == (403, True)
        client.cookies.set("holdfast-inspector", "guess")
        assert client.get(path).status_code == 403
        for wrong in ("Bearer guess", "Bearer", TOKEN, f"Basic {TOKEN}"):
            assert client.get(path, headers={"authorization": wrong}).status_code == 403


def test_the_token_leaves_the_address_and_becomes_a_strict_cookie(url: str) -> None:
    with TestClient(inspector(url, token=TOKEN, hosts=[HOST])) as client:
        answer = client.get("/sessions", params={"token": TOKEN, "owner": "ada"}, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/sessions?owner=ada")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert client.get("/sessions").status_code == 200


def test_a_scraper_brings_the_token_in_a_header(url: str) -> None:
    with TestClient(inspector(url, token=TOKEN, hosts=[HOST], allow_writes=True)) as client:
        headers = {"authorization": f"Bearer {TOKEN}"}
        assert client.get("/metrics", headers=headers).status_code == 200
        written = client.post("/remedy", data={"words": '["queue", "resume", "x"]'}, headers=headers)
        assert written.status_code == 403, "a write comes from the page"


def test_inspectors_on_two_ports_do_not_sign_each_other_out(url: str) -> None:
    """A browser sends the cookies of a host to all of its ports."""
    cookies: dict[str, str] = {}
    for port, token in ((8321, "one"), (8322, "two")):
        with TestClient(inspector(url, token=token), base_url=f"http://localhost:{port}") as client:
            client.get("/", params={"token": token})
            cookies.update(client.cookies)
    for port, token in ((8321, "one"), (8322, "two")):
        app = inspector(url, token=token)
        with TestClient(app, base_url=f"http://localhost:{port}", cookies=cookies) as client:
            assert client.get("/").status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/", "///evil.example", "/\\evil.example", "/%2f%2fevil.example/"])
def test_the_token_leads_to_no_other_host(url: str, path: str) -> None:
    with TestClient(inspector(url, token=TOKEN, hosts=[HOST])) as client:
        answer = client.get(f"http://{HOST}{path}?token={TOKEN}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"][:2]) in {(303, "/e"), (303, "/%")}


def test_web_sockets_are_refused(url: str) -> None:
    with (
        TestClient(inspector(url, authenticate=lambda _: True)) as client,
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("/live"),
    ):
        pass


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "",
        "localhost@evil.example",
        "[::1",
        "evil:80",
        "localhost/evil",
        "localhost?",
        "localhost.",
    ],
)
def test_another_host_name_is_refused(url: str, host: str) -> None:
    """A page of another site that had its name point at this machine (DNS rebinding) sends its own name."""
    with TestClient(inspector(url, token=TOKEN)) as client:
        answer = client.get("/", params={"token": TOKEN}, headers={"host": host})
        assert answer.status_code == 421
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("host", ["127.0.0.1:8321", "localhost", "[::1]:8321"])
def test_loopback_names_are_served(url: str, host: str) -> None:
    with TestClient(inspector(url, token=TOKEN)) as client:
        assert (
            client.get("/", params={"token": TOKEN}, headers={"host": host}, follow_redirects=False).status_code == 303
        )


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "testserver"},
        {"origin": "file://testserver"},
        {"origin": "http://ada@testserver"},
        {"origin": "http://testserver/"},
        {"origin": "https://evil.example"},
        {"origin": "http://testserver.evil.example"},
        {"origin": "http://testserver:81"},
        {"origin": "http://testserver", "sec-fetch-site": "cross-site"},
        {"origin": "http://testserver", "sec-fetch-site": "same-site"},
    ],
)
def test_a_write_from_another_site_is_refused(url: str, headers: dict[str, str]) -> None:
    with TestClient(inspector(url, token=TOKEN, hosts=[HOST], allow_writes=True)) as client:
        client.get("/", params={"token": TOKEN})
        answer = client.post("/remedy", data={"words": '["queue", "resume", "mail"]'}, headers=headers)
        assert (answer.status_code, answer.text) == (403, "A write must come from this page.")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_a_page_that_only_reads_refuses_every_write(url: str, method: str) -> None:
    with TestClient(inspector(url, token=TOKEN, hosts=[HOST]), headers={"origin": "http://testserver"}) as client:
        client.get("/", params={"token": TOKEN})
        answer = client.request(method, "/remedy")
        assert (answer.status_code, "--allow-writes" in answer.text) == (403, True)


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "//etc/passwd"])
def test_no_path_leads_out_of_the_static_folder(url: str, path: str) -> None:
    with TestClient(inspector(url, token=TOKEN, hosts=[HOST])) as client:
        client.get("/", params={"token": TOKEN})
        answer = client.get(path)
        assert answer.status_code in {400, 404}
        assert "def inspector" not in answer.text


def test_every_answer_has_the_headers_that_forbid_scripts_and_frames(url: str) -> None:
    with TestClient(inspector(url, token=TOKEN, hosts=[HOST])) as client:
        for path, params in [("/", {}), ("/", {"token": TOKEN}), ("/nowhere", {}), ("/static/inspector.css", {})]:
            headers = client.get(path, params=params).headers
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"


def test_a_hook_decides_where_the_inspector_is_mounted(url: str) -> None:
    async def is_ada(request: Any) -> bool:
        return request.headers.get("x-user") == "ada"

    with holdfast.open_blocking("memory:"):
        app = Starlette(routes=[Mount("/holdfast", inspector(url, authenticate=is_ada, hosts=None))])
    with TestClient(app) as client:
        assert client.get("/holdfast/").status_code == 403
        answer = client.get("/holdfast/sessions", headers={"x-user": "ada", "host": "agents.example"})
        assert answer.status_code == 200
        assert 'href="/holdfast/processes"' in answer.text
        assert 'src="/holdfast/static/inspector.js"' in answer.text


def test_a_hook_that_says_no_or_anything_but_true_is_obeyed(url: str) -> None:
    for answer in (False, None, 1, "yes"):
        with TestClient(inspector(url, authenticate=lambda _, said=answer: said, hosts=[HOST])) as client:  # type: ignore[misc]
            assert client.get("/").status_code == 403


def test_an_inspector_without_token_and_hook_is_refused(url: str) -> None:
    for wrong in ({}, {"token": "t", "authenticate": lambda _: True}, {"token": "t", "hosts": None}):
        with pytest.raises(holdfast.InvalidRequest):
            inspector(url, **wrong)  # type: ignore[arg-type]


def test_the_server_prints_each_remedy_with_its_time(tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")
    with holdfast.open_blocking(url) as store:
        store.sessions.create("chat \x1b[31m").enqueue("hi")
        claim = store.queue.claim("chat \x1b[31m", owner_id="w1")
        assert claim is not None
        batch_id = claim.batches[0].batch_id
    command = [sys.executable, "-m", "holdfast", "ui", "--port", "0", "--allow-writes", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        base, _, token = program.stdout.readline().strip().partition("/?token=")
        words = json.dumps(["queue", "release", "chat \x1b[31m", batch_id])
        headers = {"authorization": f"Bearer {token}", "origin": base}
        request = Request(f"{base}/remedy", urlencode({"words": words}).encode(), headers)
        with urlopen(request) as answer:
            assert answer.url.endswith("/?done=yes")
        program.send_signal(signal.SIGINT)
        _, said = program.communicate()
    line = said.splitlines()[1]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ the claim on batch .* was released", line)
    assert batch_id in line
    assert line.isprintable()
