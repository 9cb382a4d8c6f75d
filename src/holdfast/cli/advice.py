"""What an error of the store advises is said in the words of the command line: its options, commands and arguments."""

from __future__ import annotations

import holdfast

FIELDS = {
    "url": "--url",
    "options.schema": "--schema",
    "options.pooler": "--pooler",
    "options.busy_timeout_ms": "--patience",
    "options.lock_timeout_ms": "--patience",
    "options.statement_timeout_ms": "--patience",
    "attachments": "--attachments",
    "limit": "--limit",
    "after": "--after",
    "session_id": "SESSION",
    "source": "SESSION",
    "into": "NEW",
    "owner": "--owner",
    "parent": "--parent",
    "batch_id": "BATCH",
    "process_id": "PROCESS",
    "started_by": "--started-by",
    "type": "--type",
    "payload": "--payload",
    "reason": "--reason",
    "replay_key": "--replay-key",
    "idempotency_key": "--key",
    "source_type": "TYPE",
    "source_key": "SOURCE",
    "handle": "HANDLE",
    "attachment_id": "ATTACHMENT",
    "policy.keep_revisions": "--keep-revisions",
}
"""What a parameter of the interface is called here; one that is not listed comes from a file and keeps its name."""

PHRASES = (
    ("import it under another id", "import it under another id (--as)"),
    ("raise busy_timeout_ms", "give it more --patience"),
    ("raise lock_timeout_ms", "give it more --patience"),
    ("raise statement_timeout_ms", "give it more --patience"),
    ("lower max_connections, or raise the server's limit", "retry, or raise the server's limit"),
    (", or raise max_connections or acquire_timeout_ms", ""),
    (
        "was the store opened with the attachments= that it was written with?: stored data is damaged",
        "does --attachments name the folder that they were written to? If it does, they are lost",
    ),
    ("this session has no such attachment: put it first", "this session has no such attachment: see attachments list"),
    ("see session.history()", "see holdfast sessions history"),
    ("declare it in event_types", "see holdfast processes show for those that it declares"),
    ("open it with migrate=True", "run holdfast migrate"),
)
"""What a backend advises those who open it in a program, and what it means here."""


OF_A_COPY = (
    ("import it under another id (--as)", "export it, and import it under another id (--as)"),
    (
        "does --attachments name the folder that they were written to? If it does",
        "do --from-attachments and --to-attachments name the folders that they were written to? If they do",
    ),
)
"""What that means to a command that has two stores."""


def said_of_a_copy(error: holdfast.HoldfastError) -> str:
    """The error as one who copies can act on it."""
    text = said(error)
    for phrase, here in OF_A_COPY:
        text = text.replace(phrase, here)
    return text


def said(error: holdfast.HoldfastError) -> str:
    """The error as a person at a shell can act on it."""
    match error:
        case holdfast.SchemaMissing():
            place = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            if error.found == 0:
                return f"there is no store yet{place}: run holdfast init"
            return (
                f"the store{place} has schema version {error.found}, this program {error.known}: run holdfast migrate"
            )
        case holdfast.UnknownSession():
            return f"unknown session {error.session_id!r}: see holdfast sessions list"
        case holdfast.SessionDeleted():
            return f"session {error.session_id!r} was deleted: see holdfast sessions list"
        case holdfast.SessionExists():
            return f"session {error.session_id!r} exists already: choose another id"
        case holdfast.UnknownProcess():
            return f"unknown process {error.process_id!r}: see holdfast processes list --status any"
        case holdfast.AlreadyTerminal():
            return f"process {error.process_id!r} is already {error.status}: see holdfast processes show"
        case holdfast.ReplayConflict():
            return f"process {error.process_id!r} has another event of --replay-key {error.replay_key!r}: use a new key"
        case holdfast.OccurrenceConflict():
            return f"--key {error.idempotency_key!r} was used for another occurrence of this source: use a new key"
        case holdfast.InvalidRequest():
            text = f"{FIELDS.get(error.field, error.field)}: {error.problem}"
        case _:
            text = str(error)
    for phrase, here in PHRASES:
        text = text.replace(phrase, here)
    return text
