"""Artifact checks are refused at open if they are not callable, and never run on the event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast


async def later(ref: str, data: bytes) -> str | None: ...


class Later:
    async def __call__(self, ref: str, data: bytes) -> str | None: ...


@pytest.mark.parametrize(
    ("checks", "field"),
    [
        (lambda ref, data: None, "artifact_checks"),
        ([("module", print)], "artifact_checks"),
        ({"": print}, "artifact_checks"),
        ({1: print}, "artifact_checks"),
        ({"module": "json"}, "artifact_checks['module']"),
        ({"module": later}, "artifact_checks['module']"),
        ({"module": Later()}, "artifact_checks['module']"),
    ],
    ids=["function", "list", "blank kind", "number", "text", "coroutine function", "async object"],
)
def test_invalid_checks_are_refused_before_a_file_is_made(tmp_path: Path, checks: Any, field: str) -> None:
    for opening in (holdfast.open_blocking, holdfast.open):
        with pytest.raises(holdfast.InvalidRequest) as info:
            opening(tmp_path / "state.db", artifact_checks=checks)
        assert info.value.field == field
    assert list(tmp_path.iterdir()) == []


def test_checks_are_those_that_were_given_at_open() -> None:
    checks = {"module": lambda ref, data: "no"}
    with holdfast.open_blocking("memory:", artifact_checks=checks) as store:
        checks.clear()
        with pytest.raises(holdfast.InvalidRequest):
            store.artifacts.put("module", "main", b"")


@pytest.mark.parametrize("url", ["memory:", "state.db"])
def test_a_check_leaves_the_event_loop_free(tmp_path: Path, url: str) -> None:
    gone_on = threading.Event()

    def wait_for_the_loop(ref: str, data: bytes) -> str | None:
        return None if gone_on.wait(30) else "the event loop stood still"

    async def main() -> str:
        named = url if url == "memory:" else tmp_path / url
        async with holdfast.open(named, artifact_checks={"module": wait_for_the_loop}) as store:
            put = asyncio.create_task(store.artifacts.put("module", "main", b"code"))
            await asyncio.sleep(0)
            gone_on.set()
            return await put

    assert asyncio.run(main()) == "main"


@pytest.mark.parametrize("observe", [None, holdfast.observers.Logging()], ids=["plain", "observed"])
def test_a_check_judges_inside_a_transaction_of_the_callers_too(tmp_path: Path, observe: Any) -> None:
    path = tmp_path / "state.db"
    checks = {"module": lambda ref, data: None if data else "is empty"}
    with holdfast.open_blocking(path, artifact_checks=checks, observe=observe) as store:
        connection = apsw.Connection(str(path))
        connection.execute("BEGIN IMMEDIATE")
        inside = store.within(connection)
        with pytest.raises(holdfast.InvalidRequest, match="is empty"):
            inside.artifacts.put("module", "main", b"")
        inside.artifacts.put("module", "main", b"code")
        connection.execute("COMMIT")
        connection.close()
        found = store.artifacts.get("module", "main")
        assert found is not None
        assert found.data == b"code"
