"""The wrong values for each kind of argument, and a store with one of everything to try them on."""

from __future__ import annotations

import array
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from inspect import Parameter, signature
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import msgspec

import holdfast
from holdfast.attachments import AttachmentRef
from holdfast.blocking import BlockingStore, Session
from holdfast.events import EventType, Payload, WakeRule
from holdfast.leases import Lease, OnProcess, OnSession
from holdfast.processes import Completed, External
from holdfast.sessions import AgentFrame, Ref, Root
from holdfast.testing.contract.bench import Bench
from holdfast.triggers import SubscriptionDraft, TriggerDelivery

LARGEST = 2**63 - 1
DAY_MS = 24 * 3600 * 1000


def deep(levels: int, kind: type[list[Any]] | type[dict[str, Any]] = list) -> Any:
    """Return a document of nested containers: `deep(1)` is `[]`."""
    value: Any = kind()
    for _ in range(levels - 1):
        value = [value] if kind is list else {"in": value}
    return value


def same(left: object, right: object) -> bool:
    """Return whether two documents are equal in value and type, all the way down, in any order of keys."""
    exact = alike(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        first, second = cast("dict[str, object]", left), cast("dict[str, object]", right)
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(left, list) and isinstance(right, list):
        pair = cast("list[object]", left), cast("list[object]", right)
        return len(pair[0]) == len(pair[1]) and all(same(a, b) for a, b in zip(*pair, strict=True))
    return exact


def alike(left: object, right: object) -> bool:
    """Return whether two values are equal in value and type, with -0.0 apart from 0.0."""
    return type(left) is type(right) and repr(left) == repr(right)


def shown(value: object) -> str:
    """Return a short name of a wrong value."""
    try:
        return f"{type(value).__name__} {ascii(value)[:60]}"
    except RecursionError:
        return f"a deep {type(value).__name__}"


def endless() -> list[Any]:
    """Return a list that contains itself."""
    value: list[Any] = []
    value.append(value)
    return value


NOT_TEXT: tuple[object, ...] = (7, 1.5, True, b"text", object(), ["text"], {})
NOT_A_RECORD: tuple[object, ...] = (7, "text", b"bytes", object(), {}, [], {"id": "x"})
NAN, INFINITY = float("nan"), float("inf")


def wholes(least: int = 0, most: int = LARGEST) -> tuple[object, ...]:
    """Return values that are not a whole number from `least` to `most`."""
    return (least - 1, most + 1, -(2**63) - 1, 2**63, 2**64, True, 1.5, NAN, "1", b"1", object(), [1])


WRONG: dict[str, tuple[object, ...]] = {
    "id": (*NOT_TEXT, "", " ", "\t\n", "a\0b", "\ud800", "i" * 513, "i" * 10_240, "é" * 257),
    "node_id": (*NOT_TEXT, " ", "\t\n", "a\0b", "\ud800", "i" * 513, "i" * 10_240, "é" * 257),
    "frame": (*NOT_TEXT, " ", "a\0b", "\ud800", "i" * 513),
    "text": (*NOT_TEXT, "a\0b", "\ud800", "t" * 65_537),
    "label": (*NOT_TEXT, "a\0b", "\ud800", "t" * 257),
    "message": (*NOT_TEXT, "\ud800"),
    "whole": wholes(),
    "whole1": wholes(1),
    "ttl": wholes(1, 7 * DAY_MS),
    "page": wholes(1, 1_000),
    "delay": wholes(0, 7 * DAY_MS),
    "small": wholes(-(2**15), 2**15 - 1),
    "timeout": wholes(0, 365 * DAY_MS),
    "at": (True, 1.5, b"n1", object(), [1], "", " ", "a\0b", "\ud800", "i" * 513, 0, -1, 2**63),
    "flag": (0, 1, "yes", b"", object(), []),
    "word": ("", "no such word", 7, b"idle", object(), ["idle"], {}),
    "record": NOT_A_RECORD,
    "callback": (7, "text", b"bytes", True, object(), [], {}),
    "sequence": (7, "text", b"bytes", {}, {"a"}, iter("ab"), object()),
    "mapping": (7, "text", b"bytes", [("a", 1)], object()),
    "bytes": (7, "text", [1, 2], {}, object()),
    "token": (7, b"token", "", "é", "x" * 129, object()),
    "cursor": (
        7, b"x", object(), ["x"], "", "garbage", "é", "====", "W10", "e30", "WyJzZXNzaW9ucyIsIC0xXQ", "\ud800", "\0",
    ),
    "place": (-1, 2**63, True, 1.5, b"x", object(), ["x"], "", "garbage", "W10", "WyJzZXNzaW9ucyIsIC0xXQ", "\ud800"),
    "document": (
        NAN, INFINITY, -INFINITY, [NAN], {"a": {"b": INFINITY}}, 2**64, -(2**63) - 1, [10**400], 1j,
        b"bytes", {"a": bytearray()}, (1, 2), {"a": (1,)}, {1: 2}, {"a": {None: 1}}, {True: 1}, {1, 2}, object(),
        "\ud800", {"a": ["\udfff"]}, {"\ud800": 1}, Root(), Path("x"),
        deep(65), deep(100), deep(100, dict), deep(5_000), endless(),
    ),
    "args": (NAN, 2**64, b"bytes", {"a": (1,)}, {1: 2}, object(), "\ud800", deep(65), deep(5_000), endless()),
    "component": (NAN, (1, 2), {1: 2}, "\ud800", object(), deep(65), Ref("x"), Ref("json-sha256:00")),
    "ref": (7, b"x", "", "x", "json-sha256:" + "g" * 64, "text-sha256:" + "0" * 64, object()),
    "schema": (7, "text", [], NAN, {"type": 12}, {"$ref": "https://example.org/x"}, {"pattern": "("}, b"{}", object()),
    "pointer": (*NOT_TEXT, "a", "a/b", "\0", "\ud800"),
    "signal": (*NOT_TEXT, "", " ", "a b", "a/b", "é", "a\n", "a\0", "s" * 513),
}  # fmt: skip
WRONG["document_or_bytes"] = tuple(value for value in WRONG["document"] if not isinstance(value, bytes))


class World:
    """A store with one of everything, each made when a call first needs it."""

    def __init__(self, store: BlockingStore) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    @cached_property
    def session(self) -> Session:
        session = self.store.sessions.create("chat")
        session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("n1", payload="hi")], leaf="n1")))
        return session

    @cached_property
    def unbound(self) -> Session:
        return self.store.sessions.unbound()

    @cached_property
    def batch(self) -> holdfast.WorkBatch:
        return self.store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1], source_key="batch"))

    @cached_property
    def claim(self) -> holdfast.WorkClaim:
        batch = self.store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        claim = self.store.queue.claim_exactly("chat", [batch.batch_id], owner_id="w1")
        assert claim is not None
        return claim

    @cached_property
    def lease(self) -> Lease:
        return self.store.leases.claim(OnSession("chat"), owner_id="w1")

    @cached_property
    def process_lease(self) -> Lease:
        return self.store.leases.claim(OnProcess(self.process), owner_id="w1")

    @cached_property
    def process(self) -> str:
        kinds = [
            EventType("news", wake=WakeRule(input=Payload())),
            EventType("signal.go"),
        ]
        self.store.processes.register(holdfast.ProcessRegistration("job", External(), event_types=kinds))
        self.store.events.append("job", "news", "one")
        return "job"

    @cached_property
    def ended(self) -> str:
        self.store.processes.register(holdfast.ProcessRegistration("ended", External()))
        self.store.processes.complete("ended", Completed())
        return "ended"

    @cached_property
    def granted(self) -> str:
        self.store.grants.grant(holdfast.Scope("chat"), self.process)
        return self.process

    @cached_property
    def delivery(self) -> TriggerDelivery:
        self.store.triggers.subscribe(SubscriptionDraft(source_type="cron", source_key="daily", target=External()))
        return self.store.triggers.emit("cron", "daily", idempotency_key="monday").deliveries[0]

    @cached_property
    def attachment(self) -> AttachmentRef:
        return self.session.attachments.put(b"bytes")


