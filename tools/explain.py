"""Write the plans of the hot paths on the newest and the oldest PostgreSQL found here to docs/explanation/plans.md.

Usage: python tools/explain.py

One long session and one long log stand among many short ones, and the tables are analyzed. The servers log the plan of
every statement inside the functions with the module auto_explain, after the plans are made and kept.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.postgres_server import SETTINGS, Database, Installation, Server, installations, run_sql

import holdfast

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "plans.md"
SETTING = SETTINGS | {
    "session_preload_libraries": "'auto_explain'",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "log_min_messages": "log",
    "log_line_prefix": "'@@ '",
    "autovacuum": "off",
}
UNSTABLE = "|".join(
    (
        *("Buffers", "Planning", "Trigger", "WAL", "Storage", "Sort Method", "Index Searches", "Heap Fetches"),
        *("Tuples Inserted", "Conflicting", "Rows Removed"),
    )
)
"""Beginnings of lines that depend on the rows or on the version, and not on the plan."""
SHORT, LONG, AT_ONCE, WARM = 200, 1000, 50, 8
Call = Callable[[holdfast.Store, int], Awaitable[Any]]

INTRODUCTION = """# Plans of the hot paths

Each hot path on PostgreSQL is one call of a server function
([decision 40](../adr/0040-a-hot-path-is-a-server-function-that-proves-a-hint.md)). This page shows the plans of the
statements in these functions, as logged by `auto_explain` on PostgreSQL {versions}. The database has {short} short
sessions, one session of {long:,} turns and {long:,} pending batches, and one log of {long:,} events; `ANALYZE` was run.
Every read is an index scan by a key or a range. Costs and times are omitted, because they depend on the machine. If the
servers chose different plans, both are shown. `python tools/explain.py` generates this page.
"""


def turn(number: int) -> holdfast.Commit:
    """Return a turn of two messages, a checkpoint and usage."""
    question, answer = f"q{number}", f"a{number}"
    return holdfast.Commit(
        turn_id=f"turn-{number}",
        expected_revision=number - 1,
        graph=holdfast.Append(
            [
                holdfast.Node(question, parent=f"a{number - 1}" if number > 1 else None, payload={"text": "question"}),
                holdfast.Node(answer, parent=question, payload={"text": "answer"}),
            ],
            leaf=answer,
        ),
        checkpoint=holdfast.Checkpoint(turn_state={"turn": number}),
        usage=[holdfast.Usage("turn", "some-model", input_tokens=1, output_tokens=1)],
    )


async def commit(store: holdfast.Store, number: int) -> None:
    await store.sessions.handle("long").commit(turn(LONG + 1 + number))


async def append(store: holdfast.Store, _: int) -> None:
    await store.events.append("long", "progress", 1)


async def enqueue(store: holdfast.Store, _: int) -> None:
    await store.queue.enqueue(holdfast.WorkDraft(session_id="long", payloads=["job"]))


async def claim_and_complete(store: holdfast.Store, _: int) -> None:
    claim = await store.queue.claim_next(owner_id="worker", kinds=["turn"], max_batches=1)
    assert claim is not None
    await store.queue.complete(claim)


async def claim_one_session(store: holdfast.Store, _: int) -> None:
    claim = await store.queue.claim("long", owner_id="worker", max_batches=1)
    assert claim is not None
    await store.queue.renew(claim)


async def settle_and_take_next(store: holdfast.Store, _: int) -> None:
    claim = await store.queue.claim_next(owner_id="worker", kinds=["turn"], max_batches=1)
    assert claim is not None
    await store.queue.complete_and_claim_next(claim, owner_id="worker", kinds=["turn"], max_batches=1)


async def lease(store: holdfast.Store, _: int) -> None:
    await store.leases.claim(holdfast.leases.OnSession("other"), owner_id="worker")


PATHS: dict[str, Call] = {
    "A turn": commit,
    "An event": append,
    "Enqueue": enqueue,
    "Claim the next work of any session, and complete it": claim_and_complete,
    "Claim the work of one session, and renew the claim": claim_one_session,
    "Complete a claim and take the next": settle_and_take_next,
    "Take a lease": lease,
}


async def fill(store: holdfast.Store) -> None:
    """Make one long session and log among short ones."""
    for first in range(0, SHORT, AT_ONCE):
        names = [f"short-{number}" for number in range(first, first + AT_ONCE)]
        await asyncio.gather(*(store.sessions.handle(name).commit(turn(1)) for name in names))
        await asyncio.gather(
            *(store.queue.enqueue(holdfast.WorkDraft(session_id=name, payloads=["job"])) for name in names)
        )
    await store.sessions.create("other")
    for number in range(1, LONG + 1):
        await store.sessions.handle("long").commit(turn(number))
    kinds = [holdfast.events.EventType("progress")]
    for name in ("long", "short"):
        await store.processes.register(
            holdfast.ProcessRegistration(name, holdfast.processes.External(), event_types=kinds)
        )
    for _ in range(0, LONG, AT_ONCE):
        await asyncio.gather(*(enqueue(store, 0) for _ in range(AT_ONCE)))
        await asyncio.gather(*(append(store, 0) for _ in range(AT_ONCE)))


def plans_in(log: str) -> dict[str, str]:
    """Return the logged plans of the statements inside functions, by statement."""
    found: dict[str, str] = {}
    for entry in log.split("@@ "):
        lines = entry.split("\n\t")
        first = next((place for place, line in enumerate(lines) if "  (cost=" in line), None)
        if first is None or not lines[1].startswith("Query Text: "):
            continue
        text, *_ = " ".join(lines[1:first]).removeprefix("Query Text: ").split("Query Parameters:")
        statement = " ".join(text.split())
        if re.search(r"FROM \S+_v1\(|pg_notify", statement):
            continue  # the call of a function, or a notification
        plan = re.sub(r"\(cost=[^)]*\) ?", "", "\n".join(lines[first:])).rstrip()
        plan = re.sub(rf"\n +({UNSTABLE}).*", "", plan)
        plan = re.sub(r" *\((actual rows=[\d.]+ loops=\d+|never executed)\)", "", plan)
        found.setdefault(statement, re.sub(r" +\n", "\n", plan))
    return found


async def measured(installation: Installation) -> dict[str, dict[str, str]]:
    """Return the plans of every path on one server."""
    server = Server(installation, settings=SETTING)
    try:
        database = Database(server.url)
        database.administrator.close()
        store = await holdfast.open(database.url, options=holdfast.PostgresOptions(max_connections=1))
        try:
            await fill(store)
            await asyncio.to_thread(run_sql, database.url, "ANALYZE")
            log = server.folder / "log"
            plans: dict[str, dict[str, str]] = {}
            for name, call in PATHS.items():
                size = 0
                for number in range(WARM):
                    size = log.stat().st_size
                    await call(store, number)
                with log.open(encoding="utf-8") as file:
                    file.seek(size)
                    plans[name] = plans_in(file.read())
                assert plans[name], f"no plan of {name!r} was logged"
            return plans
        finally:
            await store.close()
    finally:
        server.remove()


def page(versions: list[str], found: list[dict[str, dict[str, str]]]) -> str:
    """Return the page as Markdown."""
    parts = [INTRODUCTION.format(versions=" and ".join(versions), long=LONG, short=SHORT)]
    for name in PATHS:
        parts.append(f"## {name}\n")
        for statement, plan in found[0][name].items():
            plans = {plan} | {other[name].get(statement, plan) for other in found[1:]}
            parts.append(f"```sql\n{statement}\n```\n")
            for version, of_server in zip(versions, found, strict=True):
                if len(plans) > 1:
                    parts.append(f"PostgreSQL {version}:\n")
                parts.append(f"```text\n{of_server[name].get(statement, 'not run')}\n```\n")
                if len(plans) == 1:
                    break
    return "\n".join(parts)


def main() -> int:
    chosen = installations()
    servers = [chosen[0], chosen[-1]] if len(chosen) > 1 else chosen
    found = [asyncio.run(measured(each)) for each in servers]
    PAGE.write_text(page([each.version for each in servers], found), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}: {sum(len(plans) for plans in found[0].values())} plans")
    return 0


if __name__ == "__main__":
    sys.exit(main())
