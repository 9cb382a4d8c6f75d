"""A warning about a declaration points to the program's line that made it, also in coroutines and tasks."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from pathlib import Path

import pytest

import holdfast
from holdfast.events import Const, EventType, Payload, WakeRule, WakesOnceWarning
from holdfast.observers import Logging
from holdfast.processes import External

NEWS = EventType("news", wake=WakeRule(Payload(), dedupe=Const("once")))
BUILD = holdfast.ProcessRegistration("build", External(), event_types=[NEWS])


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "memory:" if request.param == "memory" else str(tmp_path / "warned.db")


@pytest.mark.parametrize("observed", [False, True], ids=["unobserved", "observed"])
def test_an_awaited_call_warns_at_its_line_and_each_task_is_warned_of(url: str, observed: bool) -> None:
    observers = [Logging()] if observed else []

    async def declare() -> int:
        async with await holdfast.open(url, observe=observers) as store:
            await store.processes.register(BUILD)
            line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
            for _ in range(2):
                await asyncio.create_task(store.processes.register(BUILD))
            return line

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", WakesOnceWarning)
        line = asyncio.run(declare())
    places = [(one.filename, one.lineno) for one in caught if issubclass(one.category, WakesOnceWarning)]
    assert places == [(__file__, line), ("holdfast", 0), ("holdfast", 0)]


@pytest.mark.parametrize("observed", [False, True], ids=["unobserved", "observed"])
def test_a_blocking_call_warns_at_its_line(url: str, observed: bool) -> None:
    observers = [Logging()] if observed else []
    with (
        warnings.catch_warnings(record=True) as caught,
        holdfast.open_blocking(url, observe=observers) as store,
    ):
        warnings.simplefilter("default", WakesOnceWarning)
        for _ in range(2):
            store.processes.register(BUILD)
        store.processes.register(BUILD)
    answer = [one for one in caught if issubclass(one.category, WakesOnceWarning)]
    assert [one.filename for one in answer] == [__file__, __file__]
    assert answer[1].lineno - answer[0].lineno == 1
