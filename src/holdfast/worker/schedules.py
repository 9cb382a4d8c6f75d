"""The schedules that a worker declares: each tick is work for one of its handlers."""

from __future__ import annotations

from typing import Any

import msgspec

import holdfast
from holdfast.worker.handlers import QUEUED, Handlers

_ARGUMENTS = {"work.payloads[0]": "payload", "work.session_id": "session_id"}
"""The arguments of `worker.every` by the names that a store has for them."""


class Every(msgspec.Struct, frozen=True):
    """One schedule: when it ticks, and the work of a tick."""

    cron: str
    kind: str
    tz: str
    payload: Any
    name: str
    session_id: str | None

    @property
    def work(self) -> holdfast.WorkDraft:
        """The work of a tick, in a session of its own unless another was named."""
        session_id = f"schedule:{self.name}" if self.session_id is None else self.session_id
        return holdfast.WorkDraft(session_id=session_id, payloads=[self.payload], kind=self.kind)


class Schedules:
    """All schedules of a worker, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Every] = {}

    def add(self, every: Every) -> None:
        """Add a schedule. Raises InvalidRequest if it can never fire or its name is taken."""
        # A store in memory checks a declaration as any store does, before the worker opens its own.
        try:
            with holdfast.open_blocking("memory:") as store:
                store.schedules.put(every.name, every.cron, tz=every.tz, work=every.work)
        except holdfast.InvalidRequest as error:
            field = _ARGUMENTS.get(error.field, error.field)
            raise holdfast.InvalidRequest(field, error.problem, limit=error.limit) from None
        if every.name in self._by_name:
            raise holdfast.InvalidRequest("name", f"{every.name!r} is a schedule already: give one of them a name")
        self._by_name[every.name] = every

    def require_handlers(self, handlers: Handlers) -> None:
        """Raises InvalidRequest if no handler of the worker is for the work of a tick."""
        for every in self._by_name.values():
            target(every, handlers)

    async def declare(self, store: holdfast.Store, handlers: Handlers) -> None:
        """Declare all schedules in a store. A declaration that is there already changes nothing."""
        for every in self._by_name.values():
            await store.schedules.put(every.name, every.cron, tz=every.tz, **target(every, handlers))


class Upkeep(msgspec.Struct):
    """Settings of the background tasks of a worker."""

    schedules: Schedules
    housekeeping_ms: int | None = None
    """The time between two rounds, None for no housekeeping."""
    prune: holdfast.RetentionPolicy | None = None


def target(every: Every, handlers: Handlers) -> dict[str, Any]:
    """Return the work of a tick: a batch, or a run if the handler of the kind is for runs."""
    if any(every.kind in handlers.kinds(shape) for shape in QUEUED):
        return {"work": every.work}
    versions = handlers.versions(every.kind)
    if not versions:
        problem = f"schedule {every.name!r} makes work that has no handler: add @worker.job({every.kind!r})"
        raise holdfast.InvalidRequest("kind", problem)
    if every.session_id is not None:
        raise holdfast.InvalidRequest("session_id", f"cannot be used with {every.kind!r}: its handler is for runs")
    try:
        handlers.check_start(every.kind, versions[-1], every.payload)
    except holdfast.InvalidRequest as error:
        raise holdfast.InvalidRequest("payload", f"of schedule {every.name!r}: {error.problem}") from None
    return {"run": holdfast.processes.Run(every.kind, versions[-1], every.payload)}
