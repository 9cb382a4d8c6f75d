"""Copies a session if the target lacks anything of it. A session of another origin in the target is left alone."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable

import holdfast
from holdfast.paging import every
from holdfast.transfer import bundle, exporting, restoring
from holdfast.transfer.items import MARKER


def are_the_same(source: holdfast.BlockingStore, target: holdfast.BlockingStore) -> bool:
    """Return whether two stores are one. A store has many names, so write a marker by one and read it by the other."""
    mark = secrets.token_bytes(16)
    try:
        target.artifacts.put(*MARKER, mark)
        found = source.artifacts.get(*MARKER)
    finally:
        target.artifacts.delete(*MARKER)
    return found is not None and found.data == mark


def copy_session(
    source: holdfast.BlockingStore,
    target: holdfast.BlockingStore,
    one: holdfast.sessions.SessionSummary,
    seen: Callable[[bundle.Manifest], None] = lambda _: None,
) -> bool:
    """Copy a session as it stands. Return False if nothing was missing; `ImportRefused` if the target has another.

    `seen` gets the manifest of a session that is now in the target.
    """
    there = restoring.imported_as(target, one.session_id)
    state = bundle.name_of_state(bundle.Source(one.revision, one.node_count))
    if there is not None and there.startswith(state) and not _has_more(source, target, one.session_id):
        return False
    with tempfile.SpooledTemporaryFile(bundle.SPOOLED_BYTES) as file:
        try:
            exporting.export(source, one.session_id, file)
        except holdfast.UnknownSession:
            # Only a lease or settled work made the session. There is nothing to copy.
            return False
        file.seek(0)
        read = bundle.Bundle(file, bundle.TRUSTED)
        if there is not None and there != read.manifest.turn_id:
            raise holdfast.errors.ImportRefused(
                "it is there already in another state, or is another session: copy it into a new store"
            )
        restored = restoring.restore(target, read)
    seen(read.manifest)
    return restored.outcome == "imported"


def _has_more(source: holdfast.BlockingStore, target: holdfast.BlockingStore, session_id: str) -> bool:
    """Return whether anything is new that does not change the session's state: metadata, work or attachments."""
    here, there = source.sessions.handle(session_id), target.sessions.handle(session_id)
    if here.meta() != there.meta() or source.queue.list(session_id, limit=1).items:
        return True
    return not all(
        restoring.has_bytes(there, ref.id)
        or (restoring.has_attachment(there, ref.id) and not restoring.has_bytes(here, ref.id))
        for ref in every(here.attachments.list, limit=source.limits.page)
    )
