"""A store with one of everything that a page shows, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import holdfast
from holdfast.inspector import inspector
from holdfast.processes import BySession, Provenance, Run
from holdfast.triggers import SubscriptionDraft
from holdfast.workers import WorkerInfo

HOST = "testserver"
HOSTILE = "<script>alert(1)</script>\x1b[31m"
SESSION = "chat/42 <b>&\"'"
TOKEN = "the-token"
PICTURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a filled store."""
    made = str(tmp_path / "agent.db")
    if request.param == "postgres":
        made = str(request.getfixturevalue("clean_postgres_url"))
    with holdfast.open_blocking(made) as store:
        fill(store)
    return made


def fill(store: holdfast.BlockingStore) -> None:
    """Store one of everything, with hostile text wherever there is text."""
    session = store.sessions.create(SESSION, owner=HOSTILE, model=HOSTILE, labels={"<i>": HOSTILE})
    for number in (1, 2):
        with session.turn(f"turn-{number}") as turn:
            turn.add({"role": "user", "content": f"{HOSTILE} {number}"})
            turn.add({"role": "assistant", "content": [{"type": "text", "text": "hello"}]})
            turn.state = {"turn": number, HOSTILE: HOSTILE}
            turn.usage("m", input_tokens=10, output_tokens=5)
    store.sessions.fork(SESSION, into="fork", at=1)
    session.attachments.put(b"<script>alert(1)</script>", media_type="text/html", label=HOSTILE)
    session.attachments.put(b"<svg onload='alert(1)'/>", media_type="image/svg+xml", label="<i>.svg")
    session.attachments.put(PICTURE, media_type="image/png", label="<i>.png")
    session.enqueue({"text": HOSTILE})
    claim = store.queue.claim(SESSION, owner_id="w1")
    assert claim is not None
    store.queue.fail(claim, HOSTILE, retry_in_ms=None)
    store.workers.heartbeat(WorkerInfo("w2", host=HOSTILE[:25], pid=7, kinds=("turn",)), ttl_ms=3_600_000)
    provenance = Provenance(BySession(holdfast.Scope(SESSION)))
    store.processes.start("research", {"question": HOSTILE}, id="run <i>", provenance=provenance)
    store.schedules.put("nightly <i>", "0 3 * * *", run=Run("research"))
    store.schedules.pause("nightly <i>")
    store.triggers.subscribe(
        SubscriptionDraft(source_type="cron", source_key="<i>", target=Run("research"), name="<i>")
    )
    store.triggers.emit("cron", "<i>", idempotency_key="1")
    store.queue.pause("mail <i>")


@pytest.fixture
def client(url: str) -> Iterator[TestClient]:
    """A browser that has opened the printed address of a page that only reads."""
    with TestClient(inspector(url, token=TOKEN, hosts=[HOST])) as client:
        client.get("/", params={"token": TOKEN})
        yield client


@pytest.fixture
def writer(url: str) -> Iterator[TestClient]:
    """The same, of a page that may write."""
    with TestClient(
        inspector(url, token=TOKEN, hosts=[HOST], allow_writes=True), headers={"origin": f"http://{HOST}"}
    ) as client:
        client.get("/", params={"token": TOKEN})
        yield client
