"""`holdfast why` as an operator uses it: each stuck case is answered by one command and healed by the printed one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import holdfast
from holdfast.cli.terminal import Terminal
from holdfast.cli.why import pasteable
from holdfast.leases import OnSession
from holdfast.processes import Abandoned, BySession, Failed, Provenance, Run, RunWait, SignalWait
from holdfast.triggers import SubscriptionDraft
from holdfast.workers import WorkerInfo

HOUR_MS = 3_600_000
ALIVE = WorkerInfo("alive", host="here", pid=7, kinds=("turn", "research", "reading"))
BASH = shutil.which("bash")
PASTED = 'holdfast() { printf "%s\\0" "$@"; }\n'
"""A shell function that takes the place of the program, and tells the words that it was given."""


class Case(NamedTuple):
    """A way to be stuck: how to build it, the cause that is named, and the one after the remedy."""

    build: Callable[[holdfast.BlockingStore, str], object]
    cause: str
    healed: str


def _enqueued(store: holdfast.BlockingStore, id: str) -> str:
    return store.sessions.create(id).enqueue("hi").batch_id


def dead_worker(store: holdfast.BlockingStore, id: str) -> None:
    _enqueued(store, id)
    store.workers.heartbeat(WorkerInfo("gone", host="there", pid=8), ttl_ms=1)
    store.queue.claim(id, owner_id="gone", ttl_ms=HOUR_MS)
    while len(store.workers.list()) > 1:  # the one of this test
        pass


def lost_lease(store: holdfast.BlockingStore, id: str) -> None:
    _enqueued(store, id)
    store.leases.claim(OnSession(id), owner_id="a-loop-of-mine", ttl_ms=HOUR_MS)


def dead_letter(store: holdfast.BlockingStore, id: str) -> None:
    _enqueued(store, id)
    claim = store.queue.claim(id, owner_id="w1")
    assert claim is not None
    store.queue.fail(claim, "no answer", retry_in_ms=None)


def paused_session(store: holdfast.BlockingStore, id: str) -> None:
    _enqueued(store, id)
    store.sessions.handle(id).pause()


def paused_kind(store: holdfast.BlockingStore, id: str) -> None:
    _enqueued(store, id)
    store.queue.pause("turn")


def missing_signal(store: holdfast.BlockingStore, id: str) -> None:
    store.processes.start("research", id=id)
    claim = store.processes.claim_next(owner_id="w1")
    assert claim is not None
    store.processes.suspend(claim.lease, seen=0, wait=SignalWait("approve", ordinal=1))


def undelivered(store: holdfast.BlockingStore, id: str) -> None:
    store.sessions.create(id)
    registrant = BySession(holdfast.Scope(id))
    draft = SubscriptionDraft(source_type="cron", source_key="daily", target=Run("research"), registrant=registrant)
    store.triggers.subscribe(draft)
    store.triggers.emit("cron", "daily", idempotency_key="1")


def failed_delivery(store: holdfast.BlockingStore, id: str) -> None:
    undelivered(store, id)
    for one in store.triggers.undelivered(session_id=id):
        store.triggers.mark_failed(one, "the payload does not fit")


def failed_tick(store: holdfast.BlockingStore, id: str) -> None:
    made = store.schedules.put(id, "0 3 * * *", run=Run("research"))
    store.schedules.remove(id)
    store.schedules.restore(msgspec.structs.replace(made, failure="no such session"))


def paused_runs(store: holdfast.BlockingStore, id: str) -> None:
    store.processes.start("research", id=id)
    store.queue.pause("research")


def dead_leaseholder(store: holdfast.BlockingStore, id: str) -> None:
    _enqueued(store, id)
    store.workers.heartbeat(WorkerInfo("gone", host="there", pid=8), ttl_ms=1)
    store.leases.claim(OnSession(id), owner_id="gone", ttl_ms=HOUR_MS)
    while len(store.workers.list()) > 1:
        pass


def exclusive_claim(store: holdfast.BlockingStore, id: str) -> None:
    dead_worker(store, id)
    store.sessions.handle(id).enqueue("behind it")


def paused_run_of_a_session(store: holdfast.BlockingStore, id: str) -> None:
    store.sessions.create(id)
    provenance = Provenance(BySession(holdfast.Scope(id)))
    store.processes.start("research", id=f"{id} run", provenance=provenance)
    store.queue.pause("research")


def stuck_child(store: holdfast.BlockingStore, id: str) -> None:
    child = f"{id} child"
    store.processes.start("research", id=id)
    claim = store.processes.claim_next(owner_id="w1")
    assert claim is not None
    store.processes.start("reading", id=child)
    store.queue.pause("reading")
    wait = SignalWait("holdfast-child", ordinal=1)
    store.processes.suspend(claim.lease, seen=0, wait=wait, waits=[RunWait("child", child)])


def paused_schedule(store: holdfast.BlockingStore, id: str) -> None:
    store.schedules.put(id, "0 3 * * *", run=Run("research"))
    store.schedules.pause(id)


def failed_run(store: holdfast.BlockingStore, id: str) -> None:
    store.processes.start("research", id=id)
    store.processes.complete(id, Failed("no answer"))


def dead_runner(store: holdfast.BlockingStore, id: str) -> None:
    store.processes.start("research", id=id)
    store.workers.heartbeat(WorkerInfo("gone", host="there", pid=8), ttl_ms=1)
    store.processes.claim_next(owner_id="gone", ttl_ms=HOUR_MS)
    while len(store.workers.list()) > 1:
        pass


def abandoned_run(store: holdfast.BlockingStore, id: str) -> None:
    store.processes.start("research", id=id)
    store.processes.complete(id, Abandoned("its worker died"))


CASES = {
    "the claim of a dead worker": Case(dead_worker, "claim-of-a-dead-worker", "unclaimed"),
    "a lease that was never released": Case(lost_lease, "session-lease-held", "unclaimed"),
    "a dead letter": Case(dead_letter, "dead-letter", "unclaimed"),
    "a paused session": Case(paused_session, "session-paused", "unclaimed"),
    "a paused kind": Case(paused_kind, "kind-paused", "unclaimed"),
    "a signal that never came": Case(missing_signal, "waits-for-a-signal", "unclaimed"),
    "a trigger that started nothing": Case(undelivered, "undelivered", "process-unclaimed"),
    "a trigger that could not start": Case(failed_delivery, "delivery-failed", "process-unclaimed"),
    "a tick that started nothing": Case(failed_tick, "tick-failed", "next-tick"),
    "a paused kind of runs": Case(paused_runs, "kind-paused", "unclaimed"),
    "a session lease of a dead worker": Case(dead_leaseholder, "session-lease-held", "unclaimed"),
    "work behind the claim of a dead worker": Case(exclusive_claim, "claim-of-a-dead-worker", "unclaimed"),
    "a paused run of a session": Case(paused_run_of_a_session, "process-kind-paused", "process-unclaimed"),
    "a run whose child is stuck": Case(stuck_child, "waits-for-a-child", "waits-for-a-child"),
    "a paused schedule": Case(paused_schedule, "schedule-paused", "next-tick"),
    "a failed run": Case(failed_run, "failed", "retried"),
    "an abandoned run": Case(abandoned_run, "abandoned", "retried"),
    "the run of a dead worker": Case(dead_runner, "lease-of-a-dead-worker", "unclaimed"),
}
IDS = {
    "spaces and quotes": """it's 42 "q" $(id) `id` \\ ! ~ *""",
    "a leading dash": "-x",
    "an option": "--session",
    "letters of the world": "ünï 漢字 🙂",
    "control characters": "a\nb\t\x1b[31m'\\n!",
    "invisible characters": "\u202e\u200b\xa0",
}


