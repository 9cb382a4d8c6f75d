"""Google ADK's DatabaseSessionService: a turn appends two events, the second with the new state."""

from __future__ import annotations

from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import DatabaseSessionService
from google.genai import types
from sqlalchemy import text

from benchmarks import child

WHO = {"app_name": "bench", "user_id": "somebody"}


class Service:
    """One service, one session object for each conversation."""

    def __init__(self) -> None:
        self.lanes = child.Lanes()
        self.sessions: dict[str, Any] = {}

    async def open(self, url: str) -> dict[str, Any]:
        self.url = url
        self.service = DatabaseSessionService(url.replace("postgresql:", "postgresql+asyncpg:", 1))
        async with self.service.db_engine.connect() as connection:
            if url.startswith("sqlite"):
                synchronous = (await connection.execute(text("PRAGMA synchronous"))).scalar()
                journal = (await connection.execute(text("PRAGMA journal_mode"))).scalar()
                return {"durable": synchronous >= 2, "journal": journal}
            asked = text("SELECT current_setting('fsync'), current_setting('synchronous_commit')")
            return {"durable": tuple((await connection.execute(asked)).one()) == ("on", "on")}

    async def append(self, turn: Any) -> None:
        session = self.sessions[turn.session]
        for role, said, left in (("user", turn.question, {}), ("model", turn.answer, {"state": turn.state})):
            content = types.Content(role=role, parts=[types.Part(text=said)])
            event = Event(
                author=role, invocation_id=turn.id, content=content, actions=EventActions(state_delta=dict(left))
            )
            await self.service.append_event(session, event)

    async def turns(self, sessions: int, turns: int) -> dict[str, Any]:
        lanes = self.lanes.next(sessions, turns)
        for lane in lanes:
            name = lane[0].session
            if name not in self.sessions:
                self.sessions[name] = await self.service.create_session(**WHO, session_id=name)
        return await child.at_once(lanes, self.append)

    async def audit(self) -> dict[str, Any]:
        size = 0
        for session, done in self.lanes.done.items():
            found = await self.service.get_session(**WHO, session_id=session)
            assert len(found.events) == 2 * done
            size += sum(len(event.content.parts[0].text) for event in found.events)
            size += sum(len(event.actions.state_delta.get("state", "")) for event in found.events)
        return {"turns": self.lanes.turns, "content_bytes": size}

    def stored(self) -> int:
        return child.file_bytes(self.url.removeprefix("sqlite+aiosqlite:///"))


if __name__ == "__main__":
    child.serve(Service())
