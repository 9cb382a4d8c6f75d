"""Validate payloads against JSON Schemas, which are compiled once. Validation fetches nothing, and its time is bounded.

Compiling once does not lift the budget: each payload is weighed against the schema before it is validated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NoReturn

import jsonschema_rs
import msgspec

from holdfast import codec
from holdfast.errors import InvalidRequest
from holdfast.loop_budget import OWN_LOOP_BYTES, charge
from holdfast.records.common import Document
from holdfast.records.limits import MIB
from holdfast.rules.schema_cost import SchemaCost, cost_of, is_within, scalars_first, values_in
from holdfast.rules.schema_patterns import GOING_BACK

PATTERN_BYTES = 4 * MIB
"""The largest compiled pattern. The estimate refuses such a pattern first, unless it was wrong."""

MATCHER_BYTES = MIB // 4
"""The size of a matcher's state cache."""

VISITS = 50_000_000
"""The most visits of schemas to values that one payload may take: about a second of work."""

VISITS_A_VALUE = 16
"""A payload of very many values may take more visits in all, but no more than this for each value."""

VISITS_OF_AN_ERROR = 20_000
"""The most visits after which an error names the place of failure. Alternatives list the reasons of each of them."""

COUNTING_STEPS = 500_000
"""The most steps of counting the visits of one payload."""

VISITS_AT_ONCE = 2_000_000
"""Visits after which the validator returns, if it can, so that other threads may run: about 20 ms."""

LIST_KEYWORDS: Final = frozenset(
    {"$schema", "$comment", "$defs", "definitions", "title", "description", "type", "items"}
)
"""A list fits a schema of only these keywords exactly if each part of the list does."""

COMPILING_WEIGHT = 64
"""The work of compiling one byte of a schema, in bytes of text: 4 KB are as much as an event loop may do."""

KEPT_BYTES = 256 * MIB
"""Upper estimate of the memory of all cached compiled schemas."""

LONGEST_MESSAGE = 500


class Compiled(msgspec.Struct, frozen=True):
    """A compiled schema and its cost."""

    validator: Any
    cost: SchemaCost

    kept_bytes: int
    """Estimate of its memory."""


def compile_schema(field: str, encoded: bytes) -> Compiled:
    """Return the compiled schema. Refuse one that cannot be compiled."""
    try:
        return _compiled(encoded)
    except ValueError as error:
        raise InvalidRequest(field, f"is not a usable JSON Schema: {str(error).partition(chr(10))[0]}") from error


def validate(field: str, encoded: bytes, schema: Document) -> None:
    """Refuse a document that does not fit the schema, or that takes too much work to check."""
    compiled = _compiled(codec.encode_document(schema))
    cost = compiled.cost
    payload = codec.decode_document(encoded, table="payload", key=field)
    most = max(VISITS, VISITS_A_VALUE * values_in(encoded))
    visits = cost.most_work(encoded)
    is_known = visits <= most
    # Counting and validating continue to their end: on an event loop, only a little of either.
    charge(OWN_LOOP_BYTES if cost.leads_to_uneven else min(visits, OWN_LOOP_BYTES))
    if not is_known or cost.leads_to_uneven:
        left = most - visits if is_known else most
        if not is_within(cost, payload, most=left, most_steps=COUNTING_STEPS, only_uneven=is_known):
            problem = "takes too much work to validate: simplify the schema of its type, or send a smaller payload"
            raise InvalidRequest(field, problem, limit=most)
    if not is_known and b"{" in encoded:
        payload = scalars_first(payload)
    most = VISITS_OF_AN_ERROR if cost.graph.has_alternatives else most
    parts = list(_parts(payload, schema, visits))
    if visits > most or cost.leads_to_uneven:
        if all(compiled.validator.is_valid(part) for _, part in parts):
            return
        if not is_within(cost, payload, most=most, most_steps=COUNTING_STEPS, ends_early=False):
            raise InvalidRequest(field, "does not fit its schema, and finding the place would take too much work")
    for start, part in parts:
        _require_valid(field, part, compiled.validator, start)


def _parts(payload: Document, schema: Document, visits: int) -> Iterator[tuple[int, Document]]:
    """Yield a long list in parts that can be validated one by one, each with its first index; else the whole."""
    items: Any = payload
    keywords: Any = schema
    if not isinstance(payload, list) or not isinstance(schema, dict):
        yield 0, payload
        return
    can_be_parted = keywords.keys() <= LIST_KEYWORDS and isinstance(keywords.get("items", True), dict | bool)
    size = max(1, len(items) * VISITS_AT_ONCE // visits) if can_be_parted and visits > VISITS_AT_ONCE else len(items)
    for start in range(0, len(items), size) if items else (0,):
        yield start, items[start : start + size] if size < len(items) else items


def _require_valid(field: str, payload: Document, validator: Any, start: int) -> None:
    try:
        validator.validate(payload)  # stops at the first error: a list of all may take more room than the payload
    except jsonschema_rs.ValidationError as error:
        path: list[Any] = list(error.instance_path)
        if start and path:
            path[0] += start
        where = "".join(f"/{part}" for part in path)
        raise InvalidRequest(f"{field}{where}", error.message[:LONGEST_MESSAGE]) from error


_kept: dict[bytes, Compiled] = {}


def _compiled(encoded: bytes) -> Compiled:
    """Return the compiled schema. Raise `ValueError` with the reason if it cannot be compiled."""
    compiled = _kept.get(encoded)
    if compiled is None:
        charge(COMPILING_WEIGHT * len(encoded))
        compiled = _kept[encoded] = _compile(encoded)
        # Each step is one operation of the dict, so that threads may run them concurrently.
        while sum(one.kept_bytes for one in list(_kept.values())) > KEPT_BYTES:
            _kept.pop(next(iter(list(_kept)), b""), None)
    return compiled


def _compile(encoded: bytes) -> Compiled:
    schema = codec.decode_document(encoded, table="schema", key="payload")
    cost = cost_of(schema)
    patterns = jsonschema_rs.FancyRegexOptions(
        backtrack_limit=GOING_BACK, size_limit=PATTERN_BYTES, dfa_size_limit=MATCHER_BYTES
    )
    # Errors end up in logs: they name the place and the rule, never the value.
    validator = jsonschema_rs.validator_for(
        schema, retriever=_fetch_nothing, pattern_options=patterns, mask="the value"
    )
    graph = cost.graph
    kept = 20 * len(encoded) + 1_000 * len(graph.visits) + 100 * graph.states + 4 * MATCHER_BYTES * graph.patterns
    return Compiled(validator, cost, kept)


def _fetch_nothing(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside the schema, and nothing is fetched")
