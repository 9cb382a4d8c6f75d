"""The inspector in a real browser: pages stay live, a remedy heals, and hostile text stays text."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import urlopen

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.docs.browser import Browser, find_browser
from tests.inspector.conftest import SESSION
from tests.inspector.test_pages import ADDRESSES

import holdfast
from holdfast.inspector import app, inspector
from holdfast.inspector.app import LOOK_EVERY_S, STILL
from holdfast.inspector.views import MOST_PAYLOAD

TIMEOUT_S = 60
REBOUND = "--host-resolver-rules=MAP evil.example 127.0.0.1"
"""The name of another site that points at this machine."""
CONNECTIONS = 6
"""Connections that a browser opens to one server."""
LIVE = "document.getElementById('live')?.textContent.endsWith('· live')"
TURN = (
    "Object.defineProperty(document, 'visibilityState', {{value: '{}', configurable: true}});"
    "document.dispatchEvent(new Event('visibilitychange')); true"
)
"""Lets a page believe that its tab is hidden or seen."""
PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium on this machine")


@pytest.fixture
def address(url: str) -> Iterator[str]:
    with served(url) as address:
        yield address


@contextmanager
def served(url: str, port: str = "0") -> Generator[str]:
    """Yield the printed address of `holdfast ui`, served by a process of its own, by default on a free port."""
    command = [sys.executable, "-m", "holdfast", "ui", "--port", port, "--allow-writes", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        try:
            yield program.stdout.readline().strip()
        finally:
            program.terminate()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path / "profile", (REBOUND,)) as browser:
        yield browser


def test_a_session_is_live_and_healed_by_its_button(address: str, browser: Any, url: str) -> None:
    browser.go(address)
    browser.wait("document.querySelector('h1')?.textContent === 'Overview'", TIMEOUT_S)
    assert "token" not in browser.value("location.href"), "the token leaves the address"
    base = address.partition("/?")[0]
    browser.go(f"{base}/session?id={quote(SESSION, safe='')}")
    browser.wait(LIVE, TIMEOUT_S)
    assert browser.value("document.querySelectorAll('.role-user').length") == 2
    assert browser.value("document.querySelector('.role-user .text').textContent").startswith("<script>alert(1)")
    with holdfast.open_blocking(url) as store, store.sessions.handle(SESSION).turn("turn-3") as turn:
        turn.add({"role": "user", "content": "a third question"})
    browser.wait("document.querySelectorAll('.role-user').length === 3", TIMEOUT_S)
    browser.value("[...document.querySelectorAll('summary')].find((one) => one.textContent === 'Retry').click()")
    browser.value("[...document.querySelectorAll('button')].find((one) => one.textContent === 'Yes, retry it').click()")
    browser.wait("document.getElementById('notice')?.textContent === 'Done.'", TIMEOUT_S)
    browser.wait("!location.search.includes('done')", TIMEOUT_S)
    browser.wait("!document.querySelector('.why').textContent.includes('dead-letter')", TIMEOUT_S)
    with holdfast.open_blocking(url) as store:
        assert len(store.queue.dead_letters()) == 0


# A store that goes away and comes back.


class Away(NamedTuple):
    """A store, and how it goes away and comes back."""

    url: str
    go: Callable[[], object]
    come_back: Callable[[], object]


@pytest.fixture(params=["sqlite", "postgres"])
def leaving(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Away]:
    if request.param == "sqlite":
        kept, away = tmp_path / "stores", tmp_path / "away"
        kept.mkdir()
        yield Away(str(kept / "agent.db"), lambda: shutil.move(kept, away), lambda: shutil.move(away, kept))
        return
    request.getfixturevalue("postgres_database")
    server = sys.modules["holdfast_postgres_server"].Server()
    try:
        yield Away(server.url, server.stop, server.start)
    finally:
        server.remove()


def test_a_page_says_that_the_store_is_away_and_continues_when_it_is_back(leaving: Away, browser: Any) -> None:
    with holdfast.open_blocking(leaving.url) as store:
        store.sessions.create("chat").append({"role": "user", "content": "before"})
    with served(leaving.url) as address:
        browser.go(address)
        browser.wait("document.querySelector('h1')?.textContent === 'Overview'", TIMEOUT_S)
        base = address.partition("/?")[0]
        browser.go(f"{base}/session?id=chat")
        browser.wait(LIVE, TIMEOUT_S)
        leaving.go()
        browser.wait("document.getElementById('notice').textContent.includes('not available')", TIMEOUT_S)
        assert browser.value("document.getElementById('live').textContent.endsWith('database away')")
        assert browser.value("document.querySelector('.role-user .text').textContent") == "before", "it is still shown"
        # A page that is opened now says so, too, and waits for it.
        browser.go(f"{base}/session?id=chat&turns=")
        browser.wait("document.querySelector('main h1')?.textContent === 'The database is not available'", TIMEOUT_S)
        assert "Traceback" not in browser.value("document.body.textContent")
        leaving.come_back()
        browser.wait("document.querySelector('.role-user .text')?.textContent === 'before'", TIMEOUT_S)
        browser.wait(LIVE, TIMEOUT_S)
        assert browser.value("document.getElementById('notice').textContent") == ""
        with holdfast.open_blocking(leaving.url) as store:
            store.sessions.handle("chat").append({"role": "user", "content": "after"})
        browser.wait("document.querySelectorAll('.role-user').length === 2", TIMEOUT_S)


def test_a_page_says_that_there_is_a_new_token_and_continues_with_it(browser: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")
    with holdfast.open_blocking(url) as store:
        store.sessions.create("chat").append({"role": "user", "content": "before"})
    with served(url) as address:
        browser.go(address)
        browser.wait("document.querySelector('h1')?.textContent === 'Overview'", TIMEOUT_S)
        base = address.partition("/?")[0]
        browser.go(f"{base}/session?id=chat")
        browser.wait(LIVE, TIMEOUT_S)
    with served(url, port=base.rpartition(":")[2]) as renewed:
        browser.wait("document.getElementById('notice').textContent.includes('has a new token')", TIMEOUT_S)
        assert browser.value("document.getElementById('live').textContent.endsWith('signed out')")
        assert browser.value("document.querySelector('#notice a').href") == f"{base}/session?id=chat"
        assert browser.value("document.querySelector('.role-user .text').textContent") == "before", "it is still shown"
        # As if the printed address were opened in another tab.
        browser.value(f"fetch('/?' + '{renewed.partition('/?')[2]}')")
        browser.wait(LIVE, TIMEOUT_S)
        assert browser.value("document.getElementById('notice').textContent") == ""


def test_a_hidden_tab_keeps_no_connection_and_catches_up_when_it_is_seen(browser: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")
    with holdfast.open_blocking(url) as store:
        store.sessions.create("chat").append({"role": "user", "content": "before"})
    with served(url) as address:
        browser.go(address)
        browser.wait("document.querySelector('h1')?.textContent === 'Overview'", TIMEOUT_S)
        browser.go(f"{address.partition('/?')[0]}/session?id=chat")
        browser.wait(LIVE, TIMEOUT_S)
        browser.value(TURN.format("hidden"))
        assert browser.value("document.getElementById('live').textContent.endsWith('paused')")
        with holdfast.open_blocking(url) as store:
            store.sessions.handle("chat").append({"role": "user", "content": "meanwhile"})
        time.sleep(3 * LOOK_EVERY_S)
        assert browser.value("document.querySelectorAll('.role-user').length") == 1
        browser.value(TURN.format("visible"))
        browser.wait("document.querySelectorAll('.role-user').length === 2", TIMEOUT_S)
        browser.wait(LIVE, TIMEOUT_S)


def test_an_open_page_does_not_hold_up_the_end_of_the_server(browser: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")
    holdfast.open_blocking(url).close()
    command = [sys.executable, "-m", "holdfast", "ui", "--port", "0", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        browser.go(program.stdout.readline().strip())
        browser.wait(LIVE, TIMEOUT_S)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=TIMEOUT_S)
    assert (program.returncode, said) == (0, "read-only: --allow-writes offers remedies\n")
    browser.wait("document.getElementById('live').textContent.endsWith('reconnecting')", TIMEOUT_S)


def test_more_tabs_than_a_browser_has_connections_are_all_live(browser: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")
    with holdfast.open_blocking(url) as store:
        store.sessions.create("chat")
    with served(url) as address:
        browser.go(address)
        browser.wait("document.querySelector('h1')?.textContent === 'Overview'", TIMEOUT_S)
        for _ in range(CONNECTIONS + 1):
            browser.open_tab()
            browser.go(f"{address.partition('/?')[0]}/session?id=chat")
            browser.wait(LIVE, TIMEOUT_S)


def test_a_person_who_reads_is_not_disturbed(address: str, browser: Any, url: str) -> None:
    """Open parts, marked text and the focus survive the updates of a live page."""
    browser.go(address)
    browser.wait("document.querySelector('h1')?.textContent === 'Overview'", TIMEOUT_S)
    browser.go(f"{address.partition('/?')[0]}/session?id={quote(SESSION, safe='')}")
    browser.wait(LIVE, TIMEOUT_S)
    browser.value("document.querySelectorAll('.entry details')[2].open = true")
    browser.value("document.querySelectorAll('.entry details summary')[2].focus()")
    with holdfast.open_blocking(url) as store:
        store.sessions.handle(SESSION).append({"role": "user", "content": "third"})
    browser.wait("document.querySelectorAll('.role-user').length === 3", TIMEOUT_S)
    assert browser.value("document.querySelectorAll('.entry details')[2].open")
    assert browser.value("document.activeElement === document.querySelectorAll('.entry details summary')[2]")
    browser.value("document.getSelection().selectAllChildren(document.querySelector('.remedy code'))")
    with holdfast.open_blocking(url) as store:
        store.sessions.handle(SESSION).append({"role": "user", "content": "fourth"})
    time.sleep(2 * LOOK_EVERY_S)
    assert "queue retry" in browser.value("document.getSelection().toString()")
    browser.value("document.getSelection().removeAllRanges()")
    browser.wait("document.querySelectorAll('.role-user').length === 4", TIMEOUT_S)


def test_a_page_on_which_only_ages_grow_is_not_sent_again(address: str, browser: Any) -> None:
    browser.go(address)
    browser.wait("document.querySelector('h1')?.textContent === 'Overview'", TIMEOUT_S)
    browser.go(f"{address.partition('/?')[0]}/session?id={quote(SESSION, safe='')}")
    browser.wait(LIVE, TIMEOUT_S)
    browser.value("document.querySelector('h1').dataset.kept = 'yes'")
    age = "document.querySelector('.causes .age').textContent"
    before = browser.value(age)
    time.sleep(3 * LOOK_EVERY_S)
    assert browser.value("document.querySelector('h1').dataset.kept") == "yes"
    assert browser.value(age) != before, "the script counts on"


def test_a_remedy_keeps_its_place_when_the_page_changes(address: str, browser: Any, url: str) -> None:
    """The focus stays on the same remedy, and nothing moves while a person is about to confirm one."""

    def letters() -> int:
        return int(browser.value("document.querySelectorAll('[aria-label=\"Dead letters\"] li').length"))

    def fail(store: holdfast.BlockingStore, id: str) -> None:
        store.sessions.create(id).enqueue("hi")
        claim = store.queue.claim(id, owner_id="w1")
        assert claim is not None
        store.queue.fail(claim, "no", retry_in_ms=None)

    browser.go(address)
    browser.wait("document.querySelector('h1')?.textContent === 'Overview'", TIMEOUT_S)
    with holdfast.open_blocking(url) as store:
        fail(store, "second")
        browser.go(f"{address.partition('/?')[0]}/queue")
        browser.wait(f"location.pathname === '/queue' && {LIVE}", TIMEOUT_S)
        browser.value("document.querySelectorAll('.remedy details[data-key*=second] summary')[1].focus()")
        focused = "document.activeElement.closest('[data-key]')?.dataset.key"
        key = browser.value(focused)
        assert key.startswith("do queue drop second")
        fail(store, "third")
        browser.wait("document.querySelector('[data-key*=third]') !== null", TIMEOUT_S)
        assert browser.value(focused) == key
        browser.value("document.activeElement.closest('details').open = true; document.activeElement.blur()")
        fail(store, "fourth")
        time.sleep(2 * LOOK_EVERY_S)
        assert letters() == 3, "a remedy is about to be confirmed"
        browser.value("document.querySelector('.remedy details[open]').open = false")
        browser.wait("document.querySelector('[data-key*=fourth]') !== null", TIMEOUT_S)


# Narrow screens.


def test_every_page_fits_a_narrow_screen_and_runs_no_stored_script(address: str, browser: Any, url: str) -> None:
    long = "x" * 200
    with holdfast.open_blocking(url) as store:
        session = store.sessions.create(long, owner=long, labels={long[:60]: long})
        session.append({"role": "user", "content": long * 10})
        session.enqueue(long, kind=long[:60])
        store.processes.start(long[:60], id=long)
    browser.go(address)
    browser.wait("document.querySelector('h1')?.textContent === 'Overview'", TIMEOUT_S)
    base = address.partition("/?")[0]
    browser.picture(400, 800)
    more = [
        ("/sessions", {"state": "stuck"}),
        ("/session", {"id": long}),
        ("/tree", {"id": long}),
        ("/why", {"id": long}),
    ]
    for path, query in [*ADDRESSES.items(), *more, ("/process", {"id": long})]:
        browser.go(f"{base}{path}?{urlencode(query)}")
        is_shown = LIVE if path not in STILL else "document.readyState === 'complete'"
        browser.wait(f"location.pathname === '{path}' && {is_shown}", TIMEOUT_S)
        assert browser.value("document.documentElement.scrollWidth") <= 400, path
        assert browser.value("document.scripts.length") == 1, path


# Other sites.

EVIL = """<!doctype html><title>evil</title><script>
const told = {};
async function attack() {
  const paths = ["/sessions", "/metrics", "/live?path=/"];
  for (const path of paths) {
    try { told[path] = (await fetch("BASE" + path, {credentials: "include"})).type; }
    catch (error) { told[path] = "refused"; }
  }
  const body = new URLSearchParams({words: '["queue", "resume", "mail <i>"]'});
  try { await fetch("BASE/remedy", {method: "POST", body, credentials: "include", mode: "no-cors"}); }
  catch (error) { told.fetch = "refused"; }
  const frame = document.createElement("iframe");
  frame.name = "frame";
  document.body.append(frame);
  const form = document.createElement("form");
  Object.assign(form, {method: "post", action: "BASE/remedy", target: "frame"});
  const field = document.createElement("input");
  form.append(Object.assign(field, {name: "words", value: '["queue", "resume", "mail <i>"]'}));
  document.body.append(form);
  frame.addEventListener("load", () => { told.form = "sent"; window.told = told; });
  form.submit();
}
addEventListener("load", attack);
</script><body></body>"""


class Evil(BaseHTTPRequestHandler):
    """Serves the page of another site on this machine."""

    page: ClassVar[bytes] = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_page_of_another_site_reads_and_writes_nothing(address: str, browser: Any, url: str) -> None:
    browser.go(address)
    browser.wait("document.querySelector('h1')?.textContent === 'Overview'", TIMEOUT_S)
    base, _, token = address.partition("/?token=")
    Evil.page = EVIL.replace("BASE", base).encode()
    with ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            for host in ("127.0.0.1", "evil.example"):
                browser.go(f"http://{host}:{server.server_port}/")
                told = browser.wait("document.title === 'evil' && window.told", TIMEOUT_S)
                refused = {"/sessions": "refused", "/metrics": "refused", "/live?path=/": "refused"}
                assert {name: told[name] for name in refused} == refused, host
        finally:
            server.shutdown()
    with holdfast.open_blocking(url) as store:
        assert [one.kind for one in store.queue.limits() if one.paused] == ["mail <i>"], "nothing was resumed"
    # Its name points at this machine now, and it knows the port.
    port = base.rpartition(":")[2]
    browser.go(f"http://evil.example:{port}/sessions?token={token}")
    browser.wait("document.body?.textContent.includes('This host name is not served here')", TIMEOUT_S)


# Mounted in another application, behind a proxy.


class Proxy(BaseHTTPRequestHandler):
    """Adds the header of a signed-in user, takes its own prefix off the path, and passes requests on."""

    port: ClassVar[int] = 0
    PREFIX: ClassVar[str] = "/edge"
    user: ClassVar[str] = "ada"

    def do_GET(self) -> None:
        if not self.path.startswith(f"{self.PREFIX}/"):
            self.send_error(404)
            return
        size = int(self.headers.get("content-length") or 0)
        passed = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        upstream = HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        path = self.path.removeprefix(self.PREFIX)
        upstream.request(self.command, path, self.rfile.read(size) if size else None, {**passed, "x-user": self.user})
        answer = upstream.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"transfer-encoding", "connection"}:
                self.send_header(name, value)
        self.end_headers()
        try:
            while part := answer.read1(65536):
                self.wfile.write(part)
                self.wfile.flush()
        except OSError:
            pass  # the page was left
        finally:
            upstream.close()

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def behind_a_proxy(url: str) -> Generator[str]:
    """Yield the address of an inspector that another application mounts, as a proxy serves it."""

    def is_ada(request: Any) -> bool:
        return bool(request.headers.get("x-user") == "ada")

    pages = inspector(url, authenticate=is_ada, hosts={"127.0.0.1"}, allow_writes=True)
    app = Starlette(routes=[Mount("/ops/pages", pages)], lifespan=pages.router.lifespan_context)
    with socket.socket() as listening, ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        Proxy.port = listening.getsockname()[1]
        config = uvicorn.Config(app, log_level="warning", root_path="/edge", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        serving.start()
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}/edge/ops/pages"
        finally:
            server.should_exit = True
            serving.join()
            proxy.shutdown()


def test_a_mounted_inspector_is_live_and_heals_behind_a_proxy(
    browser: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who is signed out meanwhile sees no further change."""
    monkeypatch.setattr(app, "STREAM_S", 1.0)
    monkeypatch.setattr(app, "PAUSE_FACTOR", 0)
    with behind_a_proxy(url) as base:
        browser.go(f"{base}/")
        browser.wait(LIVE, TIMEOUT_S)
        links = "[...document.querySelectorAll('header a:not(.skip), main a')].map((one) => one.pathname)"
        assert {one.startswith("/edge/ops/pages/") for one in browser.value(links)} == {True}
        browser.go(f"{base}/session?id={quote(SESSION, safe='')}")
        browser.wait(f"location.pathname.endsWith('/session') && {LIVE}", TIMEOUT_S)
        with holdfast.open_blocking(url) as store:
            store.sessions.handle(SESSION).append({"role": "user", "content": "third"})
        browser.wait("document.querySelectorAll('.role-user').length === 3", TIMEOUT_S)
        browser.value("[...document.querySelectorAll('summary')].find((one) => one.textContent === 'Retry').click()")
        browser.value(
            "[...document.querySelectorAll('button')].find((one) => one.textContent === 'Yes, retry it').click()"
        )
        browser.wait("document.getElementById('notice')?.textContent === 'Done.'", TIMEOUT_S)
        assert browser.value("location.pathname") == "/edge/ops/pages/session"
        monkeypatch.setattr(Proxy, "user", "eve")
        browser.wait("document.getElementById('notice').textContent.startsWith('You are signed out.')", TIMEOUT_S)
        monkeypatch.setattr(Proxy, "user", "ada")
        browser.wait(LIVE, TIMEOUT_S)
        port = Proxy.port
        with pytest.raises(HTTPError) as refused:
            urlopen(f"http://127.0.0.1:{port}/ops/pages/sessions", timeout=TIMEOUT_S)
        with refused.value:
            assert refused.value.code == 403, "past the proxy no user is signed in"


# Large messages.


def test_a_message_of_ten_megabytes_is_shown_by_its_beginning(browser: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "agent.db")
    said = "<b>large</b> " * 800_000
    with holdfast.open_blocking(url) as store:
        store.sessions.create("large").append({"role": "user", "content": said})
    with served(url) as address:
        browser.go(address)
        browser.wait("document.querySelector('h1')?.textContent === 'Overview'", TIMEOUT_S)
        browser.go(f"{address.partition('/?')[0]}/session?id=large")
        browser.wait(f"location.pathname === '/session' && {LIVE}", TIMEOUT_S)
        assert browser.value("document.documentElement.outerHTML.length") < 50_000
        assert browser.value("document.querySelectorAll('main b').length") == 0
        browser.value("document.querySelector('.role-user .text a').click()")
        browser.wait("location.pathname === '/node' && document.readyState === 'complete'", TIMEOUT_S)
        assert browser.value("document.querySelector('pre').textContent.length") == MOST_PAYLOAD
        place = browser.value("document.querySelector('.more a').href")
        browser.value(
            f"fetch({place!r}).then((one) => one.json()).then((one) => {{ window.told = one.content.length; }})"
        )
        assert browser.wait("window.told", TIMEOUT_S) == len(said)
