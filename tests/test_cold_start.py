"""Many threads may make the first calls of a process at once: none uses a half-initialized object."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

RUNS = 12 if os.environ.get("HOLDFAST_WHOLE") else 4
"""Each in a process of its own: what is made at the first call is made once in a process."""

FIRST_CALLS = """
import sys, threading
sys.setswitchinterval(1e-6)
import holdfast
from holdfast.events import EventType, Payload, Pointer, Template, TerminalRule, WakeRule
from holdfast.sessions import AgentFrame

def register(store, number):
    kinds = [EventType("over", terminal=TerminalRule("completed", Payload()),
                       wake=WakeRule(Template("{x}", {"x": Pointer("")})))]
    name = f"p{number}"
    store.processes.register(holdfast.ProcessRegistration(name, holdfast.processes.External(), event_types=kinds))
    store.events.append(name, "over", {"n": number}, replay_key="k")
    assert store.processes.get(name).outcome == holdfast.processes.Completed({"n": number})

def subscribe(store, number):
    store.triggers.subscribe(holdfast.triggers.SubscriptionDraft(
        source_type="timer", source_key=str(number), target=holdfast.processes.Engine("k", {}), env_ref="e",
        input_template={"a": holdfast.triggers.EventPayload(), "b": holdfast.triggers.Fixed([1])}))
    (delivery,) = store.triggers.emit("timer", str(number), idempotency_key="i", payload=1).deliveries
    holdfast.triggers.registration_for(delivery)

def commit(store, number):
    session = store.sessions.create(f"s{number}", relation=holdfast.sessions.Child("parent", {"c": 1}))
    session.commit(holdfast.Commit(
        graph=holdfast.Append([holdfast.Node("n")], leaf="n"), checkpoint=holdfast.Checkpoint(turn_state=[number]),
        frames=[AgentFrame("f", caused_by={"c": 1})], usage=[holdfast.Usage("t", "m", input_tokens=1)]))
    view = store.sessions.fork(f"s{number}", into=f"f{number}").load()
    assert view.checkpoint == holdfast.Checkpoint(turn_state=[number])

THREADS = 16
start = threading.Barrier(THREADS)
done = []

def life(store, number):
    start.wait(60)
    for step in (register, subscribe, commit)[number % 3:] + (register, subscribe, commit)[:number % 3]:
        step(store, number)
    done.append(number)

with holdfast.open_blocking(sys.argv[1]) as store:
    threads = [threading.Thread(target=life, args=(store, number)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
assert sorted(done) == list(range(THREADS)), done
"""


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_many_threads_make_the_first_calls_of_a_process_together(tmp_path: Path, kind: str) -> None:
    def run(number: int) -> subprocess.CompletedProcess[str]:
        url = "memory:" if kind == "memory" else str(tmp_path / f"{number}.db")
        return subprocess.run(
            [sys.executable, "-c", FIRST_CALLS, url], capture_output=True, text=True, timeout=120, check=False
        )

    with ThreadPoolExecutor(2) as pool:
        ran = list(pool.map(run, range(RUNS)))
    assert [(one.returncode, one.stderr) for one in ran] == [(0, "")] * RUNS
