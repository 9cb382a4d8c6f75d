"""LangGraph's SqliteSaver: each turn puts a checkpoint with all messages so far and the state, as a graph run does."""

from __future__ import annotations

import sqlite3
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from benchmarks import child


class Conversations:
    """The memory of a graph: the channels of each thread, and the last config."""

    def __init__(self) -> None:
        self.channels: dict[str, dict[str, Any]] = {}
        self.configs: dict[str, Any] = {}

    def next(self, turn: Any) -> tuple[str, Any, Any, Any]:
        """Return a turn's thread, and the arguments of `put` but for the config, which the previous put returns."""
        channels = self.channels.setdefault(turn.session, {"messages": [], "state": {}})
        said = [{"role": "user", "text": turn.question}, {"role": "assistant", "text": turn.answer}]
        # A list of its own for each turn, since all turns of a round are prepared before the first is put.
        channels = {"messages": channels["messages"] + said, "state": {"state": turn.state}}
        self.channels[turn.session] = channels
        versions = {"messages": f"{turn.number:032}.0", "state": f"{turn.number:032}.0"}
        checkpoint = empty_checkpoint() | {"channel_values": channels, "channel_versions": versions}
        return turn.session, checkpoint, {"source": "loop", "step": turn.number}, versions

    def config(self, session: str) -> Any:
        """Return the result of a thread's last put."""
        return self.configs.get(session) or {"configurable": {"thread_id": session, "checkpoint_ns": ""}}


class Saver:
    """Puts one checkpoint a turn."""

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

    def put(self, prepared: tuple[str, Any, Any, Any]) -> None:
        session, *arguments = prepared
        self.conversations.configs[session] = self.saver.put(self.conversations.config(session), *arguments)

    def prepared(self, sessions: int, turns: int) -> list[list[Any]]:
        """Prepare the arguments. That is the caller's work and not timed."""
        return [[self.conversations.next(turn) for turn in lane] for lane in self.lanes.next(sessions, turns)]

    def turns(self, sessions: int, turns: int) -> Any:
        lanes = self.prepared(sessions, turns)
        return child.one_after_another([each for lane in lanes for each in lane], self.put)

    def audit(self) -> Any:
        return self.counted({session: self.saver.get_tuple(self.thread(session)) for session in self.lanes.done})

    def thread(self, session: str) -> Any:
        """Return the config that selects the last checkpoint of a thread."""
        return {"configurable": {"thread_id": session, "checkpoint_ns": ""}}

    def counted(self, found: dict[str, Any]) -> dict[str, Any]:
        """Count the contents of the last checkpoints."""
        size = 0
        for session, done in self.lanes.done.items():
            values = found[session].checkpoint["channel_values"]
            assert len(values["messages"]) == 2 * done
            size += sum(len(message["text"]) for message in values["messages"]) + len(values["state"]["state"]) * done
        return {"turns": self.lanes.turns, "content_bytes": size}

    def stored(self) -> int:
        return child.file_bytes(self.path)


if __name__ == "__main__":
    child.serve(Saver())
