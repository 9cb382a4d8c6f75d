"""Take the pictures of the inspector in docs/images, in a headless Chromium, of a store that is made for them.

Usage: python tools/screenshots.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.docs.browser import Browser, find_browser

import holdfast
from holdfast.worker import BlockingRun, GiveUp
from holdfast.workers import WorkerInfo

IMAGES = Path(__file__).parents[1] / "docs" / "images"
TIMEOUT_S = 60
HOUR_MS = 3_600_000
PLACES = ("Vienna", "Graz", "Linz", "Salzburg")
PAGES = {
    "inspector-sessions": ("/sessions", 480),
    "inspector-session": (f"/session?id={quote('chat-42')}", 960),
    "inspector-run": (f"/process?id={quote('report-7')}", 640),
    "inspector-tree": (f"/tree?id={quote('chat-45')}", 480),
    "inspector-overview": ("/", 840),
}
TURNS = (1, 3, 2, 4, 6, 5, 3, 4, 2, 5, 7, 4, 3, 5, 6, 4)
"""Turns of each second in which the overview is watched."""


def main() -> int:
    program = find_browser()
    if program is None:
        print("no Chromium is installed")
        return 1
    with tempfile.TemporaryDirectory(prefix="holdfast-pictures-") as folder:
        url = str(Path(folder) / "agent.db")
        fill(url)
        command = [sys.executable, "-m", "holdfast", "ui", "--port", "0", "--allow-writes", "--url", "agent.db"]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as served,
            Browser(program, Path(folder) / "profile") as browser,
        ):
            assert served.stdout is not None
            try:
                take(browser, served.stdout.readline().strip(), url)
            finally:
                served.terminate()
    return 0


def take(browser: Browser, address: str, url: str) -> None:
    """Take every picture, once its page is live."""
    browser.go(address)
    browser.wait("document.querySelector('h1')?.textContent === 'Overview'", TIMEOUT_S)
    base = address.partition("/?")[0]
    for name, (path, height) in PAGES.items():
        browser.go(base + path)
        browser.wait("document.getElementById('live')?.textContent.includes('live')", TIMEOUT_S)
        if path == "/":
            work(url)
        (IMAGES / f"{name}.png").write_bytes(browser.picture(1200, height))
        print(f"wrote {name}.png")


def work(url: str) -> None:
    """Commit turns for some seconds, which the page measures."""
    with holdfast.open_blocking(url) as store:
        session = store.sessions.create("chat-48", owner="ada")
        for number in TURNS:
            for _ in range(number):
                session.append({"role": "user", "content": "And in the other quarters?"})
            time.sleep(1)


# The store.


def fill(url: str) -> None:
    """Make conversations, one of them stuck, and a run that waits for a person."""
    worker = holdfast.Worker(url, name="web-1")

    @worker.process("report", signals={"approve": dict})
    def report(run: BlockingRun, quarter: str) -> str:
        figures = run.step(f"figures of {quarter}", read_figures)
        run.step("draft", write_draft, figures)
        run.progress({"pages": 3})
        return str(run.signal("approve", timeout_s=86_400))

    @worker.job("send-mail", retry=holdfast.Retry(1))
    def send(job: Any) -> None:
        raise GiveUp(f"no such address: {job.payload}")

    with holdfast.open_blocking(url) as store:
        for number, place in enumerate(PLACES * 2):
            labels = {"place": place, "plan": "team" if number % 2 else "free"}
            session = store.sessions.create(f"chat-{40 + number}", owner="ada", labels=labels)
            for turn_number, quarter in enumerate(("Q3", "Q4")):
                with session.turn(f"turn-{turn_number}") as turn:
                    turn.add({"role": "user", "content": f"What does the report of {place} say about {quarter}?"})
                    turn.add({"role": "tool", "content": f"search(report, {quarter!r}) -> 3 hits"})
                    turn.add({"role": "assistant", "content": f"Revenue in {quarter} grew by 4 %, costs by 2 %."})
                    turn.usage("some-model", input_tokens=1_200, output_tokens=300 + turn_number)
                    turn.state = {"asked": turn_number + 1, "topic": place}
        stuck = store.sessions.handle("chat-42")
        stuck.enqueue("And the year?")
        gone = WorkerInfo("web-0", host="web-0", pid=7, kinds=("turn",))
        store.queue.claim("chat-42", owner_id=gone.id, ttl_ms=HOUR_MS)
        store.workers.heartbeat(gone, ttl_ms=1_000)
        alive = WorkerInfo("web-2", host="web-2", pid=7, kinds=("report", "send-mail", "turn"))
        store.workers.heartbeat(alive, ttl_ms=HOUR_MS)
        again = store.sessions.handle("chat-45")
        asked = holdfast.Node(
            "another", parent="turn-0/2", payload={"role": "user", "content": "And compared with Q2?"}
        )
        again.commit(holdfast.Commit(turn_id="turn-2", graph=holdfast.Append([asked])))
        again.append({"role": "assistant", "content": "Revenue grew by 7 %."})
        store.sessions.fork("chat-45", into="chat-45-in-short", at=2)
        store.sessions.handle("chat-43").enqueue("ada@example", kind="send-mail")
        store.processes.start("report", {"quarter": "Q4"}, id="report-7")
    worker.run(until_idle=True)


def read_figures() -> dict[str, int]:
    return {"revenue": 104, "costs": 102}


def write_draft(figures: dict[str, int]) -> str:
    return f"Revenue grew by {figures['revenue'] - 100} %, costs by {figures['costs'] - 100} %."


if __name__ == "__main__":
    sys.exit(main())