class Call(msgspec.Struct, frozen=True):
    """A right call, and `path:kind` of every part that can be wrong; a `?` behind the kind allows None.

    A refusal names the path of the part, without the prefix `drops`; `path=field:kind` gives it another name.
    """

    method: str
    arguments: Callable[[World], Mapping[str, Any]]
    parts: str
    drops: str = ""
    variant: str = ""

    def prepare(self, world: World) -> Mapping[str, Any]:
        """Create everything that the call needs, and return the arguments."""
        attrgetter(self.method)(world)
        return self.arguments(world)

    def invoke(self, world: World, arguments: Mapping[str, Any]) -> object:
        """Run the call. An iterator is run to its end."""
        method = attrgetter(self.method)(world)
        named = dict(arguments)
        spread = [name for name, one in signature(method).parameters.items() if one.kind is Parameter.VAR_POSITIONAL]
        listed = [value for name in spread for value in named.pop(name)]
        result: object = method(*listed, **named)
        return list(cast("Iterator[object]", result)) if isinstance(result, Iterator) else result


STORES = frozenset({
    "sessions.create", "sessions.fork", "session.save_meta", "session.set_labels", "session.tombstone",
    "session.add_nodes", "session.commit",
    "session.append", "session.enqueue", "session.pause", "queue.set_limit", "queue.pause", "queue.restore",
    "unbound.commit", "session.attachments.put", "session.attachments.record_intent", "session.attachments.forget",
    "session.attachments.commit_refs", "queue.enqueue", "queue.claim", "queue.claim_exactly", "queue.give_back",
    "queue.cancel", "queue.claim_next", "queue.complete", "queue.complete_and_claim_next", "queue.fail", "queue.retry",
    "queue.drop", "processes.register", "processes.restore", "processes.set_external_ref", "processes.set_wait",
    "processes.complete", "processes.start", "processes.suspend", "processes.retry_later", "events.append",
    "events.signal", "events.request_cancel", "events.ack_wake", "grants.grant", "grants.transfer", "leases.claim",
    "leases.renew", "leases.release", "triggers.subscribe", "triggers.record", "triggers.emit", "triggers.mark_started",
    "triggers.mark_failed", "triggers.redeliver", "triggers.restore_occurrence", "queue.release", "leases.revoke",
    "processes.retry", "processes.complete_and_claim_next", "events.append_many",
    "schedules.put", "schedules.pause", "schedules.resume",
    "schedules.run_now", "schedules.remove", "schedules.restore", "artifacts.put", "artifacts.put_content",
    "workers.heartbeat",
})  # fmt: skip
"""Methods whose right call changes rows. Every other one reads, or has nothing to change."""


