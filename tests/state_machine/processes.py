"""Steps on processes, their events and handles, triggers, artifacts, and the store as a whole."""

from __future__ import annotations

from typing import Any

from tests.state_machine import values
from tests.state_machine.machine import Machine, rule
from tests.state_machine.values import PROCESSES, SCOPES

import holdfast
from holdfast.events import EventDraft
from holdfast.grants import HandleDescriptor
from holdfast.leases import OnProcess
from holdfast.processes import BySession, Cancelled, Completed, ExternalRef, Failed, Host, SignalWait
from holdfast.triggers import Emission, registration_for

TYPES = (*(kind.name for kind in values.EVENT_TYPES), "process.completed", "undeclared")
OUTCOMES = (
    Completed({"ok": 1.0}),
    Failed("broken", raw=[1]),
    Cancelled("enough"),
)


def process_id(m: Machine) -> str:
    return m.pick(PROCESSES[:3]) if m.chance(0.85) else m.pick((*PROCESSES, "nobody"))


def payload(m: Machine) -> Any:
    return m.pick(values.GOOD_DOCUMENTS[-3:-1]) if m.chance(0.8) else values.document(m)


@rule(6, first=3)
def register(m: Machine) -> None:
    m.call("processes.register", values.registration(m))


@rule(14)
def append(m: Machine) -> None:
    kind = m.pick(TYPES[:4]) if m.chance(0.7) else m.pick(TYPES)
    m.call(
        "events.append",
        process_id(m),
        kind,
        payload(m),
        replay_key=m.maybe(0.3, ("r1", "r2", "")),
        wake_target=m.maybe(0.2, SCOPES),
    )


@rule(6)
def append_many(m: Machine) -> None:
    kinds = TYPES[:1] if m.chance(0.6) else TYPES
    drafts = [EventDraft(m.pick(kinds), payload(m), m.maybe(0.3, ("r1", "r4", "r5"))) for _ in range(m.pick((1, 2, 3)))]
    m.call("events.append_many", process_id(m), drafts)


@rule(3)
def signal(m: Machine) -> None:
    if m.chance(0.6):
        m.call("events.signal", process_id(m), m.pick(("go", "stay")), payload(m), replay_key=m.maybe(0.3, ("r3",)))
    else:
        m.call("events.request_cancel", process_id(m), reason=m.maybe(0.5, ("late", "ä")))


@rule(4)
def complete(m: Machine) -> None:
    name = process_id(m)
    lease = values.lease(m, OnProcess(name)) if m.chance(0.5) else None
    m.call("processes.complete", name, m.pick(OUTCOMES), lease=lease)


@rule(4)
def change_process(m: Machine) -> None:
    name, kind = process_id(m), m.rng.random()
    if kind < 0.3:
        m.call("processes.set_external_ref", name, ExternalRef("ci", m.pick(("1", "2")), values.document(m)))
    elif kind < 0.6:
        wait = SignalWait(m.pick(("go", "ä")), ordinal=m.pick((1, 1, 2, 0)), since_ms=m.maybe(0.3, (5,)))
        m.call("processes.set_wait", name, wait)
    else:
        m.call("processes.clear_wait", name)


@rule(6)
def read_processes(m: Machine) -> None:
    kind = m.rng.random()
    if kind < 0.3:
        m.call("processes.get", process_id(m))
    elif kind < 0.5:
        m.call("processes.wait", process_id(m), timeout_ms=0)
    elif kind < 0.6:
        m.pages("processes.ended", since_ms=m.pick((0, m.clock.now_ms() - 3000)))
    else:
        m.pages(
            "processes.list",
            status=m.pick(("running", "completed", "failed", "cancelled", "any")),
            waiting=m.maybe(0.3, (True, False)),
            definition=m.maybe(0.2, ({"of": "p2"}, {"of": "p3"})),
            started_by=m.maybe(0.3, ("s1", "s2")),
        )


@rule(8)
def read_events(m: Machine) -> None:
    name, kind, after = process_id(m), m.rng.random(), m.pick((0, 1, 2, 7, 2**63 - 1))
    if kind < 0.3:
        m.call("events.after", name, after, type=m.maybe(0.4, TYPES), limit=m.pick((1, 3, 50)))
    elif kind < 0.45:
        m.call("events.recent", name, limit=m.pick((1, 3, 50)))
    elif kind < 0.6:
        m.call("events.count", name, m.pick(TYPES), through=after)
    elif kind < 0.75:
        m.call("events.wakes", name, after=m.pick((0, 2)), limit=m.pick((1, 50)))
    elif kind < 0.9:
        m.call("events.wait_for", name, m.pick(TYPES[: m.pick((1, 2, 10))]), after=m.pick((0, 0, after)), timeout_ms=0)
    else:
        follow(m, name, m.pick((0, 2)))


def follow(m: Machine, name: str, after: int) -> None:
    def events(store: Any) -> Any:
        return lambda *args, **kwargs: list(store.events.follow(*args, **kwargs))

    m.everywhere(
        "events.follow", [events(side.stores[0]) for side in m.sides], (name,), {"after": after, "timeout_ms": 0}
    )


@rule(3)
def ack_wake(m: Machine) -> None:
    name = process_id(m)
    pending = m.call("events.wakes", name) if m.chance(0.7) else None
    m.call("events.ack_wake", name, m.pick(pending.items).sequence if pending else m.rng.randint(0, 8))


