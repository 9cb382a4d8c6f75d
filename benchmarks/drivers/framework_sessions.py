"""A chat in the store of a framework, its own or ours: OpenAI Agents, Google ADK and A2A, on SQLite or PostgreSQL.

A turn reads the whole conversation, as a run of the framework does, adds the user's message, and adds the answer with a
call of a tool before it.
"""

from __future__ import annotations

import random
import time
from typing import Any

from benchmarks import child

WORDS = [word for word in __doc__.split() if word.isascii()]


class Chat:
    """One conversation."""

    def __init__(self) -> None:
        self.random = random.Random(1)

    async def open(self, url: str, framework: str, ours: bool) -> dict[str, Any]:
        self.turn, self.close = await OPENED[framework](self, url, ours)
        return {"durable": True}

    def text(self, words: int) -> str:
        return " ".join(f"{self.random.choice(WORDS)}{self.random.randrange(100)}" for _ in range(words))

    async def turns(self, count: int, timed: int | None = None) -> dict[str, Any]:
        """Add turns. Only the last ones, `timed` of them, read the conversation first and are timed."""
        times: list[float] = []
        unread = 0 if timed is None else count - timed
        for number in range(unread):
            await self.turn(number, False)
        used = child.Processors()
        for number in range(unread, count):
            began = time.perf_counter()
            await self.turn(number, True)
            times.append((time.perf_counter() - began) * 1000)
        return {"seconds": sum(times) / 1000, "times": times, **used.since()}

    async def shut(self) -> None:
        """Close the database: its size is measured afterwards."""
        await self.close()


async def open_openai(chat: Chat, url: str, ours: bool) -> Any:
    from agents import SQLiteSession
    from agents.extensions.memory import SQLAlchemySession

    from holdfast.adapters.openai_agents import HoldfastSession

    session: Any
    close: Any
    if ours:
        session = HoldfastSession("chat", url)
        close = session.aclose
    elif url.startswith("postgresql"):
        session = SQLAlchemySession.from_url("chat", url=sqlalchemy(url), create_tables=True)
        close = session.engine.dispose
    else:
        session = SQLiteSession("chat", url)

        async def close() -> None:
            session.close()

    # Makes the tables.
    await session.get_items()

    async def turn(number: int, reads: bool) -> None:
        if reads:
            await session.get_items()
        await session.add_items([{"role": "user", "content": chat.text(30)}])
        call = {"type": "function_call", "name": "search", "call_id": f"c{number}", "arguments": chat.text(5)}
        output = {"type": "function_call_output", "call_id": f"c{number}", "output": chat.text(40)}
        answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": chat.text(60)}]}
        await session.add_items([call, output, answer])

    return turn, close


async def open_adk(chat: Chat, url: str, ours: bool) -> Any:
    from google.adk.events.event import Event
    from google.adk.events.event_actions import EventActions
    from google.adk.sessions import DatabaseSessionService
    from google.genai import types

    from holdfast.adapters.adk import HoldfastSessionService

    service: Any = HoldfastSessionService(url) if ours else DatabaseSessionService(sqlalchemy(url))
    place = {"app_name": "app", "user_id": "ada", "session_id": "chat"}
    session: Any = await service.create_session(**place, state={"notes": "", "user:language": "en"})

    async def turn(number: int, reads: bool) -> None:
        nonlocal session
        if reads:
            session = await service.get_session(**place)
        for author, part, delta in (
            ("user", types.Part(text=chat.text(30)), {}),
            ("helper", types.Part(function_call=types.FunctionCall(name="search", args={"q": chat.text(5)})), {}),
            (
                "helper",
                types.Part(function_response=types.FunctionResponse(name="search", response={"r": chat.text(40)})),
                {},
            ),
            ("helper", types.Part(text=chat.text(60)), {"notes": chat.text(20), "turn": number}),
        ):
            content = types.Content(role="user" if author == "user" else "model", parts=[part])
            actions = EventActions(state_delta=delta)
            await service.append_event(
                session, Event(author=author, invocation_id=f"i{number}", content=content, actions=actions)
            )

    return turn, service.aclose if ours else service.close


async def open_a2a(chat: Chat, url: str, ours: bool) -> Any:
    from a2a.server.context import ServerCallContext
    from a2a.server.tasks import DatabaseTaskStore
    from a2a.types.a2a_pb2 import Message, Part, Role, Task, TaskState, TaskStatus
    from sqlalchemy.ext.asyncio import create_async_engine

    from holdfast.adapters.a2a import HoldfastTaskStore

    tasks: Any = HoldfastTaskStore(url) if ours else DatabaseTaskStore(create_async_engine(sqlalchemy(url)))
    context = ServerCallContext()
    task: Any = Task(id="chat", context_id="c", status=TaskStatus(state=TaskState.TASK_STATE_WORKING))
    await tasks.save(task, context)

    async def turn(number: int, reads: bool) -> None:
        nonlocal task
        if reads:
            task = await tasks.get("chat", context)
        for role, words in ((Role.ROLE_USER, 30), (Role.ROLE_AGENT, 60)):
            task.history.append(
                Message(message_id=f"m{number}-{words}", role=role, parts=[Part(text=chat.text(words))])
            )
            await tasks.save(task, context)

    return turn, tasks.aclose if ours else tasks.engine.dispose


OPENED = {"openai": open_openai, "adk": open_adk, "a2a": open_a2a}


def sqlalchemy(url: str) -> str:
    """Return a URL as SQLAlchemy spells it."""
    if url.startswith("postgresql"):
        return url.replace("postgresql://", "postgresql+asyncpg://", 1)
    return f"sqlite+aiosqlite:///{url}"


if __name__ == "__main__":
    child.serve(Chat())
