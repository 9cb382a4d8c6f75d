"""The inspector in a real browser: pages stay live, a remedy heals, and hostile text stays text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.docs.browser import Browser, find_browser
from tests.inspector.conftest import SESSION

import holdfast

PATIENCE_S = 60
PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium on this machine")


@pytest.fixture
def address(url: str) -> Iterator[str]:
    """The printed address of `holdfast ui`, served by a process of its own on a free port."""
    command = [sys.executable, "-m", "holdfast", "ui", "--port", "0", "--allow-writes", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        try:
            yield served.stdout.readline().strip()
        finally:
            served.terminate()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path / "profile") as browser:
        yield browser


def test_a_session_is_live_and_healed_by_its_button(address: str, browser: Any, url: str) -> None:
    browser.go(address)
    browser.wait("document.querySelector('h1')?.textContent === 'Overview'", PATIENCE_S)
    assert "token" not in browser.value("location.href"), "the token leaves the address"
    base = address.partition("/?")[0]
    browser.go(f"{base}/session?id={quote(SESSION, safe='')}")
    browser.wait("document.getElementById('live').textContent.includes('live')", PATIENCE_S)
    assert browser.value("document.querySelectorAll('.role-user').length") == 2
    assert browser.value("document.querySelector('.role-user .text').textContent").startswith("<script>alert(1)")
    with holdfast.open_blocking(url) as store, store.sessions.handle(SESSION).turn("turn-3") as turn:
        turn.add({"role": "user", "content": "a third question"})
    browser.wait("document.querySelectorAll('.role-user').length === 3", PATIENCE_S)
    browser.value("[...document.querySelectorAll('button')].find((one) => one.textContent === 'Do it').click()")
    browser.wait("!document.querySelector('.why').textContent.includes('dead-letter')", PATIENCE_S)
    with holdfast.open_blocking(url) as store:
        assert len(store.queue.dead_letters()) == 0
