"""Wherever the demo kills its workers, the store holds everything once; and a wrong count is not reported as right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.demo import scenario, script

ROOT = Path(__file__).resolve().parents[2]
WHOLE = bool(os.environ.get("HOLDFAST_WHOLE"))
SEEDS = range(20) if WHOLE else (0, 2, 4, 6)
"""The few ones kill at all kinds of places, too."""
POSTGRES_SEEDS = range(3 if WHOLE else 1)
CPU_S = 5.0
"""About twice what it takes: beside other programs the same work takes a half longer."""
TIMEOUT_S = 120

# Computed by hand from the script: five messages, three of which need one tool each; one tool enqueues a job.
SAID, TOOLS, JOBS = 5, 3, 1
ANSWERS = SAID + TOOLS
NODES = SAID + ANSWERS + TOOLS
TOKENS = sum([6, 14, 9, 7, 12, 6, 10, 11])
KEYS = {
    *("ok", "session_id", "file", "seconds", "kills", "leases", "kept", "model_calls"),
    *("expected", "counted", "timeline"),
}
BUILD_LOG = ["step"] * 4 + ["signal.approve", "process.completed"]
NIGHT_LOG = ["step"] * 3 + ["process.completed"]


def play(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "demo", *(str(one) for one in arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **environment},
        check=False,
    )


def played(*arguments: object) -> Any:
    """Run the demo, which must succeed by its own count, and return its report."""
    done = play(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    document = json.loads(done.stdout)
    assert set(document) == KEYS
    assert document["ok"]
    assert document["counted"] == document["expected"]
    assert len(document["kills"]) == 2
    assert document["model_calls"] >= ANSWERS
    for lease in document["leases"]:
        assert lease["refused"]
        assert lease["late_write_refused"]
    return document


def check_store(store: holdfast.BlockingStore, session_id: str) -> None:
    """Check the same facts by other queries than the demo's."""
    session = store.sessions.open(session_id)
    assert session is not None
    turns = [entry.turn_id or "" for entry in session.history()]
    assert len(turns) == len(set(turns)) == SAID
    view = session.load()
    assert view is not None
    assert (view.revision, view.node_count, len(view.graph.nodes)) == (SAID, NODES, NODES)
    assert view.ledger[0].total == TOKENS
    logs = [
        [event.type for event in store.events.after(process.id)]
        for process in store.processes.list(status="any", started_by=session_id)
    ]
    assert sorted(logs, key=len) == [NIGHT_LOG, BUILD_LOG]
    (ref,) = session.attachments.list()
    assert session.attachments.get(ref.id).data == b"head of the build\nbody of the build\nend of the build\n"
    assert session.attachments.entry(ref.id).committed_at_ms is not None
    assert len(store.queue.list(session_id)) == len(store.queue.list(f"{session_id}:jobs")) == 0
    assert store.maintenance.verify().ok


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_or_done_twice_wherever_two_workers_are_killed(seed: int, tmp_path: Path) -> None:
    file = tmp_path / "agent.db"
    document = played("--seed", seed, "--url", file)
    with holdfast.open_blocking(file) as store:
        check_store(store, document["session_id"])
        assert store.maintenance.stats().settled_batches == SAID + JOBS
    connection = apsw.Connection(str(file))
    tables = ("nodes", "revisions", "events", "processes", "attachments", "occurrences", "deliveries")
    rows = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in tables}
    connection.close()
    assert rows == {
        "nodes": NODES,
        "revisions": SAID,
        "events": len(BUILD_LOG) + len(NIGHT_LOG),
        "processes": 2,
        "attachments": 1,
        "occurrences": 1,
        "deliveries": 1,
    }


@pytest.mark.parametrize("seed", POSTGRES_SEEDS)
def test_the_same_on_postgresql(seed: int, postgres_url: str) -> None:
    document = played("--seed", seed, "--url", postgres_url)
    assert document["file"] is None
    with holdfast.open_blocking(postgres_url, options=holdfast.PostgresOptions(schema="holdfast_demo")) as store:
        check_store(store, document["session_id"])


def test_the_demo_can_be_played_again_in_the_same_store(tmp_path: Path) -> None:
    first, second = (played("--seed", seed, "--url", tmp_path / "agent.db") for seed in (3, 3))
    assert first["session_id"] != second["session_id"]


def test_a_seed_kills_at_the_same_places_again_and_the_seeds_together_at_all_kinds_of_them() -> None:
    def planned(seed: int) -> list[scenario.Place]:
        return scenario.Scenario(None, {}, seed=seed, show=print)._kills_left  # type: ignore[arg-type]

    assert planned(5) == planned(5)
    reached = {place.place for seed in SEEDS for place in planned(seed)}
    assert reached >= {"thought", "claimed", "committed", "triggered", "built", "recorded"}
    assert any(place.race for seed in SEEDS for place in planned(seed))


