"""A session is copied if there is anything of it that the target does not have; a session of another origin is left."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable

import holdfast
from holdfast.moving import bundle, exporting, restoring
from holdfast.moving.background import MARKER
from holdfast.paging import every


def are_the_same(source: holdfast.BlockingStore, target: holdfast.BlockingStore) -> bool:
    """Whether two stores are one: it has many names, so put something into one and look for it in the other."""
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
    one: holdfast.SessionSummary,
    seen: Callable[[bundle.Manifest], None] = lambda _: None,
) -> bool:
    """Copy a session as it stands. False if there was nothing to copy; `ImportRefused` if it is another one there.

    `seen` is told what a session consists of that is in the target now.
    """
    there = restoring.imported_as(target, one.session_id)
    state = bundle.name_of_state(bundle.Source(one.revision, one.node_count))
    if there is not None and there.startswith(state) and not _has_more(source, target, one.session_id):
        return False
    with tempfile.SpooledTemporaryFile(bundle.SPOOLED_BYTES) as file:
        try:
            exporting.export(source, one.session_id, file)
        except holdfast.UnknownSession:
            # A lease or work that is settled made it, and nothing is left to copy.
            return False
        file.seek(0)
        read = bundle.Bundle(file, bundle.TRUSTED)
        if there is not None and there != read.manifest.turn_id:
            raise holdfast.ImportRefused(
                "it is there already in another state, or is another session: copy it into a new store"
            )
        restored = restoring.restore(target, read)
    seen(read.manifest)
    return restored.outcome == "imported"


def _has_more(source: holdfast.BlockingStore, target: holdfast.BlockingStore, session_id: str) -> bool:
    """Whether there is what comes and goes without a new state of its session: metadata, work, and attachments."""
    here, there = source.sessions.handle(session_id), target.sessions.handle(session_id)
    if here.meta() != there.meta() or source.queue.list(session_id, limit=1).items:
        return True
    return not all(
        restoring.has_bytes(there, ref.id)
        or (restoring.has_attachment(there, ref.id) and not restoring.has_bytes(here, ref.id))
        for ref in every(here.attachments.list, limit=source.limits.page)
    )
