"""A replay calls no step, writes nothing, and names each place at which the code differs from the record."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import main
from holdfast.worker import BlockingRun, Replay, Retry, Run, Worker, replay

CALLS: list[str] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


def look_up(text: str) -> str:
    CALLS.append(text)
    return text.upper()


def broken() -> None:
    CALLS.append("broken")
    raise OSError("no answer")


async def usual(run: Run) -> list[str]:
    await run.now()
    found = list(await run.gather(run.step("a", look_up, "a"), run.step("b", look_up, "b")))
    await run.progress({"found": 2})
    child = await run.start("child", {"text": "c"})
    approval = await run.signal("approve")
    return [*found, await child.result(), approval]


def blocking(run: BlockingRun) -> list[str]:
    run.sleep(0.001)
    return [run.step("a", look_up, "a"), run.step("b", look_up, "b")]


async def failing(run: Run) -> None:
    await run.step("a", look_up, "a")
    await run.step("call", broken, retry=Retry(2, backoff_s=0))


def child(run: BlockingRun, text: str) -> str:
    return run.step("c", look_up, text)


def worker_with(url: str, handler: Callable[..., Any]) -> Worker:
    worker = Worker(url)
    worker.process("agent", retry=Retry(1))(handler)
    worker.process("child")(child)
    return worker


def record(url: str, store: holdfast.BlockingStore, handler: Callable[..., Any], *, approve: bool = True) -> None:
    """Run a handler to its end, or to the signal that it waits for."""
    worker = worker_with(url, handler)
    run = store.processes.start("agent", id="r1")
    worker.run(until_idle=True)
    if approve and handler is usual:
        run.signal("approve", "yes")
        worker.run(until_idle=True)
    CALLS.clear()


def replayed(url: str, store: holdfast.BlockingStore, handler: Callable[..., Any]) -> Replay:
    """Replay with a handler. Nothing may have been called or written."""

    def written() -> Any:
        runs = [store.processes.get(one.id) for one in store.processes.list(status="any")]
        return runs, [list(holdfast.every(store.events.after, one.id)) for one in runs if one is not None]

    before = written()
    found = replay(store, worker_with(url, handler), "r1")
    assert (CALLS, written()) == ([], before)
    return found


@pytest.mark.parametrize("handler", [usual, blocking, failing], ids=lambda one: one.__name__)
def test_the_same_code_does_not_differ(url: str, store: holdfast.BlockingStore, handler: Any) -> None:
    record(url, store, handler)
    process = store.processes.get("r1")
    assert process is not None
    assert process.is_terminal
    found = replayed(url, store, handler)
    assert found.differences == ()
    assert (found.ok, found.stopped_at, found.handler) == (True, None, handler.__name__)
    assert found.steps >= 1


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'agent.db'}"


def test_a_run_that_waits_stops_where_it_waits(file_url: str) -> None:
    with holdfast.open_blocking(file_url) as store:
        record(file_url, store, usual, approve=False)
        found = replayed(file_url, store, usual)
        assert (found.ok, found.stopped_at) == (True, "signal 'approve'")


async def in_a_group(run: Run) -> Any:
    async with asyncio.TaskGroup() as group:
        for name in ("a", "b"):
            group.create_task(run.step(name, look_up, name))
    return await run.signal("approve")


async def swallowing(run: Run) -> Any:
    with suppress(BaseException):
        await run.step("a", look_up, "a")
    with suppress(BaseException):
        await run.signal("approve")
    return "over"


async def raising(run: Run) -> Any:
    try:
        return await run.step("a", look_up, "a")
    finally:
        if not CALLS:
            raise OSError("what follows a stop is no difference")


@pytest.mark.parametrize(
    ("handler", "first", "second"),
    [
        (in_a_group, "step 'a'", "signal 'approve'"),
        (swallowing, "step 'a'", "signal 'approve'"),
        (raising, "step 'a'", None),
    ],
)
def test_a_stop_that_the_handler_catches_or_wraps_is_a_stop(
    file_url: str, handler: Any, first: str, second: str | None
) -> None:
    with holdfast.open_blocking(file_url) as store:
        store.processes.start("agent", id="r1")
        found = replayed(file_url, store, handler)
        assert (found.differences, found.stopped_at) == ((), first)
        if second is not None:
            worker_with(file_url, handler).run(until_idle=True)
            CALLS.clear()
            found = replayed(file_url, store, handler)
            assert (found.differences, found.stopped_at) == ((), second)


async def exiting(run: Run) -> Any:
    await run.now()
    raise SystemExit("no more")


def test_a_handler_that_exits_ends_no_replay(file_url: str) -> None:
    with holdfast.open_blocking(file_url) as store:
        record(file_url, store, exiting)
        assert replayed(file_url, store, exiting).ok
        assert [one.kind for one in replayed(file_url, store, other_exit).differences] == ["other end"]


async def other_exit(run: Run) -> Any:
    await run.now()
    raise SystemExit("for another reason")


async def other_argument(run: Run) -> Any:
    return [await run.step("a", look_up, "A"), await run.step("b", look_up, "b")]


async def caught_conflict(run: Run) -> Any:
    try:
        return await other_argument(run)
    except Exception:
        return [await run.step("b", look_up, "b")]


def new_step(run: BlockingRun) -> Any:
    first = blocking(run)
    run.step("new", look_up, "new")
    return first


def without_a_step(run: BlockingRun) -> Any:
    run.sleep(0.001)
    return [run.step("a", look_up, "a"), "B"]


def other_result(run: BlockingRun) -> Any:
    return [*blocking(run), "more"]


def waits_now(run: BlockingRun) -> Any:
    blocking(run)
    return run.signal("approve")


def raises_now(run: BlockingRun) -> Any:
    blocking(run)
    raise ValueError("too many")


def continues_now(run: BlockingRun) -> Any:
    blocking(run)
    run.continue_as_new({"day": 2})


def uses_the_store(run: BlockingRun) -> Any:
    run.store.sessions.create("chat")
    return blocking(run)


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (other_argument, [("conflict", "a")]),
        (caught_conflict, [("conflict", "a")]),
        (new_step, [("not recorded", "new")]),
        (without_a_step, [("not asked for", "b")]),
        (other_result, [("other end", None)]),
        (waits_now, [("other end", None)]),
        (raises_now, [("other end", None)]),
        (continues_now, [("other end", None)]),
        (
            uses_the_store,
            [("not recorded", None), ("not asked for", "~sleep:1"), ("not asked for", "a"), ("not asked for", "b")],
        ),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_changed_code_is_named_with_its_place(file_url: str, handler: Any, expected: list[Any]) -> None:
    with holdfast.open_blocking(file_url) as store:
        record(file_url, store, blocking)
        found = replayed(file_url, store, handler)
    assert [(one.kind, one.step) for one in found.differences] == expected
    assert not found.ok


def test_a_child_that_was_started_otherwise_is_a_conflict(file_url: str) -> None:
    async def changed(run: Run) -> None:
        await run.now()
        await run.gather(run.step("a", look_up, "a"), run.step("b", look_up, "b"))
        await run.start("child", {"text": "d"})

    with holdfast.open_blocking(file_url) as store:
        record(file_url, store, usual)
        found = replayed(file_url, store, changed)
    assert [(one.kind, one.step) for one in found.differences] == [("conflict", "~started:r1/child:1")]
    assert "run.start of child 'r1/child:1'" in found.differences[0].problem


def test_runs_that_cannot_be_replayed_are_refused_by_name(file_url: str) -> None:
    with holdfast.open_blocking(file_url) as store:
        worker = worker_with(file_url, usual)
        store.processes.register(holdfast.ProcessRegistration("b", holdfast.processes.External()))
        store.processes.start("other", id="o")
        with pytest.raises(holdfast.UnknownProcess):
            replay(store, worker, "x")
        with pytest.raises(holdfast.InvalidRequest, match="is not a run"):
            replay(store, worker, "b")
        with pytest.raises(holdfast.InvalidRequest, match="no handler for runs of 'other', version '1': it has agent"):
            replay(store, worker, "o")


def test_the_store_of_the_program_is_read_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is not there is not made, and a store in memory has no runs of others."""
    module = type(sys)("replayed_app")
    vars(module)["missing"] = worker_with(str(tmp_path / "missing.db"), usual)
    vars(module)["optional"] = Worker(tmp_path / "missing.db", options=holdfast.SqliteOptions(busy_timeout_ms=7))
    vars(module)["memory"] = worker_with("memory:", usual)
    monkeypatch.setitem(sys.modules, "replayed_app", module)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    for name, says in (
        ("missing", "there is no file"),
        ("optional", "there is no file"),
        ("memory", "a store in memory ends with the command"),
    ):
        assert main(["runs", "replay", "r1", "--app", f"replayed_app:{name}"]) != 0
        assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url_by", ["option", "program"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_the_command_says_where_the_code_differs(
    file_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: str,
    url_by: str,
) -> None:
    with holdfast.open_blocking(file_url) as store:
        record(file_url, store, blocking)
    module = type(sys)("replayed_app")
    vars(module)["worker"] = worker_with(file_url, blocking)
    vars(module)["changed"] = worker_with(file_url, without_a_step)
    monkeypatch.setitem(sys.modules, "replayed_app", module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    named = ["--url", file_url] if url_by == "option" else []
    given = [*named, *(["--json"] if form == "json" else [])]
    assert main(["runs", "replay", "r1", "--app", "replayed_app:worker", *given]) == 0
    same = capsys.readouterr().out
    assert main(["runs", "replay", "r1", "--app", "replayed_app:changed", *given]) == 1
    differs = capsys.readouterr().out
    assert main(["runs", "replay", "r1", "--app", "replayed_app:other", *given]) == 2
    if form == "json":
        assert json.loads(same)["ok"] is True
        assert json.loads(differs)["differences"][0]["step"] == "b"
    else:
        assert same.endswith("ok\n")
        assert "not asked for b: it is recorded, and the handler did not ask for it" in differs
