"""Commands for attachments: read through the session that has them; swept only if no commit refers to them."""

from __future__ import annotations

import sys

import holdfast
from holdfast.cli.commands import PAGE, PAGE_JSON, SESSION, YES, Command, argument, duration_ms
from holdfast.cli.outputs import whole_file
from holdfast.cli.running import Call, Misused
from holdfast.cli.sessions import require_session, show_page, show_report
from holdfast.cli.terminal import moment, printable, size


def list_attachments(call: Call) -> int:
    """List one page of a session's attachments, or of every session's uncommitted ones."""
    given = call.options
    with call.store() as store:
        if given.uncommitted:
            listing = store.attachments if given.session is None else store.sessions.handle(given.session).attachments
            entries = listing.list_uncommitted(after=given.after, limit=given.limit)
            if not entries.items and given.after is None and given.session is not None:
                require_session(store, given.session)
            return show_page(
                call,
                entries,
                ("attachment", "session", "uri", "intended"),
                [(one.attachment_id, one.session_id, one.uri, moment(one.intent_at_ms)) for one in entries],
            )
        if given.session is None:
            raise Misused("name a session, or add --uncommitted to see every session's uncommitted ones")
        page = store.sessions.handle(given.session).attachments.list(after=given.after, limit=given.limit)
        if not page.items and given.after is None:
            require_session(store, given.session)
    return show_page(
        call,
        page,
        ("attachment", "type", "size", "label"),
        [(one.id, one.media_type, size(one.byte_count), one.label) for one in page],
    )


def get(call: Call) -> int:
    """Write one attachment's bytes to a file or to standard output."""
    given = call.options
    if given.json and given.output == "-":
        raise Misused("bytes and JSON do not go into one stream: add --output FILE")
    with call.store() as store:
        try:
            found = store.sessions.handle(given.session).attachments.get(given.attachment)
        except holdfast.errors.UnknownRef:
            require_session(store, given.session)
            raise
    if given.output == "-":
        sys.stdout.buffer.write(found.data)
        return 0
    with whole_file(call, given.output) as file:
        file.write(found.data)
    if given.json:
        call.terminal.json({"ref": found.ref, "output": printable(given.output)})
    else:
        call.terminal.line(f"wrote {size(found.ref.byte_count)} of {found.ref.media_type} to {given.output}")
    return 0


def sweep(call: Call) -> int:
    """Forget references that were never committed, and delete bytes without a reference."""
    with call.store() as store:
        call.confirm("Forget attachments that no turn committed, and delete their bytes?")
        with call.terminal.progress("sweeping attachments") as progress:
            report = store.attachments.sweep(older_than_ms=call.options.older_than, progress=progress.tell)
    show_report(call, report)
    return 0


COMMANDS = (
    Command(
        "attachments list",
        "list a session's attachments, or uncommitted ones",
        list_attachments,
        (
            argument("session", metavar="SESSION", nargs="?", help="the session's id"),
            argument(
                "--uncommitted",
                action="store_true",
                help="only uncommitted ones; of all sessions if no session is given",
            ),
            *PAGE,
        ),
        ("holdfast attachments list chat-42", "holdfast attachments list --uncommitted --json"),
        f"{PAGE_JSON} An item is an `AttachmentRef`, with `--uncommitted` an `AttachmentEntry`.",
    ),
    Command(
        "attachments get",
        "read an attachment's bytes",
        get,
        (
            SESSION,
            argument("attachment", metavar="ATTACHMENT", help="the attachment's id"),
            argument("--output", "-o", metavar="FILE", default="-", help="the file (default: standard output)"),
            YES,
        ),
        ("holdfast attachments get chat-42 ba7816bf… -o photo.png",),
        "With `--output`, an object: `ref` (an `AttachmentRef`), `output`.",
        "Asks before it overwrites a file.",
    ),
    Command(
        "attachments sweep",
        "delete attachments that no turn committed",
        sweep,
        (
            argument(
                "--older-than",
                metavar="TIME",
                type=duration_ms,
                default=86_400_000,
                help="minimum age (default 1d)",
            ),
            YES,
        ),
        ("holdfast attachments sweep --older-than 7d --yes",),
        "A `SweepReport`.",
        "Asks first. Recent uploads are uncommitted, too: keep the age longer than a turn.",
    ),
)
