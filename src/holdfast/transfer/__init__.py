"""Moves sessions between any two stores through the public store: export as a bundle, import as one turn.

>>> import io
>>> from holdfast import transfer
>>> file = io.BytesIO()
>>> with holdfast.open_blocking("memory:") as source:
...     _ = source.sessions.handle("chat-42").commit(holdfast.Commit(turn_id="turn-1"))
...     manifest = transfer.export(source, "chat-42", file)
>>> _ = file.seek(0)
>>> transfer.restore(store, transfer.Bundle(file)).outcome
'imported'
>>> _ = file.seek(0)
>>> transfer.restore(store, transfer.Bundle(file)).outcome
'already_there'
"""

from __future__ import annotations

from holdfast.transfer.bundle import TRUSTED, Bundle, BundleLimits, Manifest
from holdfast.transfer.copying import copy_session
from holdfast.transfer.exporting import export
from holdfast.transfer.restoring import Restored, restore

__all__ = ["TRUSTED", "Bundle", "BundleLimits", "Manifest", "Restored", "copy_session", "export", "restore"]