def accept(world: World, bench: Bench, call: Call, arguments: Mapping[str, Any]) -> None:
    """Make a right call, and check that it changes rows if and only if it should, and leaves a sound store."""
    before = bench.dump()
    call.invoke(world, arguments)
    assert (bench.dump() != before) == (call.method in STORES)
    assert world.store.maintenance.verify().findings == ()


class Target(msgspec.Struct, frozen=True):
    """One part of one call."""

    call: Call
    path: str
    field: str
    kind: str

    @property
    def wrong(self) -> tuple[object, ...]:
        """Return every value that must be refused here."""
        kind = self.kind.removesuffix("?")
        takes_none = self.kind.endswith("?") or kind in ("document", "document_or_bytes", "component", "args")
        return WRONG[kind] if takes_none else (None, *WRONG[kind])

    def __str__(self) -> str:
        return f"{self.call.method}{self.call.variant}({self.path})"


def replaced(value: Any, path: list[str], part: object) -> Any:
    """Return the value with one part replaced."""
    if not path:
        return part
    name, *rest = path
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        return {**fields, name: replaced(fields.get(name), rest, part)}
    if isinstance(value, list | tuple):
        items: list[Any] = [*value]
        items[int(name)] = replaced(items[int(name)], rest, part)
        return items
    return msgspec.structs.replace(value, **{name: replaced(getattr(value, name), rest, part)})


def with_wrong(arguments: Mapping[str, Any], path: str, part: object) -> Mapping[str, Any]:
    """Return the arguments of a call with one part replaced, by its path: `draft.payloads[0]`."""
    changed: Mapping[str, Any] = replaced(dict(arguments), re.findall(r"\w+", path), part)
    return changed


def parts(path: str, *kinds: str) -> str:
    """Return the parts of a record at a path, as `name:kind`; the record itself is `:kind`."""
    names = [name for line in kinds for name in line.split()]
    return " ".join(f"{path}{name}" if name.startswith((":", "[")) else f"{path}.{name}" for name in names)


def targets(calls: Sequence[Call]) -> list[Target]:
    """Return every part of every call."""
    found: list[Target] = []
    for call in calls:
        for part in call.parts.split():
            named, _, kind = part.partition(":")
            path, _, field = named.partition("=")
            found.append(Target(call, path, field or path.removeprefix(call.drops), kind))
    return found