@rule(6)
def grants(m: Machine) -> None:
    name, kind = process_id(m), m.rng.random()
    if kind < 0.45:
        descriptor = HandleDescriptor(m.maybe(0.5, ("job",)), m.maybe(0.5, ("mine", "ä")))
        m.call("grants.grant", m.pick(SCOPES), name, descriptor)
    elif kind < 0.6:
        m.call("grants.revoke", m.pick(SCOPES), name)
    elif kind < 0.75:
        m.call("grants.transfer", m.pick(SCOPES), m.pick(SCOPES), m.some((*PROCESSES[:4], "nobody"), most=2))
    elif kind < 0.85:
        m.call("grants.has", m.pick(SCOPES), name)
    else:
        m.call("processes.forget_session", m.session_id())


@rule(3)
def list_grants(m: Machine) -> None:
    kind = m.rng.random()
    if kind < 0.35:
        m.pages("grants.list", m.pick(SCOPES))
    elif kind < 0.7:
        m.pages("grants.list_live", m.pick(SCOPES))
    else:
        m.pages("grants.of_process", process_id(m))


# Triggers.


@rule(4, first=2)
def subscribe(m: Machine) -> None:
    made = m.call("triggers.subscribe", values.subscription(m))
    if made is not None:
        m.known.subscriptions.append(made.handle)


@rule(7)
def fire(m: Machine) -> None:
    given = (m.pick(("cron", "hook")), m.pick(("d1", "d2")))
    key = m.pick(("i1", "i2", m.fresh("i")))
    method = m.pick(("record", "emit", "emit"))
    document = {"n": 1} if m.chance(0.85) else values.document(m)
    made = m.call(f"triggers.{method}", *given, idempotency_key=key, payload=document, source=m.maybe(0.1, ({"s": 1},)))
    if isinstance(made, Emission):
        m.known.deliveries.extend(made.deliveries)
        made = made.occurrence
    if made is not None:
        m.known.occurrences.append(made.occurrence_id)


@rule(5)
def deliver(m: Machine) -> None:
    if m.chance(0.3):
        reserved = m.call("triggers.reserve", m.maybe(0.95, m.known.occurrences) or "trigger:nobody")
        m.known.deliveries.extend(reserved or ())
        return
    delivery = m.maybe(1.0, m.known.deliveries)
    if delivery is None:
        return
    kind = m.rng.random()
    if kind < 0.4:
        try:
            registration = registration_for(delivery)
        except holdfast.InvalidRequest:
            return
        m.call("processes.register", registration)
    elif kind < 0.7:
        m.call("triggers.mark_started", delivery)
    else:
        m.call("triggers.mark_failed", delivery, "it does not fit")


@rule(4)
def read_triggers(m: Machine) -> None:
    if m.chance(0.4):
        m.pages("triggers.undelivered", reserved_until_ms=m.pick((2**63 - 1, m.clock.now_ms() - 500)))
        return
    m.pages(
        "triggers.list",
        session_id=m.maybe(0.3, ("s1", "s2")),
        host_only=m.chance(0.2),
        handle=m.maybe(0.1, (*m.known.subscriptions, "trigger:x")),
        name=m.maybe(0.1, ("nightly", "ä")),
        source_type=m.maybe(0.3, ("cron",)),
        source_key=m.maybe(0.2, ("d1",)),
        target=m.maybe(0.1, ({"d": 1},)),
        enabled=m.maybe(0.3, (True, False)),
    )


@rule(2)
def end_triggers(m: Machine) -> None:
    if m.chance(0.3):
        m.call("triggers.forget_session", m.session_id())
        return
    registrant = Host() if m.chance(0.5) else BySession(m.pick(SCOPES))
    m.call("triggers.cancel", m.maybe(0.95, m.known.subscriptions) or "trigger:99", registrant=registrant)


@rule(4)
def artifacts(m: Machine) -> None:
    kind, name, method = m.pick(("module", "env", "ä")), m.pick(("main", "other")), m.rng.random()
    if method < 0.35:
        m.call("artifacts.put", kind, name, m.pick(values.BODIES))
    elif method < 0.55:
        m.call("artifacts.put_content", kind, m.pick(values.BODIES))
    elif method < 0.6:
        m.call("artifacts.put", kind, f"{kind}:sha256:{'0' * 64}", b"other")
    elif method < 0.85:
        m.call("artifacts.get", kind, name)
    else:
        m.call("artifacts.delete", kind, name)


# The store as a whole.


@rule(2)
def tidy(m: Machine) -> None:
    kind = m.rng.random()
    if kind < 0.35:
        m.call("maintenance.vacuum", m.maybe(0.5, ("s1", "s2", "f1")))
    elif kind < 0.6:
        m.call("maintenance.collect_garbage")
    else:
        ages = (0, 500, 5_000)
        policy = holdfast.RetentionPolicy(
            keep_revisions=m.maybe(0.5, (1, 2, 5)),
            settled_batches_older_than_ms=m.maybe(0.3, ages),
            terminal_processes_older_than_ms=m.maybe(0.3, ages),
            occurrences_older_than_ms=m.maybe(0.3, ages),
        )
        m.call("maintenance.prune", policy, dry_run=m.chance(0.4), max_rows=m.maybe(0.3, (1, 3)))


@rule(2)
def survey(m: Machine) -> None:
    if m.chance(0.7):
        m.call("maintenance.stats")
        m.call("maintenance.diagnose", integrity=False)
        return
    report = m.call("maintenance.verify")
    assert report.ok, m.story(f"verification found {report.findings}")
