"""A payload fits a JSON Schema or the error says where not; a schema is compiled once, fetches nothing and ends.

Compiling once does not lift the budget: each payload is weighed against the schema before it is validated.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NoReturn

import msgspec

from holdfast import codec
from holdfast.errors import InvalidRequest
from holdfast.records.common import Document
from holdfast.records.limits import MIB, Limits
from holdfast.rules import checks
from holdfast.rules.schema_cost import TEXT_UNIT, SchemaCost, cost_of, is_within, scalars_first

SCHEMA_BYTES = MIB
"""The longest schema."""

BACKTRACKING_STEPS = 100_000
"""The most steps of a pattern: a hostile one fails instead of running for ever."""

VISITS = 50_000_000
"""The most visits of schemas to values that one payload may take: about a second of work."""

VISITS_A_VALUE = 16
"""A payload of very many values may take more visits, if it takes no more than this for each of them."""

VISITS_OF_AN_ERROR = 20_000
"""The most visits after which an error says where the payload failed. Alternatives list the reasons of each of them."""

COUNTING_STEPS = 1_000_000
"""The most steps that the visits of one payload are counted for."""

SHORT_BYTES = 4 * 1024
SHORT_KEPT, LONG_KEPT = 256, 16
"""How many schemas are kept compiled: of long ones only a few, because each may take 20 MB."""

LONGEST_MESSAGE = 500


class Compiled(msgspec.Struct, frozen=True):
    """A schema that can be applied, and what it costs."""

    validator: Any
    cost: SchemaCost

    @property
    def size(self) -> int:
        """How many schemas it consists of."""
        return len(self.cost.graph.visits)


def check_schema(field: str, schema: Document, limits: Limits) -> tuple[int, int]:
    """Refuse a schema that cannot be applied. Returns its length in bytes, and how many schemas it consists of."""
    encoded = checks.document(field, schema, limits, most=min(limits.document_bytes, SCHEMA_BYTES))
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(field, "must be a JSON Schema: an object, True or False")
    try:
        compiled = _compiled(encoded)
    except ValueError as error:
        raise InvalidRequest(field, f"is not a usable JSON Schema: {str(error).partition(chr(10))[0]}") from error
    return len(encoded), compiled.size


def is_trivial(schema: Document) -> bool:
    """Return whether every payload fits."""
    return schema in ({}, True)


def require_valid(field: str, encoded: bytes, schema: Document) -> None:
    """Refuse a document that does not fit the schema, or that takes too much work to check."""
    if is_trivial(schema):
        return
    compiled = _compiled(codec.encode_document(schema))
    payload = codec.decode_document(encoded, table="payload", key=field)
    values = 1 + encoded.count(b",") + encoded.count(b"[") + encoded.count(b"{")
    most = max(VISITS, VISITS_A_VALUE * values)
    visits = compiled.cost.worst * (values + len(encoded) // TEXT_UNIT)
    if visits > most:
        payload = scalars_first(payload)
        if not is_within(compiled.cost, payload, most=most, most_steps=COUNTING_STEPS):
            problem = "takes too much work to validate: simplify the schema of its type, or send a smaller payload"
            raise InvalidRequest(field, problem, limit=most)
    if visits > (VISITS_OF_AN_ERROR if compiled.cost.graph.has_alternatives else most):
        if not compiled.validator.is_valid(payload):
            raise InvalidRequest(field, "does not fit its schema, and it would take too much work to say where")
        return
    _require_valid(field, payload, compiled.validator)


def _require_valid(field: str, payload: Document, validator: Any) -> None:
    import jsonschema_rs  # only those who declare schemas pay for loading it

    try:
        validator.validate(payload)  # up to the first error: a list of all of them may take more room than the payload
    except jsonschema_rs.ValidationError as error:
        where = "".join(f"/{part}" for part in error.instance_path)
        raise InvalidRequest(f"{field}{where}", error.message[:LONGEST_MESSAGE]) from error


def _compiled(encoded: bytes) -> Compiled:
    """Return the schema compiled. A `ValueError` says why it cannot be."""
    return (_compile_short if len(encoded) <= SHORT_BYTES else _compile_long)(encoded)


def _compile(encoded: bytes) -> Compiled:
    import jsonschema_rs  # only those who declare schemas pay for loading it

    schema = codec.decode_document(encoded, table="schema", key="payload")
    cost = cost_of(schema)
    patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKING_STEPS)
    # Errors travel into logs: they name the place and the rule, and never the value.
    validator = jsonschema_rs.validator_for(
        schema, retriever=_fetch_nothing, pattern_options=patterns, mask="the value"
    )
    return Compiled(validator, cost)


_compile_short = lru_cache(SHORT_KEPT)(_compile)
_compile_long = lru_cache(LONG_KEPT)(_compile)


def _fetch_nothing(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside the schema, and nothing is fetched")
