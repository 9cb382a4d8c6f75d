"""The floor on SQLite: the bare driver inserts one row with all bytes of the turn, WAL and synchronous=FULL."""

from __future__ import annotations

from typing import Any

import apsw

from benchmarks import child
from benchmarks.drivers import durable


class Floor:
    """One connection, one insert a turn, each its own transaction."""

    def open(self, path: str) -> dict[str, Any]:
        self.path = path
        self.lanes = child.Lanes()
        self.connection = apsw.Connection(path)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("CREATE TABLE turns (id INTEGER PRIMARY KEY, session TEXT, turn TEXT, content TEXT)")
        return durable.of_connection(self.connection)

    def insert(self, turn: Any) -> None:
        content = turn.question + turn.answer + turn.state
        self.connection.execute(
            "INSERT INTO turns (session, turn, content) VALUES (?, ?, ?)", (turn.session, turn.id, content)
        )

    def turns(self, sessions: int, turns: int) -> dict[str, Any]:
        """Insert the turns with one writer, whatever the number of sessions."""
        lanes = self.lanes.next(sessions, turns)
        return child.one_after_another([turn for lane in lanes for turn in lane], self.insert)

    def audit(self) -> dict[str, Any]:
        count, size = self.connection.execute("SELECT count(*), sum(length(content)) FROM turns").fetchone()
        assert count == self.lanes.turns
        return {"turns": count, "content_bytes": size}

    def stored(self) -> int:
        return child.file_bytes(self.path)


if __name__ == "__main__":
    child.serve(Floor())
