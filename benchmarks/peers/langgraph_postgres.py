"""LangGraph's PostgresSaver, driven like its SQLite sibling."""

from __future__ import annotations

from typing import Any

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.rows import dict_row

from benchmarks import child
from benchmarks.peers.langgraph_sqlite import Saver


class PostgresPuts(Saver):
    """The same turns by psycopg, on the one connection that a saver has."""

    def open(self, url: str) -> dict[str, Any]:  # type: ignore[override]
        self.connection = psycopg.connect(url, autocommit=True, prepare_threshold=0, row_factory=dict_row)
        self.saver = PostgresSaver(self.connection)
        self.saver.setup()
        found = self.connection.execute(
            "SELECT current_setting('fsync') AS f, current_setting('synchronous_commit') AS s"
        )
        row = found.fetchone()
        return {"durable": (row["f"], row["s"]) == ("on", "on")}


if __name__ == "__main__":
    child.serve(PostgresPuts())