ODD_IDS = [
    "a", "a/b", "/a/b", "a//b", "../a", ".", "..", "a'b", 'a"b', "a`b", "a;b", "a--b", "'; DROP TABLE sessions; --",
    "a%b", "a_b", "%", "_", "*", "a\\b", "\\", "a\nb", "a\tb", "a b", "a ", " a", "A", "é", "e\u0301", "\u00c5",
    "\u212b", "ß", "SS", "a\u2028", "\ufeffa", "\u202ea", "\u200b", "\U0001f600", "\U0010ffff", "\x01", "\x7f", "null",
    "None", "0", "00", "1e3", "true", "[]", "{}", "a:b", "a::b", "session:a", "batch:a", "claim:1:1", "group:a",
    "i" * 512, "é" * 256,
]  # fmt: skip
"""Legal ids, all different."""

ODD_DOCUMENTS: list[Any] = [
    "\0", "a\0b", {"\0": "\0"}, "", {}, [], {"": ""}, None, True, False, [None], 0, -1, 2**63 - 1, -(2**63), 2**63,
    2**64 - 1, 0.1, -0.0, 1e308, 5e-324, 1.0, "\u2028", "\U0010ffff", "\ufeff", "é", "e\u0301", "\x01\x1f\x7f",
    {"b": 1, "a": 2}, {"type": "success"}, "1", "null", "</script>", deep(64), deep(64, dict),
    {"node_id": 1, "parent": 2, "lease_token": 3, "expected_revision": 4},
]  # fmt: skip
"""Legal documents, which must come back unchanged."""


class Breach(msgspec.Struct, frozen=True):
    """A call that breaks a limit which was set lower than usual."""

    limits: dict[str, int]
    method: str
    arguments: Mapping[str, Any]
    field: str

    def __str__(self) -> str:
        return f"{next(iter(self.limits))} of {self.method}({self.field})"


STATE = holdfast.Checkpoint(turn_state=b"1234")
FRAMES = [AgentFrame("a"), AgentFrame("b")]
BREACHES = [
    Breach({"id_bytes": 3}, "sessions.open", {"session_id": "éé"}, "session_id"),
    Breach({"text_bytes": 3}, "sessions.create", {"session_id": "s", "name": "éé"}, "name"),
    Breach(
        {"document_bytes": 9},
        "session.add_nodes",
        {"nodes": [holdfast.Node("n", payload="12345678")]},
        "nodes[0].payload",
    ),
    Breach(
        {"component_bytes": 3}, "session.commit", {"commit": holdfast.Commit(checkpoint=STATE)}, "checkpoint.turn_state"
    ),
    Breach(
        {"commit_bytes": 9}, "session.commit", {"commit": holdfast.Commit(config="1234", checkpoint=STATE)}, "commit"
    ),
    Breach({"commit_nodes": 1}, "session.add_nodes", {"nodes": [holdfast.Node("n"), holdfast.Node("m")]}, "nodes"),
    Breach({"commit_nodes": 1}, "session.tombstone", {"node_ids": ["n", "m"]}, "node_ids"),
    Breach({"commit_items": 1}, "session.commit", {"commit": holdfast.Commit(frames=FRAMES)}, "frames"),
    Breach(
        {"commit_items": 1},
        "session.commit",
        {"commit": holdfast.Commit(usage=[holdfast.Usage("s", "m")] * 2)},
        "usage",
    ),
    Breach(
        {"batch_items": 1},
        "queue.enqueue",
        {"draft": holdfast.WorkDraft(session_id="s", payloads=[1, 2])},
        "draft.payloads",
    ),
    Breach({"attachment_bytes": 3}, "session.attachments.put", {"data": b"1234"}, "data"),
    Breach({"artifact_bytes": 3}, "artifacts.put_content", {"kind": "k", "data": b"1234"}, "data"),
    Breach(
        {"artifact_bytes": 31},
        "artifacts.put",
        {"kind": "k", "ref": "r", "data": memoryview(array.array("Q", [1, 2, 3, 4]))},
        "data",
    ),
    Breach({"page": 2}, "sessions.list", {"limit": 3}, "limit"),
    Breach({"labels": 1}, "sessions.create", {"session_id": "s", "labels": {"a": "1", "b": "2"}}, "labels"),
    Breach({"label_key_bytes": 1}, "sessions.list", {"labels": {"é": ""}}, "labels key"),
    Breach({"label_value_bytes": 3}, "sessions.list", {"labels": {"a": "éé"}}, "labels['a']"),
    Breach({"ttl_ms": 2}, "queue.claim", {"session_id": "s", "owner_id": "w", "ttl_ms": 3}, "ttl_ms"),
]
"""Each call succeeds when its limit is three higher."""
