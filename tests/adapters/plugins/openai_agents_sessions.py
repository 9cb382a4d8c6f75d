"""A pytest plugin: tests of the OpenAI Agents SDK get a `HoldfastSession` where they ask for a `SQLiteSession`."""

from __future__ import annotations

import os
import uuid
from abc import ABCMeta
from collections.abc import Generator
from pathlib import Path
from typing import Any

import agents
import agents.extensions.memory.encrypt_session
import agents.memory
import agents.memory.sqlite_session
import pytest

from holdfast.adapters.openai_agents import HoldfastSession

MADE: list[str] = []
"""Sessions that the current test has made."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    MADE.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Mark tests that used the replacement: others say nothing about it."""
    try:
        return (yield)
    finally:
        if MADE:
            item.user_properties.append(("holdfast", "used"))


class Replacing(ABCMeta):
    """Makes plain `HoldfastSession` objects of a class that tests call, compare with and derive from."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if cls is not SQLiteSession:
            return super().__call__(*arguments, **options)
        MADE.append(str(arguments))
        session = HoldfastSession.__new__(HoldfastSession)
        SQLiteSession.__init__(session, *arguments, **options)  # type: ignore[arg-type]
        return session

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, HoldfastSession) if cls is SQLiteSession else super().__instancecheck__(instance)


class SQLiteSession(HoldfastSession, metaclass=Replacing):
    """Takes the arguments of the SDK's class. Sessions of other databases have other keys."""

    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        sessions_table: str = "agent_sessions",
        messages_table: str = "agent_messages",
        session_settings: Any = None,
    ) -> None:
        HoldfastSession.__init__(
            self, session_id, os.environ["HOLDFAST_ADAPTER_URL"], session_settings=session_settings
        )
        database = uuid.uuid4().hex if str(db_path) == ":memory:" else str(Path(db_path).resolve())
        self._key = f"{database}/{messages_table}/{session_id}"


for module in (agents, agents.memory, agents.memory.sqlite_session):
    module.SQLiteSession = SQLiteSession  # type: ignore[misc,assignment]
