"""Bounds: what a declaration makes of a payload ends in bounded time and memory, or is refused with nothing written."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.contract.bench import Bench, Contract, refused

CHAT = holdfast.Scope("chat")

DOUBLINGS = 24
"""So many doublings are some 16 million visits: a second of work if they are not refused, and not a hang."""


def doubling(join: str, *, place: str = "$defs", leaf: Any = True) -> dict[str, Any]:
    """A schema each part of which applies the part before it twice."""
    parts: dict[str, Any] = {"0": leaf}
    for number in range(1, DOUBLINGS + 1):
        before = {"$ref": f"#/{place}/{number - 1}"}
        parts[str(number)] = {"if": before, "then": before} if join == "if" else {join: [before, before]}
    return {place: parts, "$ref": f"#/{place}/{DOUBLINGS}"}


def nested(levels: int) -> Any:
    """Objects inside objects."""
    inner: Any = {}
    for _ in range(levels):
        inner = {"x": inner}
    return inner


AGAIN = {"$ref": "#"}
EXPONENTIAL: dict[str, tuple[dict[str, Any], Any]] = {
    "all of": (doubling("allOf"), {}),
    "any of": (doubling("anyOf", leaf={"type": "string"}), {}),
    "one of": (doubling("oneOf", leaf={"type": "string"}), {}),
    "if": (doubling("if"), {}),
    "outside of the definitions": (doubling("allOf", place="x-parts"), {}),
    "by the depth of the payload": ({"properties": {"x": {"allOf": [AGAIN, AGAIN]}}}, nested(DOUBLINGS)),
    "by patterns of names": ({"patternProperties": {"": AGAIN, "x": AGAIN}}, nested(DOUBLINGS)),
}

VARIANTS = [f"variant-{number}" for number in range(12)]
TAGGED: dict[str, Any] = {
    "oneOf": [
        {
            "required": ["type"],
            "properties": {"left": AGAIN, "right": AGAIN, "type": {"const": name}},
        }
        for name in VARIANTS
    ]
}
"""A union whose variants all contain the union: cheap as long as the tag is looked at first."""


def tagged(levels: int) -> Any:
    """A value of that union. Its tag comes last."""
    if levels == 0:
        return {"type": VARIANTS[0]}
    return {"left": tagged(levels - 1), "right": {"type": VARIANTS[-1]}, "type": VARIANTS[levels % len(VARIANTS)]}


def declare(store: BlockingStore, *types: holdfast.EventType) -> None:
    """A process that emits these types, and `plain`."""
    store.processes.register(
        holdfast.ProcessRegistration(
            "build", holdfast.External(), event_types=[*types, holdfast.EventType("plain")], wake_target=CHAT
        )
    )


def subscription(schema: Any) -> holdfast.SubscriptionDraft:
    """A subscription to payloads of this schema."""
    return holdfast.SubscriptionDraft(
        source_type="timer", source_key="k", target=holdfast.External(), payload_schema=schema
    )


class BoundsContract(Contract):
    """A backend passes if every case does."""

    @pytest.mark.parametrize("kind", EXPONENTIAL)
    def test_a_payload_that_takes_exponential_work_is_refused_each_time(
        self, bench: Bench, store: BlockingStore, kind: str
    ) -> None:
        schema, payload = EXPONENTIAL[kind]
        declare(store, holdfast.EventType("odd", schema=schema))
        for _ in range(2):  # compiled once, and weighed each time
            with refused(bench, holdfast.InvalidRequest) as info:
                store.events.append("build", "odd", payload)
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == "payload"
            assert info.value.limit is not None
        assert store.events.append("build", "plain").event.sequence == 1

    def test_a_deep_value_of_a_tagged_union_is_accepted(self, bench: Bench, store: BlockingStore) -> None:
        declare(store, holdfast.EventType("tree", schema=TAGGED))
        payload = tagged(25)
        assert store.events.append("build", "tree", payload).event.payload == payload
        with refused(bench, holdfast.InvalidRequest):
            store.events.append("build", "tree", payload | {"type": "none of them"})

    @pytest.mark.parametrize(
        "schema",
        [
            {"$ref": "#"},
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
            {"$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(300)} | {"300": True}, "$ref": "#/$defs/0"},
        ],
        ids=["itself", "a circle", "a long chain"],
    )
    def test_a_schema_whose_cost_is_not_known_is_not_declared(
        self, bench: Bench, store: BlockingStore, schema: Any
    ) -> None:
        with refused(bench, holdfast.InvalidRequest) as info:
            declare(store, holdfast.EventType("odd", schema=schema))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "event_types[0].schema"
        with refused(bench, holdfast.InvalidRequest) as info:
            store.triggers.subscribe(subscription(schema))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "payload_schema"

    def test_a_delivery_whose_payload_takes_exponential_work_is_refused(
        self, bench: Bench, store: BlockingStore
    ) -> None:
        schema, payload = EXPONENTIAL["all of"]
        store.triggers.subscribe(subscription(schema))
        [delivery] = store.triggers.emit("timer", "k", idempotency_key="1", payload=payload).deliveries
        with refused(bench, holdfast.InvalidRequest) as info:
            holdfast.registration_for(delivery)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "payload"

    @pytest.mark.parametrize("part", ["input", "dedupe", "when", "outcome"])
    def test_a_template_is_filled_within_a_bound(self, bench: Bench, store: BlockingStore, part: str) -> None:
        within = holdfast.Template("{a}" * 200, {"a": holdfast.Payload()})
        bomb = holdfast.Template("{b}" * 200, {"b": within})
        odd = {
            "input": holdfast.EventType("odd", wake=holdfast.WakeRule(bomb)),
            "dedupe": holdfast.EventType("odd", wake=holdfast.WakeRule(holdfast.Payload(), dedupe=bomb)),
            "when": holdfast.EventType("odd", wake=holdfast.WakeRule(holdfast.Payload(), when=bomb)),
            "outcome": holdfast.EventType("odd", terminal=holdfast.TerminalRule("completed", bomb)),
        }[part]
        declare(store, odd)
        with refused(bench, holdfast.InvalidRequest) as info:
            # 16,000 characters become 640 million.
            store.events.append("build", "odd", "x" * 16_000, replay_key="1")
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, info.value.limit) == ("payload", 16 << 20)
        assert store.events.append("build", "plain").event.sequence == 1

    def test_a_field_that_a_template_does_not_name_is_not_looked_at(self, store: BlockingStore) -> None:
        fields: dict[str, Any] = {f"unused-{number}": holdfast.Payload() for number in range(500)}
        fields |= {"used": holdfast.Pointer("/a"), "lost": holdfast.Pointer("/b")}
        declare(store, holdfast.EventType("news", wake=holdfast.WakeRule(holdfast.Template("{used}", fields))))
        wake = store.events.append("build", "news", {"a": "told", "rest": "x" * 100_000}).wake
        assert wake is not None
        assert wake.input == "told"

    def test_a_declaration_of_very_many_selectors_is_refused(self, bench: Bench, store: BlockingStore) -> None:
        # Each holds the one before it twice: 40 objects that would become a trillion.
        template = holdfast.Template("{a}", {"a": holdfast.Payload()})
        for _ in range(40):
            template = holdfast.Template("{a}{b}", {"a": template, "b": template})
        with refused(bench, holdfast.InvalidRequest) as info:
            declare(store, holdfast.EventType("odd", wake=holdfast.WakeRule(template)))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field.startswith("event_types[0].wake.input.fields")

    def test_the_declarations_of_one_process_are_bounded_together(self, bench: Bench, store: BlockingStore) -> None:
        limits = holdfast.Limits(document_bytes=10_000)
        wake = holdfast.WakeRule(holdfast.Const("x" * 6_000))
        with refused(bench, holdfast.InvalidRequest) as info:
            declare(bench.open(limits=limits), *(holdfast.EventType(name, wake=wake) for name in ("first", "second")))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, info.value.limit) == ("event_types[1]", 10_000)
