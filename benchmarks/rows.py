"""The contenders of each benchmark, their names, and the parts of a full turn that each leaves out."""

from __future__ import annotations

import dataclasses

from benchmarks.contender import Contender
from benchmarks.core import FLOOR, Bench

LANGGRAPH_SQLITE = "LangGraph SqliteSaver.put"
LANGGRAPH_SQLITE_ASYNC = "LangGraph AsyncSqliteSaver.aput"
LANGGRAPH_POSTGRES = "LangGraph PostgresSaver.put"
OPENAI_SQLITE = "OpenAI SQLiteSession"
OPENAI_POSTGRES = "OpenAI SQLAlchemySession"
ADK = "ADK DatabaseSessionService"
DBOS = "DBOS step"

NO_CAS = "no compare-and-set, no turn id, no usage"
MESSAGES_ONLY = f"messages only: no head, no checkpoint, {NO_CAS}"


def floor_sqlite(bench: Bench) -> Contender:
    """Insert one row with apsw."""
    return Contender(FLOOR, "benchmarks.drivers.floor_sqlite", {"path": bench.file()}, less="one row: no guarantees")


def floor_postgres(url: str) -> Contender:
    """Insert one row with asyncpg."""
    return Contender(FLOOR, "benchmarks.drivers.floor_postgres", {"url": url}, less="one row: no guarantees")


def holdfast(name: str, url: str, *, blocking: bool = False) -> Contender:
    """Commit the full turn."""
    return Contender(name, "benchmarks.drivers.holdfast_turns", {"url": url, "blocking": blocking})


def sqlite_peers(bench: Bench) -> list[Contender]:
    """Return the peers that keep a conversation in a SQLite file."""
    return [
        Contender(
            LANGGRAPH_SQLITE, "benchmarks.peers.langgraph_sqlite", {"path": bench.file()}, peer=True, less=NO_CAS
        ),
        Contender(
            OPENAI_SQLITE,
            "benchmarks.peers.openai_session",
            {"path": bench.file()},
            peer=True,
            carries=("messages",),
            less=MESSAGES_ONLY,
        ),
        Contender(ADK, "benchmarks.peers.adk", {"url": f"sqlite+aiosqlite:///{bench.file()}"}, peer=True, less=NO_CAS),
        Contender(
            DBOS,
            "benchmarks.peers.dbos_step",
            {"url": f"sqlite:///{bench.file()}"},
            peer=True,
            less="a step's recorded output: no graph, no head, no usage",
        ),
    ]


def langgraph_async(bench: Bench) -> Contender:
    """Return LangGraph's saver for SQLite as its async applications use it."""
    module = "benchmarks.peers.langgraph_sqlite_async"
    return Contender(LANGGRAPH_SQLITE_ASYNC, module, {"path": bench.file()}, peer=True, less=NO_CAS)


def postgres_peers(bench: Bench) -> list[Contender]:
    """Return the peers that keep a conversation in PostgreSQL. Makes their databases, a second each, only if wanted."""
    if not bench.peers:
        return []
    return [
        Contender(
            LANGGRAPH_POSTGRES,
            "benchmarks.peers.langgraph_postgres",
            {"url": bench.postgres.database()},
            peer=True,
            less=NO_CAS,
        ),
        Contender(
            OPENAI_POSTGRES,
            "benchmarks.peers.openai_session",
            {"url": bench.postgres.database()},
            peer=True,
            carries=("messages",),
            less=MESSAGES_ONLY,
        ),
        Contender(ADK, "benchmarks.peers.adk", {"url": bench.postgres.database()}, peer=True, less=NO_CAS),
        Contender(
            DBOS,
            "benchmarks.peers.dbos_step",
            {"url": bench.postgres.database()},
            peer=True,
            less="a step's recorded output: no graph, no head, no usage",
        ),
    ]


def asking(contender: Contender, **request: object) -> Contender:
    """Return the same contender with arguments of its own in each round."""
    return dataclasses.replace(contender, request=request)


def renamed(contender: Contender, name: str) -> Contender:
    """Return the same contender under another name."""
    return dataclasses.replace(contender, name=name)
