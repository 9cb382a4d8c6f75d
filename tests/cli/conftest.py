"""The command line as a user runs it: arguments in, exit code and text out, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.cli import main
from holdfast.events import EventType
from holdfast.processes import External
from holdfast.queue import Group
from holdfast.sessions import AgentFrame
from holdfast.testing.clock import ManualClock
from holdfast.triggers import SubscriptionDraft

NOW = 1_700_000_000_000


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an existing, empty store."""
    if request.param == "sqlite":
        made = str(tmp_path / "agent.db")
    else:
        made = str(request.getfixturevalue("clean_postgres_url"))
    holdfast.open_blocking(made).close()
    return made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process."""
    monkeypatch.delenv("HOLDFAST_URL", raising=False)

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(one) for one in arguments])
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run


@pytest.fixture
def on(run: Run, url: str) -> Run:
    """Run a command on the store in this process."""

    def on(*arguments: object) -> Ran:
        return run(*arguments, "--url", url)

    return on


class Filled(NamedTuple):
    """Ids in a filled store that the tests use."""

    keyed: str
    """The batch with a source key."""
    plain: str
    """The batch without one."""


@pytest.fixture
def filled(url: str) -> Filled:
    """Fill a store: one session with everything, one fork of it, a process, a subscription. Every time is NOW."""
    with holdfast.open_blocking(url, clock=ManualClock(NOW)) as store:
        chat = store.sessions.create("chat", name="First", owner="ada", model="some-model")
        ref = chat.attachments.put(b"abc", media_type="text/plain", label="letters")
        path = [holdfast.Node("n1", payload={"z": 1, "a": 2}), holdfast.Node("n2", parent="n1", payload="hello")]
        chat.commit(
            holdfast.Commit(
                turn_id="turn-1",
                graph=holdfast.Append(path, leaf="n2"),
                checkpoint=holdfast.Checkpoint(turn_state={"n": 1}, execution_state=b"\x00\xff"),
                config={"mode": "fast"},
                frames=[AgentFrame("f1", execution_state=b"stack")],
                current_frame_id="f1",
                usage=[holdfast.Usage("turn", "some-model", input_tokens=3, cached_input_tokens=1)],
                attachments=[ref.id],
            )
        )
        side = [holdfast.Node("s1", parent="n1"), holdfast.Node("s2", parent="s1"), holdfast.Node("s3", parent="s2")]
        chat.add_nodes(side)
        chat.tombstone(["s2"])
        chat.attachments.put(b"loose")
        chat.attachments.record_intent("far", uri="s3://bucket/far", media_type="image/png", byte_count=5)
        keyed = store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[{"x": 1}], source_key="key-1"))
        plain = store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["y"], merge_key=Group("g")))
        store.sessions.fork("chat", into="fork", at="n1", owner="bob")
        kinds = [EventType("progress"), EventType("signal.go")]
        store.processes.register(holdfast.ProcessRegistration("build", External({"l": 1}), event_types=kinds))
        store.events.append("build", "progress", {"percent": 50})
        store.triggers.subscribe(
            SubscriptionDraft(source_type="cron", source_key="daily", target=External(), name="morning")
        )
    return Filled(keyed.batch_id, plain.batch_id)
