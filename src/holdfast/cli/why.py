"""`holdfast why`: explains why a session, a process or a schedule is stuck, and names the command that helps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import holdfast
from holdfast.cli.commands import Command, argument
from holdfast.cli.ids import similar, with_suggestions
from holdfast.cli.running import Call, Refused, has_password
from holdfast.cli.terminal import end_of_error, length, moment, quoted

STYLES = {"stuck": "red", "waits": "yellow", "works": "green", "idle": "dim"}
STORE_OPTIONS = ("url", "schema", "pooler")
SIGNAL = ("processes", "signal")
SHOWING = (("queue", "limit"), ("runs", "show"), ("why",))
"""Commands of remedies that only show more: what helps is to be decided."""
ALONE = frozenset({"why"})
"""Commands of remedies whose name is one word."""


def why(call: Call) -> int:
    """Explain one subject, found by its id."""
    deleted: holdfast.SessionDeleted | None = None
    found: list[holdfast.maintenance.Explanation] = []
    with call.store() as store:
        for explain in (
            store.maintenance.explain_session,
            store.maintenance.explain_process,
            store.maintenance.explain_schedule,
        ):
            try:
                found.append(explain(call.options.id))
            except holdfast.SessionDeleted as error:
                deleted = error
            except holdfast.NotFound:
                continue
    if not found and deleted is not None:
        raise deleted
    if not found:
        unknown = f"there is no session, process or schedule {call.options.id!r}: see holdfast sessions list"
        raise Refused(with_suggestions(unknown, similar(call, "any", call.options.id)))
    ok = all(one.ok for one in found)
    if call.options.json:
        call.terminal.json({"ok": ok, "explanations": found})
        return 0 if ok else 1
    for one in found:
        call.terminal.line(f"{one.subject} {one.id}: ", (one.standing, STYLES[one.standing]))
        for cause in one.causes:
            _show(call, cause, one.explained_at_ms)
    return 0 if ok else 1


def _show(call: Call, cause: holdfast.maintenance.Cause, now_ms: int) -> None:
    call.terminal.line("  ", (cause.name, STYLES[cause.standing]), f"  {cause.problem}")
    for title, text in _details(call, cause, now_ms):
        for number, line in enumerate(text.split("\n")):
            call.terminal.line(f"    {'' if number else title:<10} {line}")


def _details(call: Call, cause: holdfast.maintenance.Cause, now_ms: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if cause.since_ms is not None:
        found.append(("since", f"{moment(cause.since_ms)}, {length(now_ms - cause.since_ms)} ago"))
    if cause.attempt is not None:
        found.append(("attempt", str(cause.attempt)))
    if cause.error is not None:
        found.append(("error", end_of_error(cause.error)))
    if cause.holder is not None:
        found.append(("held by", _holder(cause.holder, now_ms)))
    if cause.next is not None:
        when = "" if cause.next_at_ms is None else f" at {moment(cause.next_at_ms)}"
        when += "" if cause.next_at_ms is None else f", in {length(cause.next_at_ms - now_ms)}"
        found.append(("by itself", f"{cause.next}{when}"))
    if cause.remedy:
        is_shown = any(cause.remedy[: len(words)] == words for words in SHOWING)
        found.append(("see" if is_shown else "helps", command_line(call, cause.remedy)))
        if has_password(call.url()) and os.environ.get("HOLDFAST_URL") != call.url():
            found.append(("first", "set HOLDFAST_URL to the URL of the store: a password is not repeated"))
    if cause.remedy[:2] == SIGNAL:
        found.append(("payload", "add --payload JSON if its handler expects one"))
    return found


def _holder(holder: holdfast.maintenance.Holder, now_ms: int) -> str:
    place = "" if holder.host is None else f", host {holder.host}, pid {holder.pid}"
    if holder.heartbeat_at_ms is None:
        return f"{holder.owner_id}{place} (not a registered worker)"
    alive = "alive" if holder.is_alive else "silent"
    return f"{holder.owner_id}{place}, {alive}, last report {length(now_ms - holder.heartbeat_at_ms)} ago"


def command_line(call: Call, remedy: tuple[str, ...]) -> str:
    """Return the command as it can be pasted into a shell: with the store that this command was given.

    A URL with a password is not repeated.
    """
    is_hidden = has_password(call.url())
    given = {name: getattr(call.options, name) for name in STORE_OPTIONS if name != "url" or not is_hidden}
    return pasteable(remedy, given, hidden=is_hidden, encoding=call.terminal.encoding)


def pasteable(remedy: Sequence[str], store: Mapping[str, str | None], *, hidden: bool, encoding: str = "utf-8") -> str:
    """Return a remedy as one line for a shell, with the options that name the `store`.

    An id that begins with a dash comes last, after `--`. With `hidden`, the URL comes from the environment.
    """
    size = 1 if remedy[0] in ALONE else 2
    ids = list(remedy[size:])
    options = [word for name, value in store.items() if value is not None for word in _option(f"--{name}", value)]
    if remedy[:size] == ("leases", "release"):
        ids, options = [], [*_option(*ids), *options]
    line = [quoted(word, encoding) for word in options] + (['--url "$HOLDFAST_URL"'] if hidden else [])
    named = [quoted(word, encoding) for word in ids]
    rest = [*line, "--", *named] if any(one.startswith("-") for one in ids) else [*named, *line]
    return " ".join(["holdfast", *remedy[:size], *rest])


def _option(name: str, value: str) -> list[str]:
    return [f"{name}={value}"] if value.startswith("-") else [name, value]


COMMANDS = (
    Command(
        "why",
        "explain why a session, process or schedule is stuck",
        why,
        (argument("id", metavar="ID", help="the id of a session, a process or a schedule"),),
        ("holdfast why chat-42", "holdfast why research-1 --json"),
        "An object: `ok` and `explanations`, each an `Explanation` with its `causes`.",
        "Changes nothing. The exit code is 1 if something is stuck. `helps` is a command to paste,\n"
        "and `see` one that shows more.",
    ),
)
