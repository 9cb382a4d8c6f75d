"""Commands that take over the data of a framework's own store: `holdfast import langgraph`."""

from __future__ import annotations

from holdfast.cli.commands import Command, argument
from holdfast.cli.running import Call
from holdfast.cli.terminal import counted


def openai_agents(call: Call) -> int:
    """Take over the sessions of the OpenAI Agents SDK."""
    from holdfast.adapters.openai_agents.importing import as_json, import_sessions

    given = call.options
    with call.store() as store:
        report = import_sessions(
            store, given.source, sessions_table=given.sessions_table, messages_table=given.messages_table
        )
    if given.json:
        call.terminal.json(as_json(report))
        return 1 if report.refused else 0
    taken = f"imported {counted(len(report.imported), 'session')} with {counted(report.items, 'item')}"
    call.terminal.line(f"{taken}, {report.already_there} were there already, {len(report.refused)} refused")
    if report.skipped_rows:
        rows = ", ".join(map(str, report.skipped_rows[:10]))
        call.terminal.line((f"skipped {counted(len(report.skipped_rows), 'row')} without JSON: {rows}", "yellow"))
    if report.usage_rows:
        call.terminal.line((f"left behind {counted(report.usage_rows, 'row')} about tokens", "yellow"))
    for name, problem in report.refused.items():
        call.terminal.line((f"{name}: {problem}", "red"))
    return 1 if report.refused else 0


def langgraph(call: Call) -> int:
    """Take over the threads of LangGraph."""
    from holdfast.adapters.langgraph.importing import as_json, import_threads

    with call.store() as store:
        report = import_threads(store, call.options.source)
    if call.options.json:
        call.terminal.json(as_json(report))
        return 1 if report.refused else 0
    taken = f"imported {counted(report.checkpoints, 'checkpoint')} with {counted(report.writes, 'write')}"
    where = f"in {counted(len(report.threads), 'thread')} and subgraphs"
    call.terminal.line(f"{taken} {where}, {report.already_there} were there already, {len(report.refused)} refused")
    for name, problem in report.refused.items():
        call.terminal.line((f"{name}: {problem}", "red"))
    return 1 if report.refused else 0


COMMANDS = (
    Command(
        "import langgraph",
        "import the threads of a LangGraph SqliteSaver",
        langgraph,
        (argument("--from", dest="source", metavar="FILE", required=True, help="the file of its SqliteSaver"),),
        ("holdfast import langgraph --from checkpoints.db --url agent.db",),
        "An object: `threads` (session ids), `checkpoints`, `already_there`, `writes` (counts), `refused` (session id\n"
        "  to problem).",
        "Run it again after an interruption, or when the file has grown: it adds only new checkpoints, then reads\n"
        "each back and compares it. It opens the file for reading, and unpickles nothing. The exit code is 1 if a\n"
        "thread was refused.",
    ),
    Command(
        "import openai-agents",
        "import the sessions of the OpenAI Agents SDK",
        openai_agents,
        (
            argument("--from", dest="source", metavar="FILE", required=True, help="the file of its SQLiteSession"),
            argument("--sessions-table", metavar="NAME", default="agent_sessions", help="if it has another name"),
            argument("--messages-table", metavar="NAME", default="agent_messages", help="if it has another name"),
        ),
        ("holdfast import openai-agents --from sessions.db --url agent.db",),
        "An object: `imported` (session ids), `already_there`, `items` (counts), `skipped_rows` (ids of rows that are\n"
        "  not JSON), `usage_rows` (rows about tokens, which stay behind), `refused` (session id to problem).",
        "Run it again after an interruption, or when the file has grown: it adds only new items, then reads each\n"
        "session back and compares it. A branch of an AdvancedSQLiteSession becomes the session\n"
        "<session>.<branch>. The file is opened for reading only. The exit code is 1 if a session was refused.",
    ),
)
