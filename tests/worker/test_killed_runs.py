"""An agent whose worker is killed before or after any write ends with the same result, and nothing is doubled."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import holdfast

WAIT_S = 60
EVERY = 1 if os.environ.get("HOLDFAST_WHOLE") else 31
"""Of so many points one is tried: a write, before it or after it."""

AGENT = """
import os, sys
import holdfast
from holdfast.store import events, processes, transaction

url, kill_at, notes = sys.argv[1], int(sys.argv[2]), sys.argv[3]
worker = holdfast.Worker(url, lease_s=1, concurrency=1)
forever = holdfast.Retry(100, backoff_s=0)
points = 0

def pass_by():
    global points
    points += 1
    if points == kill_at:
        os.kill(os.getpid(), 9)

def note(key, value):
    with open(notes, "a") as file:
        file.write(key + chr(10))
    return value

@worker.process("agent", retry=forever, signals=["go"])
async def agent(run, link, parts):
    plan = await run.step("plan", note, run.key("plan"), f"plan-{link}")
    both = await run.gather(*(run.step(name, note, run.key(name), name + plan) for name in "ab"))
    child = await run.start("helper", {"plan": plan})
    word = await run.signal("go")
    parts = [*parts, [plan, *both, word, await child.result()]]
    if link < 2:
        run.continue_as_new({"link": link + 1, "parts": parts})
    return parts

@worker.process("helper", retry=forever)
def helper(run, plan):
    run.progress("helping")
    return run.step("help", note, run.key("help"), plan.upper())

def counted(call):
    async def counting(*args, **named):
        pass_by()
        done = await call(*args, **named)
        pass_by()
        return done
    return counting

for owner, names in (
    (events.Events, ["append", "signal"]),
    (processes.Processes, ["start", "complete", "suspend", "claim_next", "register"]),
    (transaction.TransactionBlock, ["__aexit__"]),
):
    for name in names:
        setattr(owner, name, counted(getattr(owner, name)))

worker.run(until_idle=True)
"""
EXPECTED = [["plan-1", "aplan-1", "bplan-1", 1, "PLAN-1"], ["plan-2", "aplan-2", "bplan-2", 2, "PLAN-2"]]


def test_a_kill_at_any_write_of_an_agent_changes_nothing(
    url: str, store: holdfast.BlockingStore, tmp_path: Path
) -> None:
    kills = 0
    for point in itertools.count(1, EVERY):
        id, notes = f"agent-{point}", tmp_path / f"notes-{point}"
        run = store.processes.start("agent", {"link": 1, "parts": []}, id=id)
        for word in (1, 2):
            run.signal("go", word)
        command = [sys.executable, "-c", AGENT, url]
        first = subprocess.run([*command, str(point), str(notes)], check=False, timeout=WAIT_S)
        deadline_s = time.monotonic() + WAIT_S
        while not is_over(store, run) and time.monotonic() < deadline_s:
            subprocess.run([*command, "0", str(notes)], check=True, timeout=WAIT_S)
        assert run.result(timeout_ms=0) == EXPECTED, f"killed at point {point}"
        mine = [one.id for one in store.processes.list(status="any", limit=1000) if one.id.startswith(id)]
        assert sorted(mine) == sorted([id, f"{id}/child:1", f"{id}~2", f"{id}~2/child:1"])
        called = notes.read_text(encoding="utf-8").splitlines()
        # The step that was killed before its record runs again, or both branches of it; nothing else does.
        assert len(set(called)) == 8
        assert len(called) <= 10
        if first.returncode == 0:
            break
        assert first.returncode == -9
        kills += 1
    assert kills > 1
    assert store.maintenance.verify().findings == ()


def is_over(store: holdfast.BlockingStore, run: holdfast.blocking.RunHandle) -> bool:
    newest = store.processes.get(run.newest_id())
    return newest is not None and newest.is_terminal
