"""Every change of a process's record wakes the watchers of that process, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.events import EventType, Payload, TerminalRule, WakeRule
from holdfast.factory import open_backend
from holdfast.ports import Backend
from holdfast.processes import Completed, External, ExternalRef, SignalWait
from holdfast.store import Context, Store
from holdfast.testing.clock import ManualClock
from holdfast.wait import BlockingWaiting

TIMEOUT_S = 10
REGISTRATION = holdfast.ProcessRegistration(
    "build",
    External(),
    event_types=[
        EventType("progress"),
        EventType("news", wake=WakeRule(Payload())),
        EventType("over", terminal=TerminalRule("completed")),
    ],
)


class Watched:
    """A store and its backend."""

    def __init__(self, url: str) -> None:
        self.backend: Backend = open_backend(url, None, ManualClock(), BlockingWaiting())
        self.store = holdfast.BlockingStore(Store(Context(self.backend, holdfast.Limits())), self.backend)


@pytest.fixture(params=["memory", "sqlite"])
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    opened = Watched("memory:" if request.param == "memory" else str(tmp_path / "state.db"))
    yield opened
    opened.store.close()


CHANGES: dict[str, Callable[[holdfast.BlockingStore], Any]] = {
    "set_external_ref": lambda store: store.processes.set_external_ref("build", ExternalRef("ci", "1")),
    "set_wait": lambda store: store.processes.set_wait("build", SignalWait("approve", 1)),
    "clear_wait": lambda store: store.processes.clear_wait("build"),
    "append": lambda store: store.events.append("build", "progress", 1),
    "append again": lambda store: store.events.append("build", "progress", 2),
    "append that asks for a wake": lambda store: store.events.append("build", "news", 1),
    "ack_wake": lambda store: store.events.ack_wake("build", 3),
    "request to cancel": lambda store: store.events.request_cancel("build", reason="enough"),
    "complete": lambda store: store.processes.complete("build", Completed(1)),
}
"""The life of a process, one change after the other."""


def test_each_change_of_a_process_wakes_its_watchers(watched: Watched) -> None:
    change = watched.backend.watch("process:build")
    other = watched.backend.watch("process:other")
    watched.store.processes.register(REGISTRATION)
    assert change.result(TIMEOUT_S) is None
    for name, act in CHANGES.items():
        change = watched.backend.watch("process:build")
        assert not change.done(), name
        act(watched.store)
        assert change.result(TIMEOUT_S) is None, name
    assert not other.done()
    other.cancel()


def test_an_event_that_ends_a_process_wakes_its_watchers(watched: Watched) -> None:
    watched.store.processes.register(REGISTRATION)
    change = watched.backend.watch("process:build")
    watched.store.events.append("build", "over", 1, replay_key="k")
    assert change.result(TIMEOUT_S) is None


QUIET: dict[str, Callable[[holdfast.BlockingStore], Any]] = {
    "register alike": lambda store: store.processes.register(REGISTRATION),
    "clear_wait without a wait": lambda store: store.processes.clear_wait("build"),
    "replay": lambda store: store.events.append("build", "progress", 1, replay_key="k"),
    "get": lambda store: store.processes.get("build"),
}


def test_a_call_that_changes_nothing_wakes_no_waiter(watched: Watched) -> None:
    watched.store.processes.register(REGISTRATION)
    watched.store.events.append("build", "progress", 1, replay_key="k")
    for number, (name, act) in enumerate(QUIET.items()):
        change = watched.backend.watch("process:build")
        act(watched.store)
        # Commits are published in order: once a later one was received, an earlier one has woken its watchers.
        later = watched.backend.watch(f"process:{number}")
        watched.store.processes.register(holdfast.ProcessRegistration(str(number), External()))
        assert later.result(TIMEOUT_S) is None
        assert not change.done(), name
        change.cancel()
