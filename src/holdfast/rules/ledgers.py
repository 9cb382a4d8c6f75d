"""Ledgers: the usage of a session's turns, added up. A lost counter is damage, never a smaller ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import add
from typing import NamedTuple, TypeAlias

from holdfast.errors import Corrupt, InvalidRequest
from holdfast.records.commits import Usage
from holdfast.records.limits import LARGEST_INTEGER, Limits
from holdfast.rows import UsageRow
from holdfast.rules import checks

USAGE_PLACES = 1 << 20
"""A counter's place is the revision that first had it and its rank there. A commit has fewer items than this."""

TOTALS = 1 << 63
"""Totals are kept modulo this, because the numbers of a revision have 63 bits."""


class Spent(NamedTuple):
    """Usage in the stored form of a revision: without field names, which would take more room than the numbers."""

    source: str
    model: str
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    reasoning_tokens: int


Counter: TypeAlias = Usage | Spent | UsageRow
"""Counts of one source and model."""


COUNTS = "input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens"


def check_usage(value: object, limits: Limits) -> tuple[Usage, ...]:
    """Return usage merged by source and model in first-seen order. Entries of zeros are left out."""
    if value is checks.LEFT_OUT:
        return ()
    merged: dict[tuple[str, str], Usage] = {}
    for index, one in enumerate(checks.sequence("usage", value, most=limits.commit_items)):
        field = f"usage[{index}]"
        entry = checks.instance(field, one, Usage)
        place = (
            checks.identifier(f"{field}.source", entry.source, limits),
            checks.identifier(f"{field}.model", entry.model, limits),
        )
        counts = counts_of(entry)
        for name, count in zip(COUNTS, counts, strict=True):
            if type(count) is not int or not 0 <= count <= LARGEST_INTEGER:
                checks.whole(f"{field}.{name}", count)
        if not any(counts):
            continue
        before = merged.get(place)
        if before is None:
            merged[place] = Usage(*place, *counts)
            continue
        sums = list(map(add, counts_of(before), counts))
        if max(sums) > LARGEST_INTEGER:
            raise InvalidRequest(field, f"adds up to more than {LARGEST_INTEGER}", limit=LARGEST_INTEGER)
        merged[place] = Usage(*place, *sums)
    return tuple(merged.values())


def counts_of(usage: Counter) -> tuple[int, int, int, int]:
    """Return the four numbers of a counter."""
    return usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.reasoning_tokens


def counters(spent: Sequence[Usage], ledger: Sequence[UsageRow], revision: int) -> tuple[UsageRow, ...]:
    """Return the counters that a turn adds to, after checking that their sums stay in bounds."""
    counted = {(row.source, row.model): row for row in ledger}
    rows: list[UsageRow] = []
    for index, usage in enumerate(spent):
        counts = counts_of(usage)
        before = counted.get((usage.source, usage.model))
        if before is not None and max(map(add, counts_of(before), counts)) > LARGEST_INTEGER:
            raise InvalidRequest(f"usage[{index}]", f"adds up to more than {LARGEST_INTEGER}", limit=LARGEST_INTEGER)
        rows.append(UsageRow(usage.source, usage.model, *counts, place=revision * USAGE_PLACES + index))
    return tuple(rows)


def total(before: int, spent: Iterable[Counter]) -> int:
    """Return all tokens that were ever counted, modulo `TOTALS`."""
    return (before + sum([sum(counts_of(one)) for one in spent])) % TOTALS


def ledger_of(
    rows: Sequence[Counter], later: Sequence[Counter] = (), *, spent: int, session_key: int
) -> tuple[Usage, ...]:
    """Return the ledger without the usage of later turns. A ledger that does not add up is damage.

    `spent` is the total that the revision keeps: rows that were lost do not make a smaller ledger.
    """
    totals = {(row.source, row.model): list(counts_of(row)) for row in rows}
    for usage in later:
        counts = totals.get((usage.source, usage.model), [0, 0, 0, 0])
        for index, count in enumerate(counts_of(usage)):
            counts[index] -= count
        if min(counts) < 0:
            raise Corrupt("usage", f"{usage.source}/{usage.model}", "is less than what the turns add up to")
    ledger = tuple(Usage(*place, *counts) for place, counts in totals.items() if any(counts))
    if total(0, ledger) != spent:
        raise Corrupt("usage", str(session_key), "the counters do not add up to what the turns spent")
    return ledger
