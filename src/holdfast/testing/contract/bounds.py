"""Bounds: evaluating a declaration on a payload takes bounded time and memory, or is refused with nothing written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.events import Const, EventType, Payload, Pointer, Template, TerminalRule, WakeRule
from holdfast.processes import External
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.triggers import SubscriptionDraft, registration_for

CHAT = holdfast.Scope("chat")

DOUBLINGS = 24
"""Some 16 million visits: a second of work if they are not refused, and not a hang."""


def doubling(join: str, *, place: str = "$defs", leaf: Any = True) -> dict[str, Any]:
    """Return a schema each part of which applies the part before it twice."""
    parts: dict[str, Any] = {"0": leaf}
    for number in range(1, DOUBLINGS + 1):
        before = {"$ref": f"#/{place}/{number - 1}"}
        parts[str(number)] = {"if": before, "then": before} if join == "if" else {join: [before, before]}
    return {place: parts, "$ref": f"#/{place}/{DOUBLINGS}"}


def nested(levels: int) -> Any:
    """Return objects inside objects."""
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

HEAVY: dict[str, tuple[Any, Any]] = {
    "enum": ({"items": {"enum": [[0] * 300 + [n] for n in range(300)]}}, [[0] * 300 + [299]] * 150),
    "const": ({"items": {"const": [0.5] * 20_000}}, [[0.5] * 20_000] * 40),
    "uniqueItems": (
        {"uniqueItems": True},
        [[[1] if number >> bit & 1 else 1 for bit in range(12)] for number in range(2**12)],
    ),
    "multipleOf": ({"items": {"multipleOf": 1e-100}}, [1.5e100] * 4_000),
    "minimum": ({"items": {"minimum": 1e-200}}, [1e-200] * 4_000),
    "a pattern that goes back": ({"items": {"not": {"pattern": "(a+)++b"}}}, ["a" * 5_000] * 30),
    "a pattern of many states": ({"pattern": "(?:0|1)*1(?:0|1){2000}[^01]{2}"}, "0110101" * 10_000),
    "an unknown keyword": ({"items": {"sorted": True}}, [0] * 100_000),
}
"""Payloads that take about a second of work if they are not refused, each by one keyword."""

LARGE: dict[str, Any] = {
    "patterns": {"allOf": [{"pattern": f"\\pL{{{20 + number}}}"} for number in range(10)]},
    "a count of counts": {"pattern": "(?:a{500}){500}"},
    "patterns of names": {"patternProperties": {f"\\pL{{{20 + number}}}": True for number in range(10)}},
    "options": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "enum": [[[1] if number >> bit & 1 else 1 for bit in range(12)] for number in range(2**12)],
    },
}
"""Schemas that take about a second, or much memory, to compile."""

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
"""A union whose variants all contain the union: cheap as long as the tag is checked first."""


def tagged(levels: int) -> Any:
    """Return a value of that union. Its tag comes last."""
    if levels == 0:
        return {"type": VARIANTS[0]}
    return {"left": tagged(levels - 1), "right": {"type": VARIANTS[-1]}, "type": VARIANTS[levels % len(VARIANTS)]}


def declare(store: BlockingStore, *types: EventType) -> None:
    """Register a process that emits these types, and `plain`."""
    store.processes.register(
        holdfast.ProcessRegistration("build", External(), event_types=[*types, EventType("plain")], wake_target=CHAT)
    )


def subscription(schema: Any) -> SubscriptionDraft:
    """Return a subscription to payloads of this schema."""
    return SubscriptionDraft(source_type="timer", source_key="k", target=External(), payload_schema=schema)


class BoundsContract(Contract):
    """A backend passes if every case does."""

    @pytest.mark.parametrize("kind", EXPONENTIAL)
    def test_a_payload_that_takes_exponential_work_is_refused_each_time(
        self, bench: Bench, store: BlockingStore, kind: str
    ) -> None:
        schema, payload = EXPONENTIAL[kind]
        declare(store, EventType("odd", schema=schema))
        for _ in range(2):  # compiled once, and weighed each time
            with refused(bench, holdfast.InvalidRequest) as info:
                store.events.append("build", "odd", payload)
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == "payload"
            assert info.value.limit is not None
        assert store.events.append("build", "plain").event.sequence == 1

    @pytest.mark.parametrize("keyword", HEAVY)
    def test_a_payload_that_one_keyword_works_long_for_is_refused(
        self, bench: Bench, store: BlockingStore, keyword: str
    ) -> None:
        schema, payload = HEAVY[keyword]
        declare(store, EventType("odd", schema=schema))
        with refused(bench, holdfast.InvalidRequest) as info:
            store.events.append("build", "odd", payload)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "payload"
        assert info.value.limit is not None
        assert store.events.append("build", "odd", [] if isinstance(payload, list) else 1).event.sequence == 1

    @pytest.mark.parametrize("part", LARGE)
    def test_a_schema_that_takes_long_to_compile_is_not_declared(
        self, bench: Bench, store: BlockingStore, part: str
    ) -> None:
        with refused(bench, holdfast.InvalidRequest) as info:
            declare(store, EventType("odd", schema=LARGE[part]))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "event_types[0].schema"
        with refused(bench, holdfast.InvalidRequest):
            store.triggers.subscribe(subscription(LARGE[part]))

    def test_values_that_no_schema_applies_to_take_no_work(self, store: BlockingStore) -> None:
        lengths = [{"maxItems": 10**6 + number} for number in range(300)]
        declare(store, EventType("long", schema={"allOf": lengths}))
        assert store.events.append("build", "long", [0] * 500_000).event.sequence == 1

    def test_a_payload_of_numbers_that_take_long_to_read_is_refused(self, bench: Bench, store: BlockingStore) -> None:
        declare(store)
        with refused(bench, holdfast.InvalidRequest) as info:
            store.events.append("build", "plain", [1e300] * 10_001)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, info.value.limit) == ("payload", 10_000)
        payload = [1e300] * 10_000 + ["1e300"] * 10_000
        assert store.events.append("build", "plain", payload).event.payload == payload

    def test_a_dedupe_key_is_as_long_as_a_text_may_be(self, bench: Bench) -> None:
        store = bench.open(limits=holdfast.Limits(text_bytes=1_000))
        store.sessions.create("chat")
        wake = WakeRule(Const("look"), dedupe=Payload())
        declare(store, EventType("news", wake=wake))
        with refused(bench, holdfast.InvalidRequest) as info:
            store.events.append("build", "news", "é" * 500 + "x")
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, info.value.limit) == ("payload", 1_000)
        assert "dedupe" in str(info.value)
        longest = store.events.append("build", "news", "é" * 500).wake
        assert longest is not None
        assert longest.dedupe_key == "é" * 500

    def test_a_payload_that_shares_its_parts_is_refused_before_it_is_written_out(
        self, bench: Bench, store: BlockingStore
    ) -> None:
        """A few objects that would encode to more bytes than any machine has: in one payload, or in many together."""
        payload: Any = 0
        for _ in range(60):
            payload = [payload, payload]
        declare(store, EventType("odd"))
        session = store.sessions.create("chat")
        calls: dict[str, Callable[[], object]] = {
            "payload": lambda: store.events.append("build", "odd", payload),
            "nodes[0].payload": lambda: session.add_nodes([holdfast.Node("n", payload=payload)]),
            "config": lambda: session.commit(holdfast.Commit(config={"a": payload})),
            "draft.payloads": lambda: store.queue.enqueue(
                holdfast.WorkDraft(session_id="chat", payloads=["x" * 2_000_000] * 10)
            ),
        }
        for field, call in calls.items():
            with refused(bench, holdfast.InvalidRequest) as info:
                call()
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert (info.value.field, info.value.limit) == (field, 16 << 20)

    def test_a_deep_value_of_a_tagged_union_is_accepted(self, bench: Bench, store: BlockingStore) -> None:
        declare(store, EventType("tree", schema=TAGGED))
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
            declare(store, EventType("odd", schema=schema))
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
            registration_for(delivery)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "payload"

    @pytest.mark.parametrize("part", ["input", "dedupe", "when", "outcome"])
    def test_a_template_is_filled_within_a_bound(self, bench: Bench, store: BlockingStore, part: str) -> None:
        within = Template("{a}" * 200, {"a": Payload()})
        bomb = Template("{b}" * 200, {"b": within})
        odd = {
            "input": EventType("odd", wake=WakeRule(bomb)),
            "dedupe": EventType("odd", wake=WakeRule(Payload(), dedupe=bomb)),
            "when": EventType("odd", wake=WakeRule(Payload(), when=bomb)),
            "outcome": EventType("odd", terminal=TerminalRule("completed", bomb)),
        }[part]
        declare(store, odd)
        with refused(bench, holdfast.InvalidRequest) as info:
            # 16,000 characters become 640 million.
            store.events.append("build", "odd", "x" * 16_000, replay_key="1")
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, info.value.limit) == ("payload", 16 << 20)
        assert store.events.append("build", "plain").event.sequence == 1

    def test_a_field_that_a_template_does_not_name_is_not_looked_at(self, store: BlockingStore) -> None:
        fields: dict[str, Any] = {f"unused-{number}": Payload() for number in range(500)}
        fields |= {"used": Pointer("/a"), "lost": Pointer("/b")}
        declare(store, EventType("news", wake=WakeRule(Template("{used}", fields))))
        wake = store.events.append("build", "news", {"a": "short", "rest": "x" * 100_000}).wake
        assert wake is not None
        assert wake.input == "short"

    def test_a_declaration_of_very_many_selectors_is_refused(self, bench: Bench, store: BlockingStore) -> None:
        # Each holds the one before it twice: 40 objects that would become a trillion.
        template = Template("{a}", {"a": Payload()})
        for _ in range(40):
            template = Template("{a}{b}", {"a": template, "b": template})
        with refused(bench, holdfast.InvalidRequest) as info:
            declare(store, EventType("odd", wake=WakeRule(template)))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field.startswith("event_types[0].wake.input.fields")

    def test_the_declarations_of_one_process_are_bounded_together(self, bench: Bench, store: BlockingStore) -> None:
        limits = holdfast.Limits(document_bytes=10_000)
        wake = WakeRule(Const("x" * 6_000))
        with refused(bench, holdfast.InvalidRequest) as info:
            declare(bench.open(limits=limits), *(EventType(name, wake=wake) for name in ("first", "second")))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, info.value.limit) == ("event_types[1]", 10_000)
