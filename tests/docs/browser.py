"""Drives a headless Chromium through its debugging pipe, with the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BEGIN = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Begins the browser, which reads commands from descriptor 3 and answers on 4."""

ANSWER_S = 60
"""Time in which the browser answers a question."""


def find_browser() -> str | None:
    """Return the path of a Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Browser:
    """One page in a headless browser."""

    def __init__(self, program: str, profile: Path, more: tuple[str, ...] = ()) -> None:
        from_us, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        # It asks no server but the one of the test.
        flags += ["--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        flags += ["--hide-scrollbars", *more]
        command = [program, *flags, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", BEGIN, str(from_us), str(from_browser), *command],
            pass_fds=(from_us, from_browser),
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(from_browser)
        self._number = 0
        self._buffer = b""
        self._page: str | None = None

    def __enter__(self) -> Self:
        try:
            return self._opened()
        except BaseException:
            self.__exit__()
            raise

    def _opened(self) -> Self:
        self.open_tab()
        return self

    def open_tab(self) -> None:
        """Open a tab in front of the others, and drive that one from now on."""
        self._page = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._page = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._page is not None:
            message["sessionId"] = self._page
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                ready, _, _ = select.select([self._read], [], [], ANSWER_S)
                assert ready, f"the browser does not answer {method}"
                part = os.read(self._read, 65536)
                assert part, "the browser has ended"
                self._buffer += part
            said, self._buffer = self._buffer.split(b"\0", 1)
            answer: dict[str, Any] = json.loads(said)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def go(self, url: str) -> None:
        """Open a page."""
        self._ask("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        return self._ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def picture(self, width: int, height: int) -> bytes:
        """Return a PNG of the top of the page."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        return base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"])

    def wait(self, expression: str, timeout_s: float) -> Any:
        """Return the value of an expression once it is true."""
        deadline_s = time.monotonic() + timeout_s
        while not (value := self.value(expression)):
            assert time.monotonic() < deadline_s, f"never true in the page: {expression}"
            time.sleep(0.02)
        return value