def test_without_a_seed_an_answer_is_started_over_and_a_run_continues(tmp_path: Path) -> None:
    document = played("--url", tmp_path / "agent.db")
    assert [(one["place"], one["name"]) for one in document["kills"]] == [
        ("acted", "message-1"),
        ("recorded", "nightly build"),
    ]
    assert document["model_calls"] == ANSWERS + 2  # the two of the answer that was not committed
    assert document["kept"] == 2
    result = [one["what"] for one in document["timeline"]]
    assert "takes over message-1, fence 2" in result
    assert "takes over the nightly build, fence 2, recorded before: 2" in result
    assert sum("nightly build: built its" in line for line in result) == 3


def test_a_worker_keeps_others_out_while_it_lives_and_is_kept_out_when_it_was_lost(tmp_path: Path) -> None:
    document = played("--url", tmp_path / "agent.db")
    assert [(one["worker"], one["on"]) for one in document["leases"]] == [
        (document["timeline"][2]["who"], "session"),
        (document["kills"][1]["worker"], "process"),
    ]
    result = [one["what"] for one in document["timeline"]]
    assert sum("LeaseHeld" in line for line in result) == 2
    assert [line.rpartition(": ")[2] for line in result if "late write" in line] == ["ClaimLost", "LeaseLost"]
    assert document["counted"]["leases of the dead respected"] == 2


