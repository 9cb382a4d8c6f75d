"""Decide which labels a session may have, and what a change of them writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.label_rows import LabelRow, SessionOrder
from holdfast.records.limits import Limits
from holdfast.rows import SessionRow
from holdfast.rules import checks

SEPARATORS = "=:"
"""Characters between key and value in a command line and in a search: no key contains one."""


class Writes(NamedTuple):
    """The rows that a change of labels writes, and the keys that it deletes."""

    saved: list[LabelRow]
    dropped: list[str]


def check(field: str, value: object, limits: Limits) -> dict[str, str]:
    """Check labels, and return a copy."""
    return {
        _key(field, key, limits): _value(f"{field}[{key!r}]", one, limits)
        for key, one in _mapping(field, value, limits).items()
    }


def check_changes(field: str, value: object, limits: Limits) -> dict[str, str | None]:
    """Check changes of labels, None being a removal, and return a copy."""
    return {
        _key(field, key, limits): None if one is None else _value(f"{field}[{key!r}]", one, limits)
        for key, one in _mapping(field, value, limits).items()
    }


def _mapping(field: str, value: object, limits: Limits) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(field, f"must be a dict, not {type(value).__name__}")
    items: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
    if len(items) > limits.labels:
        raise InvalidRequest(field, f"has {len(items)} items, the limit is {limits.labels}", limit=limits.labels)
    return items


def _key(field: str, value: object, limits: Limits) -> str:
    bound = msgspec.structs.replace(limits, id_bytes=limits.label_key_bytes)
    key = checks.identifier(f"{field} key", value, bound)
    if any(sign in key for sign in SEPARATORS):
        raise InvalidRequest(f"{field} key", f"must not contain {' or '.join(map(repr, SEPARATORS))}")
    return key


def _value(field: str, value: object, limits: Limits) -> str:
    return checks.text(field, value, msgspec.structs.replace(limits, text_bytes=limits.label_value_bytes))


def labels_of(rows: Iterable[LabelRow]) -> dict[str, str]:
    """Return the labels of one session, by key."""
    return {row.key: row.value for row in sorted(rows, key=lambda row: row.key)}


def by_session(rows: Iterable[LabelRow]) -> dict[int, list[LabelRow]]:
    """Return labels by the key of their session."""
    found: dict[int, list[LabelRow]] = {}
    for row in rows:
        found.setdefault(row.session_key, []).append(row)
    return found


def changed(known: Mapping[str, str], changes: Mapping[str, str | None], limits: Limits) -> dict[str, str]:
    """Return the labels after a change. Raises InvalidRequest if there would be too many."""
    merged: dict[str, str | None] = {**known, **changes}
    kept = {key: value for key, value in sorted(merged.items()) if value is not None}
    if len(kept) > max(limits.labels, len(known)):
        raise InvalidRequest("labels", f"would be {len(kept)}, the limit is {limits.labels}", limit=limits.labels)
    return kept


def touched(labels: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str] | None:
    """Return those of the labels that a change names, or None."""
    return {key: value for key, value in labels.items() if key in changes} or None


def writes(session: SessionRow, known: Mapping[str, str], wanted: Mapping[str, str]) -> Writes:
    """Return what turns the known labels into the wanted ones."""
    return Writes(
        [
            LabelRow(session.family, session.session_key, key, value)
            for key, value in sorted(wanted.items())
            if known.get(key) != value
        ],
        [key for key in sorted(known) if key not in wanted],
    )


def order_of(*, by_prefix: bool, since_ms: int | None, newest_first: bool) -> SessionOrder:
    """Return the order of a listing of sessions."""
    if newest_first:
        return "newest"
    if since_ms is not None:
        return "changed"
    return "id" if by_prefix else "made"
