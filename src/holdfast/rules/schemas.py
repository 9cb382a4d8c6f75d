"""A payload fits a JSON Schema or the error says where not; a schema is compiled once and fetches nothing."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NoReturn

from holdfast import codec
from holdfast.errors import InvalidRequest
from holdfast.records.common import Document
from holdfast.records.limits import Limits
from holdfast.rules import checks

BACKTRACKING_STEPS = 100_000
"""How hard a pattern may try: a hostile one fails instead of running for ever."""


def check_schema(field: str, schema: Document, limits: Limits) -> None:
    """The schema is one that a validator can be made of."""
    encoded = checks.document(field, schema, limits)
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(field, "must be a JSON Schema: an object, True or False")
    try:
        _validator(encoded)
    except ValueError as error:
        raise InvalidRequest(field, f"is not a usable JSON Schema: {str(error).partition(chr(10))[0]}") from error


def require_valid(field: str, encoded: bytes, schema: Document) -> None:
    """The document fits the schema."""
    if schema in ({}, True):
        return
    payload = codec.decode_document(encoded, table="payload", key=field)
    for error in _validator(codec.encode_document(schema)).iter_errors(payload):
        where = "".join(f"/{part}" for part in error.instance_path)
        raise InvalidRequest(f"{field}{where}", error.message)


@lru_cache(maxsize=1024)
def _validator(encoded: bytes) -> Any:
    import jsonschema_rs  # only those who declare schemas pay for loading it

    schema = codec.decode_document(encoded, table="schema", key="payload")
    patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKING_STEPS)
    # Errors travel into logs: they name the place and the rule, and never the value.
    return jsonschema_rs.validator_for(schema, retriever=_fetch_nothing, pattern_options=patterns, mask="the value")


def _fetch_nothing(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside the schema, and nothing is fetched")