IMPATIENT = """
import msgspec
from holdfast.rules import leases
right = leases.claim
def claim(current, *given, **named):
    ended = None if current is None else msgspec.structs.replace(current, expires_at_ms=0)
    return right(ended, *given, **named)
leases.claim = claim
"""
CARELESS = """
from holdfast.rules import leases
leases.holds = lambda row, lease, now_ms: True
"""
OPEN = """
from holdfast.operations import queue
async def free(*given):
    return None
queue.claimed_exclusively = free
"""
CREDULOUS = """
from holdfast.rules import claims
claims.require_claim = lambda completion, rows, now_ms: list(rows)
"""
BUGS = {
    "a live lease is given to another": IMPATIENT,
    "an old token is accepted": CARELESS,
    "a session lets others write during a turn": OPEN,
    "an old claim is accepted": CREDULOUS,
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_store_that_does_not_keep_leases_is_caught(tmp_path: Path, bug: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(BUGS[bug])
    done = play("--url", tmp_path / "agent.db", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stdout
    assert "internal error" not in done.stderr


def test_it_takes_a_few_seconds(tmp_path: Path) -> None:
    """CPU time of all its processes: a busy machine delays everything."""
    spent = []
    for number in range(3):
        before = os.times()
        command = [sys.executable, "-m", "holdfast", "demo", "--url", str(tmp_path / f"{number}.db")]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
        after = os.times()
        spent.append(after.children_user + after.children_system - before.children_user - before.children_system)
        if spent[-1] < CPU_S:
            return
    pytest.fail(f"CPU seconds of each demo: {spent}")


# The text around the timeline.


def commands_in(document: str) -> list[str]:
    return document.partition("look into it")[2].partition(":\n")[2].splitlines()


def run_printed(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


@pytest.mark.parametrize("start", ["a clone", "its own folder", "the module", "an activated environment"])
def test_the_demo_introduces_itself_and_its_commands_work_as_printed(tmp_path: Path, start: str) -> None:
    program, folder, path = Path(sys.executable).with_name("holdfast"), tmp_path, os.environ["PATH"]
    call = f"'{program}'"
    if start == "its own folder":
        folder, call = program.parent, "./holdfast"
    elif start == "the module":
        call = f"'{sys.executable}' -m holdfast"
    elif start == "an activated environment":
        path, call = f"{program.parent}{os.pathsep}{path}", "holdfast"
    done = run_printed(f"{call} demo --url '{tmp_path}/an agent.db'", folder, PATH=path)
    assert done.returncode == 0, done.stderr
    introduction = done.stdout.partition("\n\n")[0]
    assert introduction.count(".") == 2
    assert "SIGKILL" in introduction
    commands = commands_in(done.stdout)
    assert len(commands) == 3
    for command in commands:
        again = run_printed(command, folder, PATH=path)
        assert (again.returncode, again.stderr) == (0, ""), command
        assert again.stdout


def test_its_commands_work_on_postgresql_and_print_no_password(run: Any, postgres_url: str) -> None:
    plain = run("demo", "--url", postgres_url).out
    assert "look into it:\n" in plain
    assert postgres_url in plain
    secret = f"{postgres_url}{'&' if '?' in postgres_url else '?'}password=quiet"
    hidden = run("demo", "--url", secret, "--schema", "other").out
    assert "look into it, with its URL in HOLDFAST_URL:\n" in hidden
    assert "quiet" not in hidden
    for command in [*commands_in(plain), *commands_in(hidden)]:
        again = run_printed(command, Path.cwd(), HOLDFAST_URL=secret)
        assert (again.returncode, again.stderr) == (0, ""), command


# Counting.


def test_a_count_that_is_wrong_is_code_1(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "ONCE", {**script.ONCE, "nodes": 17})
    file = tmp_path / "an agent.db"
    document = run("demo", "--url", file)
    assert document.code == 1
    assert f"status --url '{file}'\n" in document.out
    assert "nodes                                  16  WRONG, 17 expected\n" in document.out
    assert "the count is wrong\n" in document.out
    assert "nothing was lost" not in document.out
    assert "\x1b" not in document.out


def test_the_count_notices_what_was_done_twice_and_what_was_lost(tmp_path: Path) -> None:
    file = tmp_path / "agent.db"
    session_id = played("--url", file)["session_id"]

    def counted(store: holdfast.BlockingStore) -> dict[str, int]:
        session = store.sessions.handle(session_id)
        found = scenario.count(store, session, [])
        return {name: found[name] for name in found if found[name] != script.ONCE[name]}

    with holdfast.open_blocking(file) as store:
        session = store.sessions.handle(session_id)
        assert counted(store) == {"batches of work settled": 0}  # which is not given here
        store.queue.enqueue(holdfast.WorkDraft(session_id=session_id, payloads=["more"]))
        view = session.load()
        assert view is not None
        again = holdfast.Node("again", view.graph.leaf, "assistant", view.graph.nodes[-1].payload)
        usage = [holdfast.Usage("turn", script.MODEL, input_tokens=1)]
        session.commit(holdfast.Commit(graph=holdfast.Append([again], leaf="again"), usage=usage))
        assert counted(store) == {
            "batches of work settled": 0,
            "conversation in order": 0,
            "turns committed": SAID + 1,
            "nodes": NODES + 1,
            "tokens": TOKENS + 1,
            "left to do": 1,
        }


FORGETFUL = """
import sys
if "holdfast.demo.worker" in sys.orig_argv:
    import holdfast
    from holdfast.demo import agent
    def start_build(turn):
        args = {"label": "build", "chat": turn.session_id, "asks": True}
        with holdfast.open_blocking(URL) as store:
            scope = holdfast.Scope(turn.session_id)
            started = holdfast.processes.Provenance(holdfast.processes.BySession(scope))
            run = store.processes.start("build", args, wake_target=scope, provenance=started)
        return {"process": run.id}
    agent.TOOLS["start_build"] = start_build
"""
"""An agent with the usual mistake: it starts work beside the commit of its turn, and so anew at each try."""


def test_an_agent_that_starts_work_beside_its_commit_is_caught(tmp_path: Path) -> None:
    file = tmp_path / "agent.db"
    (tmp_path / "sitecustomize.py").write_text(f"URL = {str(file)!r}\n{FORGETFUL}")
    done = play("--url", file, "--json", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert not document["ok"]
    # The answer that was made and not committed is made again, and starts a second build.
    # The number of that build's messages answered before the end varies.
    assert document["counted"]["turns committed"] > SAID
    assert document["counted"]["steps recorded"] > len(NIGHT_LOG) + len(BUILD_LOG) - 3
    assert document["counted"]["conversation in order"] == 0


# Places and endings.


def test_the_store_of_the_environment_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    done = play("--json", HOLDFAST_URL=str(other), TMPDIR=str(tmp_path))
    assert done.returncode == 0
    assert not other.exists()
    assert Path(json.loads(done.stdout)["file"]).is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--url", "memory:"], "two processes can open"), (["--schema", "x"], "are for PostgreSQL")],
    ids=str,
)
def test_a_store_that_workers_cannot_share_is_refused(run: Any, arguments: list[str], says: str) -> None:
    document = run("demo", *arguments)
    assert (document.code, document.out) == (2, "")
    assert says in document.err


def workers_of(process: subprocess.Popen[Any]) -> list[int]:
    return [int(one) for one in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs a process list to look at")
@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_no_worker_outlives_the_demo(tmp_path: Path, ending: signal.Signals, code: int) -> None:
    command = [sys.executable, "-u", "-m", "holdfast", "demo", "--url", str(tmp_path / "agent.db")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "worker-" not in process.stdout.readline():
        pass
    workers = workers_of(process)
    assert len(workers) == 2
    process.send_signal(ending)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code
    deadline_s = time.monotonic() + TIMEOUT_S
    while not all(is_gone(pid) for pid in workers):
        assert time.monotonic() < deadline_s


def test_workers_get_their_nods_while_an_act_waits_for_the_store(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = threading.Event()
    request, follow = scenario.Scenario._request, scenario.Scenario._follow

    def followed(of: scenario.Scenario, worker: Any, document: dict[str, Any]) -> None:
        follow(of, worker, document)
        reported.set()

    def waits(of: scenario.Scenario) -> bool:
        request(of)
        reported.clear()
        assert reported.wait(30), "no worker got a nod"
        return True

    monkeypatch.setattr(scenario.Scenario, "_follow", followed)
    monkeypatch.setattr(scenario.Scenario, "_request", waits)
    assert run("demo").code == 0
