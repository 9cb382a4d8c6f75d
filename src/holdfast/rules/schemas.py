"""Check JSON Schemas and the payloads that they describe.

The validator is loaded with the first schema that some payload does not fit: it is an extra, and takes a while to load.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.errors import InvalidRequest
from holdfast.extras import needing
from holdfast.records.common import Document
from holdfast.records.limits import MIB, Limits
from holdfast.rules import checks

SCHEMA_BYTES = MIB
"""The longest schema."""

SUBSCHEMAS = 4_096
"""Most schemas inside one schema. Compiling takes more than linear time."""

PATTERN_STATES = 100_000
"""Largest size of all compiled patterns of a schema together: about 10 MB."""

PATTERNS = 1_000
"""Most different patterns in one schema. No other thread runs while they are compiled: 25 ms."""

PURPOSE = "validation against a JSON Schema"


class SchemaSize(NamedTuple):
    """The size of a schema: its length, the number of schemas inside, and the states of its compiled patterns."""

    bytes: int
    subschemas: int
    states: int


def check_schema(field: str, schema: Document, limits: Limits) -> SchemaSize:
    """Refuse a schema that cannot be applied, and return its size."""
    encoded = checks.document(field, schema, limits, most=min(limits.document_bytes, SCHEMA_BYTES))
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(field, "must be a JSON Schema: an object, True or False")
    if is_trivial(schema):
        return SchemaSize(len(encoded), 1, 0)
    with needing("schemas", field=field, purpose=PURPOSE):
        from holdfast.rules.schema_validation import compile_schema
    graph = compile_schema(field, encoded).cost.graph
    return SchemaSize(len(encoded), len(graph.visits), graph.states)


def is_trivial(schema: Document) -> bool:
    """Return True if every payload fits."""
    return schema in ({}, True)


def require_valid(field: str, encoded: bytes, schema: Document) -> None:
    """Refuse a document that does not fit the schema, or that takes too much work to check."""
    if is_trivial(schema):
        return
    with needing("schemas", field=field, purpose=PURPOSE):
        from holdfast.rules.schema_validation import validate
    validate(field, encoded, schema)
