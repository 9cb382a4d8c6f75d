"""Bad input to a worker: a typed error that names the place, nothing lost, and the work visible with its error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.worker.test_worker import got, put

import holdfast
from holdfast.cli import main
from holdfast.worker import BlockingRun, Retry, Run, Worker, run_facts

ONCE = Retry(1)


def emits_nan(turn: Any) -> None:
    turn.emit(float("nan"))


def sets_state(turn: Any) -> None:
    turn.state = object()


@pytest.mark.parametrize(
    ("handler", "place"),
    [
        (
            lambda turn: turn.add("fine", {"at": {1, 2}}),
            "turn.add[1]: is not a JSON value: value at /at",
        ),
        (lambda turn: turn.add("x" * 2**24), "turn.add[0]: is 16777218 bytes long, the limit is 16777216"),
        (lambda turn: turn.enqueue("text"), "turn.enqueue[0]: must be WorkDraft, not str"),
        (
            lambda turn: turn.enqueue(holdfast.WorkDraft(payloads=[object()])),
            "turn.enqueue[0].payloads[0]: is not a JSON value",
        ),
        (lambda turn: turn.complete(None), "turn.complete[0]: must be WorkClaim or WorkCompletion, not NoneType"),
        (lambda turn: turn.start("research", {"at": float("nan")}), "turn.start[0].args"),
        (sets_state, "turn.state: is not a JSON value"),
        (emits_nan, "turn.emit: is not a JSON value"),
    ],
)
def test_a_turn_that_cannot_be_stored_names_the_call_and_is_a_dead_letter(
    url: str, store: holdfast.BlockingStore, handler: Callable[[Any], None], place: str
) -> None:
    worker = Worker(url)
    worker.turn(handler, retry=ONCE)
    [batch_id] = put(store, "hello")
    worker.run(until_idle=True)
    batch = got(store, batch_id)
    assert batch.state == "dead"
    assert (batch.last_error or "").startswith(f"InvalidRequest: {place}")
    assert [item.payload for item in batch.items] == ["hello"]
    assert store.sessions.handle("chat").messages() == []


@dataclass
class Held:
    value: Any


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize("value", [endless(), Held(endless()), Held(object())])
@pytest.mark.parametrize(
    ("call", "place"),
    [
        (
            lambda _, value: value,
            "test_an_unstorable_value_names_its_call.<locals>.handler: returned a value that cannot be stored",
        ),
        (lambda run, value: run.start("other", value), "run.start: args: "),
        (lambda run, value: run.continue_as_new(value), "run.continue_as_new: args: "),
        (lambda run, value: run.progress(value), "run.progress: payload: "),
        (
            lambda run, value: run.step("known", lambda _: value, value),
            "run.step('known'): returned a value that cannot be stored",
        ),
    ],
)
def test_an_unstorable_value_names_its_call(
    url: str, store: holdfast.BlockingStore, call: Callable[[Any, Any], Any], place: str, value: Any
) -> None:
    worker = Worker(url)

    @worker.process("given", retry=ONCE)
    def handler(run: Any) -> Any:
        return call(run, value)

    started = store.processes.start("given")
    worker.run(until_idle=True)
    process = store.processes.get(started.id)
    assert process is not None
    assert isinstance(process.outcome, holdfast.processes.Failed)
    assert process.outcome.message.startswith(f"InvalidRequest: {place}")


def test_a_child_of_a_blank_kind_is_refused_where_it_is_started(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    worker.process("given", retry=ONCE)(lambda run: run.start(" "))
    started = store.processes.start("given")
    worker.run(until_idle=True)
    with pytest.raises(holdfast.processes.RunFailed, match=r"run\.start: kind: must not be blank"):
        started.result()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda run: run.now(), "run.now"),
        (lambda run: run.uuid(), "run.uuid"),
        (lambda run: run.sleep(0), "run.sleep"),
        (lambda run: run.signal("go", timeout_s=0), "run.signal"),
        (lambda run: run.start("child"), "run.start without an id"),
        (lambda run: run.child("c1").result(), "child.result"),
        (lambda run: run.continue_as_new(), "run.continue_as_new"),
    ],
)
def test_a_call_without_a_name_is_refused_in_a_thread_of_the_handler(
    url: str, store: holdfast.BlockingStore, call: Callable[[BlockingRun], Any], name: str
) -> None:
    worker = Worker(url)

    @worker.process("agent", retry=ONCE)
    def agent(run: BlockingRun) -> Any:
        with ThreadPoolExecutor(2) as threads:
            lengths = list(threads.map(lambda text: run.step(text, len, text), ["a", "bb"]))
            threads.submit(run.progress, lengths).result()
            return threads.submit(call, run).result()

    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    outcome = run.outcome(timeout_ms=0)
    assert isinstance(outcome, holdfast.processes.Failed)
    assert f"{name}: is called in a thread that the handler started" in outcome.message
    assert sorted(step.name for step in run_facts(store, "r1").steps) == ["a", "bb"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([], "argument 1 is of type list: unpack it with `*`"),
        ((one for one in range(3)), "argument 1 is of type generator: unpack it with `*`"),
        (7, "argument 1 is of type int"),
    ],
)
def test_an_argument_that_gather_cannot_await_is_named_and_nothing_is_called(
    url: str, store: holdfast.BlockingStore, wrong: Any, says: str
) -> None:
    worker = Worker(url)
    called: list[int] = []

    @worker.process("agent", retry=ONCE)
    async def agent(run: Run) -> Any:
        return await run.gather(run.step("first", called.append, 1), wrong, run.step("second", called.append, 2))

    run = store.processes.start("agent")
    worker.run(until_idle=True)
    outcome = run.outcome(timeout_ms=0)
    assert isinstance(outcome, holdfast.processes.Failed)
    assert outcome.message == f"InvalidRequest: run.gather: takes calls that can be awaited: {says}"
    assert called == []


def test_work_without_a_payload_has_none(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    seen: list[Any] = []
    worker.turn(lambda turn: seen.append(turn.input), retry=ONCE)
    worker.job("mail", retry=ONCE)(lambda job: seen.append(job.payload))
    for kind in ("turn", "mail"):
        store.queue.enqueue(holdfast.WorkDraft(session_id=kind, payloads=[], kind=kind))
    worker.run(until_idle=True)
    assert seen == [None, None]


@pytest.mark.parametrize("shape", ["turn", "job", "process"])
def test_a_handler_that_cannot_take_its_work_is_refused_at_once(url: str, shape: str) -> None:
    worker = Worker(url)
    register: Any = {"turn": worker.turn, "job": worker.job("mail"), "process": worker.process("research")}[shape]
    with pytest.raises(holdfast.InvalidRequest, match="must take one argument") as info:
        register(lambda: None)
    assert info.value.field == "handler"


def test_a_run_of_a_kind_that_no_worker_knows_waits_and_is_logged(
    url: str, store: holdfast.BlockingStore, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(url)
    worker.turn(lambda turn: None)
    run = store.processes.start("nobody-knows").process
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        worker.run(until_idle=True)
    assert "kind 'nobody-knows' has 1 runs of version '1' that wait and no handler here" in caplog.text
    waiting = store.processes.get(run.id)
    assert waiting is not None
    assert (waiting.status, waiting.attempt) == ("running", 0)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("'postgresq://db/app'", "url: 'postgresq' is not a database that this version knows"),
        ("'agent.db', options=holdfast.PostgresOptions()", "options: must be SqliteOptions, not PostgresOptions"),
    ],
)
def test_the_command_names_the_worker_of_the_program_and_no_option_that_it_does_not_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str, says: str
) -> None:
    module = f"program_{abs(hash(given))}"
    (tmp_path / f"{module}.py").write_text(
        f"import holdfast\nworker = holdfast.Worker({given})\nworker.job('mail')(lambda job: None)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    assert main(["worker", f"{module}:worker", "--until-idle"]) == 2
    said = capsys.readouterr().err
    assert f"the holdfast.Worker at {module}:worker: {says}" in said
    assert "--url" not in said
