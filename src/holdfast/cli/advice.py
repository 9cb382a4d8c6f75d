"""Renders the store's errors for the command line, with its options, commands and arguments."""

from __future__ import annotations

import holdfast
from holdfast.next_step import sentence

FIELDS = {
    "url": "--url",
    "options.schema": "--schema",
    "options.pooler": "--pooler",
    "options.busy_timeout_ms": "--lock-timeout",
    "options.lock_timeout_ms": "--lock-timeout",
    "options.statement_timeout_ms": "--lock-timeout",
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
    "schedules pause": {"name": "SCHEDULE"},
    "schedules remove": {"name": "SCHEDULE"},
    "schedules resume": {"name": "SCHEDULE"},
    "schedules run": {"idempotency_key": "--key", "name": "SCHEDULE"},
    "sessions delete": {"expected_revision": "--expected-revision"},
    "sessions fork": {"at": "--at or --at-revision", "name": "--name", "session_id": "NEW"},
    "sessions graph": {"at": "--at"},
    "sessions import": {"into": "--as", "session_id": "--as"},
    "sessions list": {"session_id": "--parent"},
    "tail": {"process_id": "--process", "session_id": "--session"},
    "triggers list": {"session_id": "--session", "source_type": "--source-type", "source_key": "--source-key"},
    "vacuum": {"session_id": "--session"},
}
"""Overrides for commands that take a parameter under another name than most."""

IN_STEPS = FIELDS | {
    "session.attachments.list()": "holdfast attachments list",
    "session.history()": "holdfast sessions history",
    "sessions.list()": "holdfast sessions list",
    "processes.get()": "holdfast processes show",
    "processes.list()": "holdfast processes list --status any",
    "schedules.list()": "holdfast schedules list",
    "transfer.TRUSTED": "--trusted",
    "Limits.tree_sessions": "",
    "event_types": "",
    "options.acquire_timeout_ms": "",
    "options.max_connections": "",
    "processes.start()": "",
    "processes.handle()": "holdfast processes signal",
    "schedules.put()": "",
    "session.attachments.put()": "",
    "sessions.create()": "",
    "sessions.handle()": "",
}
"""Names in the next steps of errors. A step that the command line does not offer has an empty one."""

OF_A_COPY = IN_STEPS | {
    "attachments": "--from-attachments or --to-attachments",
    "into": "sessions export, then sessions import --as",
}
"""The same for a command with two stores."""


def copy_error_text(error: holdfast.HoldfastError) -> str:
    """Return the error's text for `copy`, which has two stores and whose user chose none of the keys."""
    match error:
        case holdfast.SessionDeleted():
            return f"session {error.session_id!r} was deleted in the target: copy it into a new store"
        case holdfast.errors.OccurrenceConflict():
            return "the target has another occurrence of the same source and key: copy it into a new store"
        case holdfast.errors.ReplayConflict():
            return "the target has another event of the same replay key: copy it into a new store"
        case holdfast.errors.UnknownDelivery():
            return "the target lacks the subscription that it was delivered to, which was refused, too"
        case _:
            return sentence(error.text, *error.next_step, names=OF_A_COPY)


def error_text(error: holdfast.HoldfastError, command: str = "") -> str:
    """Return the error's text for a user who typed this command."""
    match error:
        case holdfast.errors.SchemaMissing():
            return _missing(error)
        case holdfast.errors.ReplayConflict():
            return f"process {error.process_id!r} has another event of --replay-key {error.replay_key!r}: use a new key"
        case holdfast.errors.OccurrenceConflict():
            return f"--key {error.idempotency_key!r} was used for another occurrence of this source: use a new key"
        case holdfast.InvalidRequest() if command == "worker":
            # The program names the store and its options: no option of the command line is at fault.
            return ": ".join([*getattr(error, "__notes__", ()), str(error)])
        case holdfast.Corrupt() if command == "init":
            return f"{error.key}: {error.reason}: init makes a new store, so choose another name"
        case _:
            own = OF_COMMANDS.get(command, {})
            return sentence(_text(error, FIELDS | own), *error.next_step, names=IN_STEPS | own)


def _missing(error: holdfast.errors.SchemaMissing) -> str:
    """Name the missing store, so that a mistyped name does not lead to a new, empty one."""
    if isinstance(error, holdfast.errors.StoreMissing):
        if error.similar:
            return f"there is no file {error.path}: did you mean {' or '.join(error.similar)}?"
        return f"there is no file {error.path}: check the name, or make a new store with holdfast init"
    place = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    if error.found == 0:
        return f"there is no store yet{place}: run holdfast init"
    return f"the store{place} has schema version {error.found}, this program {error.known}: run holdfast migrate"


def _text(error: holdfast.HoldfastError, names: dict[str, str]) -> str:
    """Return the error's text without its next steps, with the field named as on the command line."""
    if isinstance(error, holdfast.InvalidRequest | holdfast.errors.UnknownRef):
        return f"{names.get(error.field, error.field)}: {error.problem}"
    return error.text