@pytest.fixture
def confirming(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator at a terminal, who says yes to every question."""
    monkeypatch.setattr(Terminal, "can_ask", lambda _: True)
    monkeypatch.setattr(Terminal, "ask", lambda *_: True)


@pytest.fixture
def store(url: str) -> Iterator[holdfast.BlockingStore]:
    with holdfast.open_blocking(url) as store:
        store.workers.heartbeat(ALIVE, ttl_ms=HOUR_MS)
        yield store


def pasted(line: str) -> list[str]:
    """Return the words that a shell gives to the program, for a command that was copied from the terminal."""
    assert BASH is not None
    said = subprocess.run([BASH, "--norc", "-c", PASTED + line], capture_output=True, check=True)
    return [word.decode() for word in said.stdout.split(b"\0")[:-1]]


def _is_healed(url: str, run: Any, store: holdfast.BlockingStore, case: Case, id: str) -> None:
    case.build(store, id)
    asked = run("why", "--url", url, "--", id)
    assert case.cause in asked.out, asked
    assert asked.code == (0 if case.build in (missing_signal, lost_lease) else 1)
    lines = asked.out.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith(f"  {case.cause} "))
    helping = next(line for line in lines[at:] if line.startswith("    helps "))
    healing = run(*pasted(helping.split("helps", 1)[1]))
    assert healing.code == 0, healing
    after = run("why", "--json", "--url", url, "--", id).json
    assert (after["ok"], after["explanations"][0]["causes"][0]["name"]) == (True, case.healed), after


@pytest.mark.usefixtures("confirming")
@pytest.mark.skipif(BASH is None, reason="there is no bash to paste into")
@pytest.mark.parametrize("name", CASES)
def test_a_stuck_case_is_named_by_one_command_and_healed_by_the_printed_one(
    url: str, run: Any, store: holdfast.BlockingStore, name: str
) -> None:
    _is_healed(url, run, store, CASES[name], "chat 42")


@pytest.mark.usefixtures("confirming")
@pytest.mark.skipif(BASH is None, reason="there is no bash to paste into")
@pytest.mark.parametrize("name", CASES)
def test_the_printed_command_survives_pasting_whatever_the_id_is(tmp_path: Path, run: Any, name: str) -> None:
    for number, id in enumerate(IDS.values()):
        url = str(tmp_path / f"-a b{number}.db")
        with holdfast.open_blocking(url) as store:
            store.workers.heartbeat(ALIVE, ttl_ms=HOUR_MS)
            _is_healed(url, run, store, CASES[name], id)


@pytest.mark.usefixtures("confirming")
@pytest.mark.skipif(BASH is None, reason="there is no bash to paste into")
def test_the_printed_command_names_the_schema(clean_postgres_url: str, run: Any) -> None:
    named = ("--url", clean_postgres_url, "--schema", "other_agents", "--pooler", "none")
    options = holdfast.PostgresOptions(schema="other_agents")
    with holdfast.open_blocking(clean_postgres_url, options=options) as store:
        store.workers.heartbeat(ALIVE, ttl_ms=HOUR_MS)
        paused_session(store, "--session")
        said = run("why", *named, "--", "--session").out
        helping = next(line for line in said.splitlines() if line.startswith("    helps "))
        words = pasted(helping.split("helps", 1)[1])
        assert words == ["sessions", "resume", *named, "--", "--session"]
        assert run(*words).code == 0
        assert run("why", *named, "--", "--session").code == 0


def test_a_retry_is_shown_from_both_ends(on: Any, store: holdfast.BlockingStore) -> None:
    failed_run(store, "r1")
    assert "retried r1 as r1~2" in on("processes", "retry", "r1", "--yes").out
    again = on("processes", "retry", "r1", "--yes")
    assert (again.code, "retried before" in again.out) == (0, True)
    said = on("processes", "retry", "r1", "--yes", "--json").json
    assert (said["process"]["id"], said["created"]) == ("r1~2", False)
    assert "retried as" in on("runs", "show", "r1").out
    assert on("runs", "show", "r1", "--json").json["retried_as"] == "r1~2"
    assert on("runs", "show", "r1~2", "--json").json["retries"] == "r1"
    unended = on("processes", "retry", "r1~2", "--yes")
    assert (unended.code, "has not ended" in unended.err) == (1, True)
    assert on("processes", "retry", "nobody", "--yes").code == 1


def test_remedies_ask_first_and_report_what_they_did(on: Any, store: holdfast.BlockingStore) -> None:
    batch_id = _enqueued(store, "chat 42")
    assert "no claim holds it" in on("queue", "release", "chat 42", batch_id, "--yes").err
    assert "has no batch" in on("queue", "release", "chat 42", "nothing", "--yes").err
    assert "no lease on session 'chat 42' is held" in on("leases", "release", "--session", "chat 42", "--yes").err
    assert "--session or --process" in on("leases", "release", "--yes").err
    assert on("triggers", "redeliver", "nothing", "--yes").code == 1
    store.queue.claim("chat 42", owner_id="w1")
    refused = on("queue", "release", "chat 42", batch_id)
    assert (refused.code, "add --yes" in refused.err) == (2, True)
    assert on("queue", "release", "chat 42", batch_id, "--yes").out == f"released {batch_id}\n"
    store.leases.claim(OnSession("chat 42"), owner_id="w1")
    said = on("leases", "release", "--session", "chat 42", "--yes", "--json").json
    assert said["owner_id"] == "w1"


def test_a_remedy_for_what_is_not_there_says_so(on: Any, store: holdfast.BlockingStore) -> None:
    store.sessions.create("chat-42")
    store.processes.start("research", id="research-1")
    said = on("leases", "release", "--session", "chat-43", "--yes")
    assert (said.code, said.err) == (
        1,
        "holdfast: error: unknown session 'chat-43': see holdfast sessions list: did you mean 'chat-42'?\n",
    )
    said = on("leases", "release", "--process", "research-2", "--yes")
    assert (said.code, "unknown process 'research-2'" in said.err) == (1, True)
    said = on("triggers", "redeliver", "research-1", "--yes")
    assert (said.code, "no trigger started process 'research-1'" in said.err) == (1, True)
    said = on("triggers", "redeliver", "research-2", "--yes")
    assert (said.code, "unknown process 'research-2'" in said.err) == (1, True)


FAILING = """
import holdfast
worker = holdfast.Worker("agent.db")
@worker.job("send", retry=holdfast.Retry(1))
def send(job):
    raise RuntimeError(job.payload)
"""


def test_the_error_of_a_handler_does_not_control_the_terminal(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "a_failing_program.py").write_text(FAILING)
    with holdfast.open_blocking("agent.db") as store:
        store.sessions.create("chat").enqueue("the model said \x1b]0;hi\x07 \x9b31m", kind="send")
    said = run("worker", "a_failing_program:worker", "--until-idle")
    assert "RuntimeError: the model said \\x1b]0;hi\\x07 \\x9b31m" in said.err
    assert [one for one in said.err.replace("\n", "") if not one.isprintable()] == []


def test_an_error_is_shown_with_its_end(on: Any, store: holdfast.BlockingStore) -> None:
    frames = "".join(f'  File "agent.py", line {number}, in answer\n' for number in range(1, 31))
    reason = "ConnectionError: the model refused: " + "too many requests " * 10 + "\x1b[31m"
    _enqueued(store, "chat")
    claim = store.queue.claim("chat", owner_id="w1")
    assert claim is not None
    store.queue.fail(claim, f"Traceback (most recent call last):\n{frames}{reason}", retry_in_ms=None)
    lines = on("why", "chat").out.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("    error "))
    assert lines[first + 9] == "               " + reason.replace("\x1b", "\\x1b")
    assert lines[first].split("error", 1)[1].strip() == 'File "agent.py", line 22, in answer'


def test_the_holder_is_shown_with_host_process_and_last_report(on: Any, store: holdfast.BlockingStore) -> None:
    dead_worker(store, "chat 42")
    said = on("why", "chat 42").out
    assert "held by    gone, host there, pid 8, silent, last report" in said
    assert "by itself  another worker takes it over when the claim ends at " in said
    assert "attempt    1" in said


def test_an_unknown_id_and_a_session_without_work_have_an_answer(on: Any, store: holdfast.BlockingStore) -> None:
    assert "there is no session, process or schedule 'nobody'" in on("why", "nobody").err
    store.sessions.create("quiet")
    assert on("why", "quiet").out == "session quiet: idle\n  no-work  nothing waits in its queue\n"


def test_a_deleted_session_is_called_deleted(on: Any, store: holdfast.BlockingStore) -> None:
    store.sessions.create("chat")
    store.sessions.create("chat-2")
    store.sessions.delete("chat")
    said = on("why", "chat")
    assert (said.code, "session 'chat' was deleted" in said.err, "did you mean" in said.err) == (1, True, False)
    missing_signal(store, "chat")
    assert on("why", "chat").out.startswith("process chat: waits"), "a process of its id is there"


def test_the_remedy_of_a_missing_signal_mentions_its_payload(on: Any, store: holdfast.BlockingStore) -> None:
    missing_signal(store, "r1")
    shown = on("why", "r1").out
    assert "payload    add --payload JSON if its handler expects one" in shown
    store.sessions.create("chat").enqueue("x")
    assert "--payload" not in on("why", "chat").out


def test_every_live_worker_is_asked_for_its_kinds(
    on: Any, store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.operations.explanations.WORKERS", 2)
    store.sessions.create("chat").enqueue("x", kind="rare")
    assert "no-worker" in on("why", "chat").out
    for number in range(5):
        kinds = ("rare",) if number == 4 else ("mail",)
        store.workers.heartbeat(WorkerInfo(f"w{number}", host="here", pid=7, kinds=kinds), ttl_ms=HOUR_MS)
    assert "unclaimed" in on("why", "chat").out


def test_ids_of_two_kinds_are_both_explained(on: Any, store: holdfast.BlockingStore) -> None:
    store.sessions.create("r1")
    missing_signal(store, "r1")
    assert [one["subject"] for one in on("why", "r1", "--json").json["explanations"]] == ["session", "process"]


def test_unprintable_characters_are_pasted_byte_by_byte() -> None:
    for word in IDS.values():
        for encoding in ("ascii", "latin-1", "utf-8"):
            line = pasteable(("why", word), {"url": "my stores/ü.db"}, hidden=False, encoding=encoding)
            assert line.encode(encoding).decode(encoding) == line
            assert line.isprintable()
            if BASH is not None and not word.startswith("-"):
                assert pasted(line) == ["why", word, "--url", "my stores/ü.db"]


def test_a_password_is_not_printed_and_comes_from_the_environment() -> None:
    line = pasteable(("why", "-x"), {"url": None, "schema": "s"}, hidden=True)
    assert line == 'holdfast why --schema s --url "$HOLDFAST_URL" -- -x'


@pytest.mark.skipif(BASH is None, reason="there is no bash to paste into")
def test_the_variable_of_a_hidden_url_is_asked_for_unless_it_is_set(
    clean_postgres_url: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = f"{clean_postgres_url}&password=secret"
    with holdfast.open_blocking(clean_postgres_url) as store:
        paused_session(store, "chat")
    said = run("why", "--url", secret, "chat").out
    assert ("first      set HOLDFAST_URL to the URL of the store" in said, "secret" in said) == (True, False)
    monkeypatch.setenv("HOLDFAST_URL", secret)
    for arguments in (("why", "--url", secret, "chat"), ("why", "chat")):
        said = run(*arguments).out
        assert ("first" in said, "secret" in said) == (False, False)
    helping = next(line for line in said.splitlines() if line.startswith("    helps "))
    assert pasted(helping.split("helps", 1)[1])[-2:] == ["--url", secret]
