"""Chains of runs that continue as new ones or are retried: their ids, and the causes that link them."""

from __future__ import annotations

import re
from typing import cast

from holdfast.records.common import Document

_NUMBERED = re.compile(r"(.*)~([1-9][0-9]*)", re.DOTALL)
_LINKS = ("continues", "retries", "original")


def next_in_chain(run_id: str) -> str:
    """Return the id of the run that continues this one, or that retries it. A run has only one of them."""
    name, number = _in_chain(run_id)
    return f"{name}~{number + 1}"


def _in_chain(run_id: str) -> tuple[str, int]:
    """Return the name of a chain, and the number of a run in it."""
    numbered = _NUMBERED.fullmatch(run_id)
    return (run_id, 1) if numbered is None else (numbered[1], int(numbered[2]))


def continuing_cause(run_id: str, caused_by: Document | None) -> dict[str, Document]:
    """Return the cause of the run that continues this one. It names the first run of the chain and the last."""
    return {**_linked(run_id, caused_by), "continues": run_id}


def retrying_cause(run_id: str, caused_by: Document | None) -> dict[str, Document]:
    """Return the cause of the run that retries this one. It also names the run whose steps both have."""
    return {**_linked(run_id, caused_by), "retries": run_id, "original": original_run(run_id, caused_by)}


def _linked(run_id: str, caused_by: Document | None) -> dict[str, Document]:
    kept = {name: value for name, value in _cause(caused_by).items() if name not in _LINKS}
    return {**kept, "first": first_of_chain(run_id, caused_by) or run_id}


def first_of_chain(run_id: str, caused_by: Document | None) -> str | None:
    """Return the first run of the chain that this one belongs to, None if it is the first itself.

    A cause is believed only if the ids agree with it: a caller may start a run with any cause.
    """
    return _earlier(run_id, _cause(caused_by).get("first"))


def is_in_chain(run_id: str, caused_by: Document | None, of: str, cause_of: Document | None, *, known: bool) -> bool:
    """Return True if a run belongs to the chain of the run `of`. `known` is False if that one was pruned.

    The links between them decide, not the ids: a caller may start a run with any id.
    """
    first = first_of_chain(run_id, caused_by) or run_id
    if known:
        return first == (first_of_chain(of, cause_of) or of)
    (name, number), (first_name, first_number) = _in_chain(of), _in_chain(first)
    return name == first_name and first_number <= number < _in_chain(run_id)[1]


def may_be_in_chain(run_id: str, of: str) -> bool:
    """Return False for a run that cannot belong to the chain of the run `of`: its id says so."""
    return _in_chain(run_id)[0] == _in_chain(of)[0]


def retried_run(run_id: str, caused_by: Document | None) -> str | None:
    """Return the run that this one retries, None if it retries none."""
    retried = _earlier(run_id, _cause(caused_by).get("retries"))
    return retried if retried is not None and next_in_chain(retried) == run_id else None


def original_run(run_id: str, caused_by: Document | None) -> str:
    """Return the run after which the children and the effects of this one are named: itself, unless it is a retry."""
    if retried_run(run_id, caused_by) is None:
        return run_id
    return _earlier(run_id, _cause(caused_by).get("original")) or run_id


def parent_run(caused_by: Document | None) -> str | None:
    """Return the run that started this one as its child, None if none did."""
    cause = _cause(caused_by)
    parent = cause.get("process_id")
    return parent if cause.get("type") == "run" and isinstance(parent, str) else None


def _earlier(run_id: str, other: Document) -> str | None:
    """Return the other run if it is an earlier one of the same chain."""
    if not isinstance(other, str):
        return None
    (name, number), (own_name, own_number) = _in_chain(other), _in_chain(run_id)
    return other if name == own_name and number < own_number else None


def _cause(caused_by: Document | None) -> dict[str, Document]:
    return cast("dict[str, Document]", caused_by) if isinstance(caused_by, dict) else {}
