"""Calls that compile JSON Schemas, and that validate payloads against them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.loop_gaps.calls import SMALL, Prepared, Size, messages, new_name, records

import holdfast
from holdfast.events import EventType
from holdfast.processes import External
from holdfast.rules.schemas import PATTERNS
from holdfast.triggers import SubscriptionDraft

RECORD = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "name": {"type": "string", "maxLength": 10},
        "next": {"type": ["null", "integer"]},
    },
    "required": ["id"],
}
CHOICE = {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "boolean"}, {"type": "integer"}]}
MESSAGE = {"type": "object", "properties": {"role": {"enum": ["user", "tool"]}, "content": {"pattern": "^[a-z, ]+$"}}}


def large_schema(size: Size) -> dict[str, Any]:
    """Return a schema that no other call compiles: a compiled schema is kept."""
    count = PATTERNS if size is not SMALL else PATTERNS // 2
    name = new_name("name")
    return {"properties": {f"p{number}": {"pattern": f"^{name}[a-z]*{number}$"} for number in range(count)}}


async def register(store: holdfast.Store, size: Size) -> Prepared:
    kinds = [EventType("progress", schema=large_schema(size))]
    given = holdfast.ProcessRegistration(new_name("process"), External(), event_types=kinds)
    return lambda: store.processes.register(given)


async def subscribe(store: holdfast.Store, size: Size) -> Prepared:
    draft = SubscriptionDraft(source_type="timer", source_key="k", payload_schema=large_schema(size), target=External())
    return lambda: store.triggers.subscribe(draft)


def appending(
    item: dict[str, Any], make: Callable[[int], Any]
) -> Callable[[holdfast.Store, Size], Awaitable[Prepared]]:
    """Append a payload that is a long list of items."""

    async def prepare(store: holdfast.Store, size: Size) -> Prepared:
        name = new_name("process")
        kinds = [EventType("progress", schema={"type": "array", "items": item})]
        await store.processes.register(holdfast.ProcessRegistration(name, External(), event_types=kinds))
        payload = make(size.document)
        return lambda: store.events.append(name, "progress", payload)

    return prepare


SCHEMAS: dict[str, Callable[[holdfast.Store, Size], Awaitable[Prepared]]] = {
    "processes.register with many patterns": register,
    "triggers.subscribe with many patterns": subscribe,
    "events.append of validated records": appending(RECORD, records),
    "events.append of validated choices": appending(CHOICE, lambda size: [1] * (size // 2)),
    "events.append of validated messages": appending(MESSAGE, messages),
}
