"""LangGraph's SqliteSaver: each turn puts a checkpoint with all messages so far and the state, as a graph run does."""

from __future__ import annotations

import sqlite3
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from benchmarks import child


class Conversations:
    """What a graph would hold in memory: the channels of each thread, and the last config."""

    def __init__(self) -> None:
        self.channels: dict[str, dict[str, Any]] = {}
        self.configs: dict[str, Any] = {}

    def next(self, turn: Any) -> tuple[Any, Any, Any, Any]:
        """The arguments of `put` for a turn."""
        channels = self.channels.setdefault(turn.session, {"messages": [], "state": {}})
        channels["messages"].extend(
            [{"role": "user", "text": turn.question}, {"role": "assistant", "text": turn.answer}]
        )
        channels["state"] = {"state": turn.state}
        versions = {"messages": f"{turn.number:032}.0", "state": f"{turn.number:032}.0"}
        checkpoint = empty_checkpoint() | {"channel_values": channels, "channel_versions": versions}
        config = self.configs.get(turn.session) or {"configurable": {"thread_id": turn.session, "checkpoint_ns": ""}}
        return config, checkpoint, {"source": "loop", "step": turn.number}, versions


class Saver:
    """Put by put."""

    saver: Any

    def __init__(self) -> None:
        self.lanes = child.Lanes()
        self.conversations = Conversations()

    def open(self, path: str) -> dict[str, Any]:
        self.path = path
        self.connection = sqlite3.connect(path, check_same_thread=False)
        self.saver = SqliteSaver(self.connection)
        self.saver.setup()
        (synchronous,) = self.connection.execute("PRAGMA synchronous").fetchone()
        (journal,) = self.connection.execute("PRAGMA journal_mode").fetchone()
        return {"durable": synchronous >= 2, "journal": journal, "sqlite": sqlite3.sqlite_version}

    def put(self, turn: Any) -> None:
        self.conversations.configs[turn.session] = self.saver.put(*self.conversations.next(turn))

    def turns(self, sessions: int, turns: int) -> dict[str, Any]:
        lanes = self.lanes.next(sessions, turns)
        return child.one_after_another([turn for lane in lanes for turn in lane], self.put)

    def audit(self) -> dict[str, Any]:
        size = 0
        for session, done in self.lanes.done.items():
            found = self.saver.get_tuple({"configurable": {"thread_id": session, "checkpoint_ns": ""}})
            values = found.checkpoint["channel_values"]
            assert len(values["messages"]) == 2 * done
            size += sum(len(message["text"]) for message in values["messages"]) + len(values["state"]["state"]) * done
        return {"turns": self.lanes.turns, "content_bytes": size}

    def stored(self) -> int:
        return child.file_bytes(self.path)


if __name__ == "__main__":
    child.serve(Saver())
