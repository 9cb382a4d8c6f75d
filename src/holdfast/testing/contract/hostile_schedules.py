"""The right calls on schedules, with the kinds of their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import holdfast
from holdfast.processes import Run
from holdfast.queue import Group
from holdfast.schedules import Schedule
from holdfast.testing.contract.hostile_calls import PAGE
from holdfast.testing.contract.hostile_world import Call, World, parts
from holdfast.triggers import SubscriptionDraft

WORK = (
    ":record? payloads:sequence payloads[0]:document delivery:word slot:word merge_key:word merge_key.name:id "
    "kind:id priority:small"
)


def work() -> holdfast.WorkDraft:
    """Return work with every field set that a tick may have."""
    return holdfast.WorkDraft(payloads=[1], session_id="chat", merge_key=Group("g"), kind="report")


def declared(world: World, **more: Any) -> Schedule:
    """Declare a schedule, and return it."""
    return world.store.schedules.put("nightly", "0 3 * * *", **more)


def named(*, paused: bool = False) -> Callable[[World], Mapping[str, Any]]:
    """Return arguments that name a declared schedule."""

    def arguments(world: World) -> Mapping[str, Any]:
        declared(world)
        if paused:
            world.store.schedules.pause("nightly")
        return {"name": "nightly"}

    return arguments


def requested(world: World) -> Mapping[str, Any]:
    """Return arguments of a firing at once."""
    declared(world, work=work())
    return {"name": "nightly", "idempotency_key": "key"}


def moved(world: World) -> Mapping[str, Any]:
    """Return a schedule of another store."""
    with holdfast.open_blocking("memory:") as other:
        schedule = other.schedules.put("moved", "0 3 * * *", work=work())
    assert world.session.session_id == "chat"
    return {"schedule": schedule}


def due(world: World) -> Mapping[str, Any]:
    """Return arguments of a wait that ends at once, because a schedule of another store is due here."""
    with holdfast.open_blocking("memory:", clock=Past()) as other:
        world.store.schedules.restore(other.schedules.put("moved", "* * * * *"))
    return {"timeout_ms": 0}


def redelivered(world: World) -> Mapping[str, Any]:
    """Return arguments that name the process of a delivery that has not started it."""
    undelivered(world)
    (delivery,) = world.store.triggers.undelivered(runs_only=True)
    return {"process_id": delivery.process_id}


def undelivered(world: World) -> Mapping[str, Any]:
    """Return arguments of a wait that ends at once, because a delivery of a run is due."""
    draft = SubscriptionDraft(source_type="cron", source_key="runs", target=Run("report"))
    world.store.triggers.subscribe(draft)
    world.store.triggers.emit("cron", "runs", idempotency_key="1")
    return {"timeout_ms": 0}


class Past:
    """A clock of long ago."""

    def now_ms(self) -> int:
        """Return a time before every other."""
        return 1_000_000


SCHEDULES = [
    Call(
        "schedules.put",
        lambda _: {"name": "nightly", "cron": "0 3 * * *", "tz": "Europe/Vienna", "work": work()},
        f"name:id cron:id tz:id {parts('work', WORK)}",
    ),
    Call(
        "schedules.put",
        lambda _: {"name": "nightly", "cron": "0 3 * * *", "run": Run("report", "2", {})},
        "run:record? run.kind:id run.version:id run.args:document",
        variant=" of a run",
    ),
    Call(
        "triggers.undelivered",
        lambda _: {"reserved_until_ms": 1, "runs_only": False, "limit": 1},
        f"reserved_until_ms:whole runs_only:flag {PAGE}",
    ),
    Call(
        "triggers.undelivered", lambda _: {"session_id": "chat", "limit": 1}, "session_id:id?", variant=" of a session"
    ),
    Call("triggers.failed", lambda _: {"session_id": "chat", "limit": 1}, f"session_id:id? {PAGE}"),
    Call("triggers.redeliver", redelivered, "process_id:id"),
    Call("maintenance.explain_schedule", named(), "name:id"),
    Call("triggers.wait_undelivered", undelivered, "timeout_ms:timeout"),
    Call("schedules.get", named(), "name:id"),
    Call("schedules.list", lambda _: {"limit": 1}, PAGE),
    Call("schedules.pause", named(), "name:id"),
    Call("schedules.resume", named(paused=True), "name:id"),
    Call("schedules.run_now", requested, "name:id idempotency_key:id?"),
    Call("schedules.remove", named(), "name:id"),
    Call("schedules.fire_next", lambda _: {}, ""),
    Call("schedules.wait_next", due, "timeout_ms:timeout"),
    Call(
        "schedules.restore",
        moved,
        "schedule:record schedule.name=name:id schedule.cron=cron:id schedule.tz=tz:id schedule.paused:flag "
        "schedule.next_tick_ms:whole? schedule.last_tick_ms:whole? schedule.seen_ms:whole schedule.failure:text? "
        "schedule.created_at_ms:whole schedule.updated_at_ms:whole",
    ),
]
