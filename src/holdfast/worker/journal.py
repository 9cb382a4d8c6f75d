"""The log of one run, as its handler knows it: read when the run is claimed, and extended by what the handler records.

The journal is the event log of the process. A recorded step is an event of type `step` under the replay key of its
name, appended under the run's lease: it is recorded once, and never by a holder that was lost.
"""

from __future__ import annotations

from typing import Any

import holdfast

CANCEL_REQUESTED = "process.cancel_requested"
STEP = "step"
PROGRESS = "progress"
SIGNAL = "signal."


class Journal:
    """The events of a run."""

    def __init__(self, store: holdfast.Store, claim: holdfast.processes.RunClaim) -> None:
        self._store = store
        self._lease = claim.lease
        self._process_id = claim.process.id
        self._count = claim.process.event_count
        self._ahead: set[int] = set()
        self._progress = 0
        self.seen = 0
        """The sequence up to which every event is known. Own events may be known beyond it."""
        self.steps: dict[str, dict[str, Any]] = {}
        self.signals: dict[str, list[Any]] = {}
        """The payloads of each signal, in order."""
        self.cancel: Any = None
        """The payload of the request to cancel, None if there is none."""

    async def load(self) -> None:
        """Read the events that are not known yet."""
        if self._count == 0:
            return  # a new run: no trip
        await self.refresh()

    async def refresh(self) -> None:
        """Read the events after the last that is known."""
        while True:
            page = await self._store.events.after(self._process_id, self.seen, limit=self._store.limits.page)
            for event in page:
                self._add(event)
            if page.next is None:
                return

    def _add(self, event: holdfast.events.ProcessEvent) -> None:
        if event.sequence <= self.seen or event.sequence in self._ahead:
            return
        self._ahead.add(event.sequence)
        while self.seen + 1 in self._ahead:
            self.seen += 1
            self._ahead.discard(self.seen)
        payload: Any = event.payload
        if event.type == STEP:
            self.steps[payload["name"]] = payload
        elif event.type == CANCEL_REQUESTED:
            self.cancel = payload
        elif event.type.startswith(SIGNAL):
            self._signal(event, payload)

    def _signal(self, event: holdfast.events.ProcessEvent, payload: Any) -> None:
        self.signals.setdefault(event.type.removeprefix(SIGNAL), []).append(payload)

    async def record(self, name: str, facts: dict[str, Any]) -> dict[str, Any]:
        """Record a step once. Return it as it is recorded."""
        receipt = await self._store.events.append(
            self._process_id, STEP, {"name": name, **facts}, replay_key=f"step:{name}", lease=self._lease
        )
        self._add(receipt.event)
        return self.steps[name]

    def next_progress(self) -> str:
        """Return the replay key of the next report, so that a report whose answer was lost is made once."""
        self._progress += 1
        return f"progress:{self._lease.fence}:{self._progress}"

    async def report(self, payload: Any, replay_key: str) -> None:
        """Append a report of progress."""
        receipt = await self._store.events.append(
            self._process_id, PROGRESS, payload, replay_key=replay_key, lease=self._lease
        )
        self._add(receipt.event)
