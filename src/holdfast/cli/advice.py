"""Rewords the advice in the store's errors for the command line: its options, commands and arguments."""

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
"""Command-line names of the store's parameters. One that is not listed comes from a file and keeps its name."""

OF_COMMANDS = {
    "processes list": {"session_id": "--started-by"},
    "processes signal": {"name": "NAME", "type": "NAME"},
    "queue list": {"session_id": "--session"},
    "sessions fork": {"at": "--at or --at-revision", "name": "--name", "session_id": "NEW"},
    "sessions graph": {"at": "--at"},
    "sessions import": {"session_id": "--as"},
    "sessions list": {"session_id": "--parent"},
    "tail": {"process_id": "--process", "session_id": "--session"},
    "triggers list": {"session_id": "--session", "source_type": "--source-type", "source_key": "--source-key"},
    "vacuum": {"session_id": "--session"},
}
"""Overrides for commands that take a parameter under another name than most."""

PHRASES = (
    ("import it under another id", "import it under another id (--as)"),
    ("if you trust the file, raise the limits", "if you trust the file, add --trusted"),
    ("raise busy_timeout_ms", "give it more --patience"),
    ("raise lock_timeout_ms", "give it more --patience"),
    ("raise statement_timeout_ms", "give it more --patience"),
    (
        'open the store with PostgresOptions(pooler="transaction"), or with a URL that leads past the pooler',
        "add --pooler transaction, or give a --url that leads past the pooler",
    ),
    ("lower max_connections, or raise the server's limit", "retry, or raise the server's limit"),
    (", or raise max_connections or acquire_timeout_ms", ""),
    (
        "was the store opened with the attachments= that it was written with?: stored data is damaged",
        "does --attachments name the folder that they were written to? If it does, they are lost",
    ),
    (
        "was the store opened with the attachments= that it was written with?",
        "does --attachments name the folder that they were written to?",
    ),
    ("this session has no such attachment: put it first", "this session has no such attachment: see attachments list"),
    ("see session.history()", "see holdfast sessions history"),
    ("declare it in event_types", "see holdfast processes show for those that it declares"),
)
"""Advice of the store to programs, and the same advice at a shell."""

OF_A_COPY = (
    ("import it under another id", "export it, and import it under another id (--as)"),
    (
        "was the store opened with the attachments= that it was written with?: stored data is damaged",
        "do --from-attachments and --to-attachments name the folders that they were written to? If so, they are lost",
    ),
)
"""Replacements for a command with two stores. All other phrases stay the same."""


def at_a_shell(text: str, phrases: tuple[tuple[str, str], ...] = PHRASES) -> str:
    """Replace advice for programs by advice for a shell."""
    for phrase, here in phrases:
        text = text.replace(phrase, here)
    return text


def said_of_a_copy(error: holdfast.HoldfastError) -> str:
    """Return the error's text for `copy`, which has two stores and whose user chose none of the keys."""
    match error:
        case holdfast.SessionDeleted():
            return f"session {error.session_id!r} was deleted in the target: copy it into a new store"
        case holdfast.OccurrenceConflict():
            return "the target has another occurrence of the same source and key: copy it into a new store"
        case holdfast.ReplayConflict():
            return "the target has another event of the same replay key: copy it into a new store"
        case holdfast.UnknownDelivery():
            return "the target lacks the subscription that it was delivered to, which was refused, too"
        case _:
            others = tuple(pair for pair in PHRASES if pair[0] not in dict(OF_A_COPY))
            return at_a_shell(str(error), OF_A_COPY + others)


def said(error: holdfast.HoldfastError, command: str = "") -> str:
    """Return the error's text for a user who typed this command."""
    match error:
        case holdfast.SchemaMissing():
            return _missing(error)
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
        case holdfast.Corrupt() if command == "init":
            return f"{error.key}: {error.reason}: init makes a new store, so choose another name"
        case _:
            return at_a_shell(_named(error, FIELDS | OF_COMMANDS.get(command, {})))


def _missing(error: holdfast.SchemaMissing) -> str:
    """Name the missing store, so that a mistyped name does not lead to a new, empty one."""
    if isinstance(error, holdfast.StoreMissing):
        if error.similar:
            return f"there is no file {error.path}: did you mean {' or '.join(error.similar)}?"
        return f"there is no file {error.path}: check the name, or make a new store with holdfast init"
    place = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    if error.found == 0:
        return f"there is no store yet{place}: run holdfast init"
    return f"the store{place} has schema version {error.found}, this program {error.known}: run holdfast migrate"


def _named(error: holdfast.HoldfastError, names: dict[str, str]) -> str:
    """Return the error's text with the field named as on the command line."""
    match error:
        case holdfast.InvalidRequest():
            return f"{names.get(error.field, error.field)}: {error.problem}"
        case holdfast.UnknownRef():
            return str(error).replace(error.field, names.get(error.field, error.field), 1)
        case _:
            return str(error)
