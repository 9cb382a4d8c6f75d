"""A store is copied session by session, each whole; a second run goes on where the first one stopped."""

from __future__ import annotations

import holdfast
from holdfast.cli.commands import Command, argument
from holdfast.cli.running import Call, Refused

PAGE = 200
LEFT_BEHIND = ("processes", "events", "grants", "live_leases", "subscriptions", "occurrences", "artifacts")


def copy(call: Call) -> int:
    """Every session of one store, in another."""
    given = call.options
    source_url, target_url = given.source, given.target
    source_settings = call.settings(source_url, migrate=False, schema=given.from_schema)
    target_settings = call.settings(target_url, migrate=False, schema=given.to_schema)
    if (source_url, source_settings) == (target_url, target_settings):
        raise Refused("source and target are the same store")
    copied: list[str] = []
    already = 0
    refused: list[dict[str, str]] = []
    # What concerns one session leaves the others to be copied; a database that is away ends the run.
    one_session = (Refused, holdfast.Conflict, holdfast.NotFound, holdfast.InvalidRequest, holdfast.Corrupt)
    with (
        call.open(source_url, source_settings, given.from_attachments) as source,
        call.open(target_url, target_settings, given.to_attachments) as target,
    ):
        stats = source.maintenance.stats()
        from holdfast.cli.restoring import pages_of

        with call.terminal.progress("copying", stats.sessions) as progress:
            for one in pages_of(source, PAGE):
                try:
                    if _copy_session(source, target, one):
                        copied.append(one.session_id)
                    else:
                        already += 1
                except one_session as problem:
                    refused.append({"session_id": one.session_id, "problem": str(problem)})
                progress.step()
    left = {name: getattr(stats, name) for name in LEFT_BEHIND}
    _report(call, copied, already, refused, left)
    return 1 if refused else 0


def _copy_session(source: holdfast.BlockingStore, target: holdfast.BlockingStore, one: holdfast.SessionSummary) -> bool:
    """Whether there was anything to copy."""
    import tempfile

    from holdfast.cli import bundle, restoring

    there = restoring.imported_as(target, one.session_id)
    state = bundle.name_of_state(bundle.Source(one.revision, one.node_count))
    if there is not None and there.startswith(state) and not _has_more(source, target, one.session_id):
        return False
    with tempfile.SpooledTemporaryFile(bundle.SPOOLED_BYTES) as file:
        try:
            bundle.export(source, one.session_id, file)
        except holdfast.UnknownSession:
            # A lease or work that is settled made it, and nothing is left to copy.
            return False
        file.seek(0)
        read = bundle.Bundle(file)
        if there is not None and there != read.manifest.turn_id:
            raise Refused(
                "it is there already in another state, or is another session: delete it there to copy it anew"
            )
        return restoring.restore(target, read).outcome == "imported"


def _has_more(source: holdfast.BlockingStore, target: holdfast.BlockingStore, session_id: str) -> bool:
    """Whether there is what comes and goes without a new state of its session: metadata, work, and attachments."""
    from holdfast.cli.restoring import has_attachment

    here, there = source.sessions.handle(session_id), target.sessions.handle(session_id)
    if here.meta() != there.meta() or source.queue.list(session_id, limit=1).items:
        return True
    after: str | None = None
    while True:
        page = here.attachments.list(after=after, limit=PAGE)
        if not all(has_attachment(there, ref.id) for ref in page):
            return True
        if (after := page.next) is None:
            return False


def _report(call: Call, copied: list[str], already: int, refused: list[dict[str, str]], left: dict[str, int]) -> None:
    if call.options.json:
        call.terminal.json({"copied": copied, "already_there": already, "refused": refused, "left_behind": left})
        return
    call.terminal.line(f"copied {len(copied)} sessions, {already} were there already, {len(refused)} refused")
    for one in refused:
        call.terminal.line((f"{one['session_id']}: {one['problem']}", "red"))
    behind = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in left.items() if count)
    if behind:
        call.terminal.line(f"not copied, because only sessions are: {behind}")


COMMANDS = (
    Command(
        "copy",
        "copy every session of a store into another",
        copy,
        (
            argument("--from", dest="source", metavar="URL", required=True, help="the store to read"),
            argument("--to", dest="target", metavar="URL", required=True, help="the store to write, made by init"),
            argument("--from-schema", metavar="NAME", help="the schema of a PostgreSQL source"),
            argument("--to-schema", metavar="NAME", help="the schema of a PostgreSQL target"),
            argument("--from-attachments", metavar="FOLDER", help="where the source keeps attachment bytes"),
            argument("--to-attachments", metavar="FOLDER", help="where the target keeps attachment bytes"),
        ),
        ("holdfast copy --from agent.db --to postgresql://db/app",),
        "An object: `copied` (session ids), `already_there` (how many), `refused` (each `session_id` and `problem`), "
        "`left_behind` (counts of what is no session).",
        "Run it again after an interruption: what is there is not copied twice. Nothing is overwritten.",
    ),
)
