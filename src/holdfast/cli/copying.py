"""Copies a store session by session and item by item, each as a whole. A second run resumes where the first stopped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.cli.advice import copy_error_text
from holdfast.cli.commands import Command, argument
from holdfast.cli.running import Call, Misused, require_folder
from holdfast.cli.terminal import counted
from holdfast.paging import every

if TYPE_CHECKING:
    from holdfast import transfer

WITHOUT_BYTES = "they live elsewhere, or were never put; if they lie in a folder, name it with --from-attachments"
SAME = "source and target are the same store: nothing was copied"
FORGOTTEN = ("turn_ids", "settled_source_keys")
NO_SESSIONS = ("processes", "events", "grants", "subscriptions", "occurrences", "schedules", "artifacts")
ONE_OF = {
    "processes": "process",
    "events": "event",
    "grants": "grant",
    "subscriptions": "subscription",
    "occurrences": "occurrence",
    "schedules": "schedule",
    "artifacts": "artifact",
    "live_leases": "live lease",
    "deleted_sessions": "deleted session",
}


def item_errors() -> tuple[type[holdfast.HoldfastError], ...]:
    """Return the errors that concern one item only. Any other error, such as a lost database, ends the run."""
    # A function, not a constant: the names of errors load the store, and `--help` must not wait for that.
    return (holdfast.Conflict, holdfast.NotFound, holdfast.InvalidRequest, holdfast.Corrupt)


class Tally:
    """Counts of copied, present and refused items."""

    def __init__(self) -> None:
        self.copied: list[str] = []
        self.already = 0
        self.others: dict[str, dict[str, int]] = {}
        self.refused: list[dict[str, str]] = []
        self.without_bytes = 0

    def seen(self, manifest: transfer.Manifest) -> None:
        """Count attachments that a bundle has no bytes for."""
        self.without_bytes += manifest.without_bytes

    def take_session(self, session_id: str, copy: Callable[[], bool]) -> None:
        """Copy a session and record the result."""
        try:
            if copy():
                self.copied.append(session_id)
            else:
                self.already += 1
        except item_errors() as problem:
            self.refused.append({"part": "sessions", "session_id": session_id, "problem": copy_error_text(problem)})

    def take(self, part: str, id: str, copy: Callable[[], bool]) -> None:
        """Copy any other item and record the result."""
        counts = self.others[part]
        try:
            counts["copied" if copy() else "already_there"] += 1
        except item_errors() as problem:
            self.refused.append({"part": part, "id": id, "problem": copy_error_text(problem)})


def copy(call: Call) -> int:
    """Copy everything from one store into another."""
    given = call.options
    source_url, target_url = given.source, given.target
    for option, url in (("--from", source_url), ("--to", target_url)):
        if not url:
            raise Misused(f"{option} is empty: name a store")
    require_folder("--from-attachments", given.from_attachments)
    source_settings = call.settings(source_url, migrate=False, schema=given.from_schema)
    target_settings = call.settings(target_url, migrate=False, schema=given.to_schema)
    if (source_url, source_settings) == (target_url, target_settings):
        raise Misused(SAME)
    tally = Tally()
    with (
        call.open(source_url, source_settings, given.from_attachments) as source,
        call.open(target_url, target_settings, given.to_attachments) as target,
    ):
        from holdfast.transfer import items
        from holdfast.transfer.copying import are_the_same, copy_session

        if are_the_same(source, target):
            raise Misused(SAME)
        stats = source.maintenance.stats()
        parts = () if given.sessions_only else items.parts(source, target, stats)
        with call.terminal.progress("copying", stats.sessions + sum(part.total for part in parts)) as progress:
            for one in every(source.sessions.list, limit=source.limits.page):
                tally.take_session(one.session_id, partial(copy_session, source, target, one, tally.seen))
                progress.step()
            for part in parts:
                tally.others[part.name] = {"copied": 0, "already_there": 0}
                for item in part.items:
                    tally.take(part.name, item.id, item.move)
                    progress.step()
    left = {name: getattr(stats, name) for name in NO_SESSIONS} if given.sessions_only else {}
    left |= {"live_leases": stats.live_leases, "deleted_sessions": stats.deleted_sessions}
    _report(call, tally, left)
    return 1 if tally.refused else 0


def _report(call: Call, tally: Tally, left: dict[str, int]) -> None:
    terminal = call.terminal
    if call.options.json:
        left = {**left, "attachment_bytes": tally.without_bytes}
        result: dict[str, Any] = {"copied": tally.copied, "already_there": tally.already, "others": tally.others}
        forgotten = FORGOTTEN if tally.copied else ()
        terminal.json({**result, "refused": tally.refused, "left_behind": left, "forgotten": forgotten})
        return
    refused = sum(one["part"] == "sessions" for one in tally.refused)
    terminal.line(
        f"copied {counted(len(tally.copied), 'session')}, {tally.already} were there already, {refused} refused"
    )
    if tally.copied:
        terminal.line("their earlier turn ids and settled source keys stay behind: sent to the target, they run again")
    for part, counts in tally.others.items():
        refused = sum(one["part"] == part for one in tally.refused)
        copied, already = counts["copied"], counts["already_there"]
        if copied or already or refused:
            terminal.line(f"copied {counted(copied, ONE_OF[part])}, {already} were there already, {refused} refused")
    for one in tally.refused:
        terminal.line((f"{one.get('session_id', one.get('id'))}: {one['problem']}", "red"))
    if tally.without_bytes:
        lacking = counted(tally.without_bytes, "attachment")
        terminal.line((f"without the bytes of {lacking}: {WITHOUT_BYTES}", "yellow"))
    behind = ", ".join(counted(count, ONE_OF[name]) for name, count in left.items() if count)
    if behind:
        terminal.line(f"not copied: {behind}")


COMMANDS = (
    Command(
        "copy",
        "copy a whole store into another",
        copy,
        (
            argument("--from", dest="source", metavar="URL", required=True, help="the store to read"),
            argument("--to", dest="target", metavar="URL", required=True, help="the store to write, created by init"),
            argument("--sessions-only", action="store_true", help="copy sessions only"),
            argument("--from-schema", metavar="NAME", help="the schema of a PostgreSQL source"),
            argument("--to-schema", metavar="NAME", help="the schema of a PostgreSQL target"),
            argument("--from-attachments", metavar="FOLDER", help="where the source keeps attachment bytes"),
            argument("--to-attachments", metavar="FOLDER", help="where the target keeps attachment bytes"),
        ),
        ("holdfast copy --from agent.db --to postgresql://db/app",),
        "An object: `copied` (session ids), `already_there` (how many), `others` (for each of `subscriptions`,\n"
        "  `occurrences`, `schedules`, `processes` and `artifacts` how many were `copied` and `already_there`),\n"
        "  `refused` (each `part`, `session_id` or `id`, and `problem`), `left_behind` (counts of what was not\n"
        "  copied), `forgotten` (what the target does not know of the sessions just copied: `turn_ids`,\n"
        "  `settled_source_keys`).",
        "Run it again after an interruption: nothing is copied twice. Nothing is overwritten.\n"
        "Leases are never copied: a running process arrives without an owner.\n"
        "Ids of earlier turns and source keys of settled work are not copied: if a caller retries them on the target,\n"
        "they run again. Let retries end before you copy.\n"
        "Deleted sessions are not copied, so the target accepts their ids for new ones.\n"
        "The exit code is 1 if anything was refused.",
        without=("--url", "--attachments"),
    ),
)
