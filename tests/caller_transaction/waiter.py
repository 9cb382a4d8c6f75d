"""A second process that waits for work, and reports that it waits and how much it found."""

from __future__ import annotations

import sys

import holdfast

url, session_id = sys.argv[1:]
with holdfast.open_blocking(url) as store:
    print("open", flush=True)  # noqa: T201 - how it speaks
    store.queue.wait(session_id, timeout_ms=30_000)
    print(f"found {len(store.queue.list(session_id))}", flush=True)  # noqa: T201
