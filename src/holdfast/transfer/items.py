"""Moves items that belong to no session, one by one and unchanged. Items that the target has already stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import holdfast
from holdfast.paging import every

READ_TRIES = 3
MARKER = ("holdfast-copy", "marker")
"""Artifact that proves that two names mean one store. A copy skips one that a killed copy left behind."""


class Item(NamedTuple):
    """One item to move. `move` returns whether the target lacked anything of it."""

    id: str
    move: Callable[[], bool]


class Part(NamedTuple):
    """A kind of items, and about how many there are."""

    name: str
    total: int
    items: Iterator[Item]


def parts(
    source: holdfast.BlockingStore, target: holdfast.BlockingStore, stats: holdfast.maintenance.Stats
) -> tuple[Part, ...]:
    """Return everything besides sessions, with each part after those that it depends on."""
    return (
        Part("subscriptions", stats.subscriptions, _subscriptions(source, target)),
        Part("occurrences", stats.occurrences, _occurrences(source, target)),
        Part("schedules", stats.schedules, _schedules(source, target)),
        Part("processes", stats.processes, _processes(source, target)),
        Part("artifacts", stats.artifacts, _artifacts(source, target)),
    )


def _subscriptions(source: holdfast.BlockingStore, target: holdfast.BlockingStore) -> Iterator[Item]:
    def move(one: holdfast.triggers.Subscription) -> bool:
        return not target.triggers.restore(one).replayed

    for one in every(source.triggers.list, limit=source.limits.page):
        yield Item(one.handle, partial(move, one))


def _occurrences(source: holdfast.BlockingStore, target: holdfast.BlockingStore) -> Iterator[Item]:
    def move(one: holdfast.triggers.Occurrence) -> bool:
        deliveries = list(every(source.triggers.deliveries, one.occurrence_id))
        return not target.triggers.restore_occurrence(one, deliveries).replayed

    for one in every(source.triggers.occurrences, limit=source.limits.page):
        yield Item(one.occurrence_id, partial(move, one))


def _schedules(source: holdfast.BlockingStore, target: holdfast.BlockingStore) -> Iterator[Item]:
    def move(one: holdfast.schedules.Schedule) -> bool:
        return not target.schedules.restore(one).replayed

    for one in every(source.schedules.list, limit=source.limits.page):
        yield Item(one.name, partial(move, one))


def _processes(source: holdfast.BlockingStore, target: holdfast.BlockingStore) -> Iterator[Item]:
    for one in every(source.processes.list, status="any", limit=source.limits.page):
        yield Item(one.id, partial(_move_process, source, target, one.id))


def _move_process(source: holdfast.BlockingStore, target: holdfast.BlockingStore, process_id: str) -> bool:
    for _ in range(READ_TRIES):
        process = source.processes.get(process_id)
        if process is None:
            return False  # pruned since it was listed
        events = list(every(source.events.after, process_id, limit=source.limits.page))
        if source.processes.get(process_id) == process:
            break
    else:
        raise holdfast.errors.ImportRefused("it changes while it is read: stop its workers, then copy again")
    moved = not target.processes.restore(process, events).replayed
    for grant in every(source.grants.of_process, process_id):
        if not target.grants.has(grant.scope, process_id):
            target.grants.grant(grant.scope, process_id, grant.descriptor)
            moved = True
    return moved


def _artifacts(source: holdfast.BlockingStore, target: holdfast.BlockingStore) -> Iterator[Item]:
    def move(one: holdfast.artifacts.ArtifactSummary) -> bool:
        here, there = source.artifacts.get(one.kind, one.ref), target.artifacts.get(one.kind, one.ref)
        if here is None:
            return False  # deleted since it was listed
        if there is None:
            target.artifacts.put(one.kind, one.ref, here.data)
        elif there.data != here.data:
            raise holdfast.errors.ImportRefused("it is there already with other bytes: copy it into a new store")
        return there is None

    for one in every(source.artifacts.list, limit=source.limits.page):
        if (one.kind, one.ref) == MARKER:
            continue
        yield Item(f"{one.kind}/{one.ref}", partial(move, one))
