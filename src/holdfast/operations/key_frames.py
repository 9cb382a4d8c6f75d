"""LRU cache of key frames, so that a large state is not read again for each of its turns.

An entry is a hint. The transaction that stores a delta makes sure that its key frame is present and whole.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from holdfast.errors import Corrupt
from holdfast.ports import Transaction
from holdfast.rows import CommitPlan, Run
from holdfast.rules import deltas

KEPT_BYTES = 64 * 1024 * 1024
"""Most bytes of key frames in the cache. A miss costs one read at the next turn that needs the frame."""


class KeyFrames:
    """LRU cache: for content stored or read recently, the run that ends with it. Thread-safe."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._runs: OrderedDict[tuple[int, str], Run] = OrderedDict()
        self._bytes = 0
        self._most_bytes = most_bytes
        self._lock = threading.Lock()

    def get(self, family: int, ref: str) -> Run | None:
        """Return the run that ends with this content and mark it as used."""
        with self._lock:
            found = self._runs.get((family, ref))
            if found is not None:
                self._runs.move_to_end((family, ref))
            return found

    def put(self, family: int, ref: str, run: Run, *, continues: str | None = None) -> None:
        """Keep a run, in place of the one that it continues. Evict the least recently used."""
        with self._lock:
            if continues is not None:
                self._drop((family, continues))
            self._drop((family, ref))
            self._runs[family, ref] = run
            self._bytes += len(run.data)
            while self._bytes > self._most_bytes:
                self._drop(next(iter(self._runs)))

    def drop(self, family: int, ref: str) -> None:
        """Forget a run."""
        with self._lock:
            self._drop((family, ref))

    def _drop(self, place: tuple[int, str]) -> None:
        dropped = self._runs.pop(place, None)
        self._bytes -= 0 if dropped is None else len(dropped.data)


class StagedKeyFrames(KeyFrames):
    """Key frames of an open transaction: those of the store, and its own until the commit."""

    def __init__(self, base: KeyFrames) -> None:
        super().__init__()
        self._base = base

    def get(self, family: int, ref: str) -> Run | None:
        """Return the run that ends with this content and mark it as used."""
        return super().get(family, ref) or self._base.get(family, ref)

    def pass_on(self) -> None:
        """Keep the own ones in the store, after the commit."""
        with self._lock:
            runs = list(self._runs.items())
        for (family, ref), run in runs:
            self._base.put(family, ref, run)


async def runs_for(
    tx: Transaction,
    kept: KeyFrames,
    family: int,
    predecessors: Mapping[str, str],
    bodies: Mapping[str, bytes],
) -> dict[str, Run]:
    """Return the run that each large content continues. Key frames of probable deltas are held for the transaction."""
    found: dict[str, Run] = {}
    for ref, earlier in predecessors.items():
        run = kept.get(family, earlier) or await _read(tx, family, earlier)
        if run is not None:
            found[ref] = run
    # The other contents will be stored whole. Their runs only count them.
    probable = [ref for ref, run in found.items() if deltas.is_worth_trying(run, bodies[ref])]
    if not probable:
        return found
    held = await tx.hold_key_frames(family, sorted({found[ref].ref for ref in probable}))
    for ref in probable:
        if found[ref].ref not in held:
            kept.drop(family, predecessors[ref])
            del found[ref]
    return found


async def _read(tx: Transaction, family: int, ref: str) -> Run | None:
    try:
        return deltas.run_of(ref, await tx.load_blobs(family, [ref]))
    except Corrupt:
        # Reads and verify report the damage. Here the new content is stored whole, so that it does not rest on damage.
        return None


def learn(
    kept: KeyFrames,
    plan: CommitPlan,
    bodies: Mapping[str, bytes],
    predecessors: Mapping[str, str],
    runs: Mapping[str, Run],
) -> None:
    """Replace the runs that this turn continued with those that the next turn will continue."""
    family = plan.session.family
    for row in plan.blobs:
        if row.size < deltas.DELTA_FROM_BYTES:
            continue
        run = deltas.run_after(row, bodies[row.hash], runs.get(row.hash))
        if run is not None:
            kept.put(family, row.hash, run, continues=predecessors.get(row.hash))
