"""The ledger of any revision is the sum of what its turns spent; any other ledger is damage."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Corrupt
from holdfast.records.commits import Commit, Usage
from holdfast.records.limits import Limits
from holdfast.rows import CommitFacts, RevisionRow, SessionRow, UsageRow
from holdfast.rules import commits, ledgers

STEADY = settings(derandomize=True, deadline=None)
SESSION = SessionRow(7, "chat", 1, 7, revision=0, node_count=0, epoch=0, lineage=b"[]", changed_at_ms=0)
COUNTS = st.integers(0, 3)
TURNS = st.lists(
    st.lists(
        st.builds(Usage, st.sampled_from("ab"), st.sampled_from("mn"), COUNTS, COUNTS, COUNTS, COUNTS), max_size=4
    ),
    max_size=5,
)


def summed(turns: list[list[Usage]]) -> list[tuple[Any, ...]]:
    """Return the turns' usage, added up, in first-seen order."""
    totals: dict[tuple[str, str], list[int]] = {}
    for usage in (one for turn in turns for one in turn):
        counts = [usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.reasoning_tokens]
        if any(counts):
            before = totals.setdefault((usage.source, usage.model), [0, 0, 0, 0])
            totals[usage.source, usage.model] = [a + b for a, b in zip(before, counts, strict=True)]
    return [(*place, *counts) for place, counts in totals.items()]


@settings(STEADY, max_examples=200)
@given(TURNS, st.integers(0, 5))
def test_the_ledger_at_an_earlier_revision_is_the_sum_up_to_it(turns: list[list[Usage]], at: int) -> None:
    counters: dict[tuple[str, str], UsageRow] = {}
    stored: list[tuple[Usage, ...]] = []
    spent = [0]
    head: RevisionRow | None = None
    for number, turn in enumerate(turns):
        plan = commits.judge(
            commits.check_commit(Commit(usage=turn), "chat", Limits(), seed="seed"),
            msgspec.structs.replace(SESSION, revision=number),
            CommitFacts(head=head),
            current=(),
            ledger=tuple(counters.values()),
            targets={},
            batch_ids=(),
            now_ms=number,
        )
        head = plan.revision
        stored.append(commits.body_of(head).usage)
        spent.append(commits.body_of(head).spent)
        for row in plan.usage:
            before = counters.get((row.source, row.model))
            counters[row.source, row.model] = (
                row
                if before is None
                else msgspec.structs.replace(
                    before,
                    input_tokens=before.input_tokens + row.input_tokens,
                    output_tokens=before.output_tokens + row.output_tokens,
                    cached_input_tokens=before.cached_input_tokens + row.cached_input_tokens,
                    reasoning_tokens=before.reasoning_tokens + row.reasoning_tokens,
                )
            )
    rows = sorted(counters.values(), key=lambda row: row.place)
    later = [usage for turn in stored[at:] for usage in turn]
    assert [
        msgspec.structs.astuple(one)
        for one in ledgers.ledger_of(rows, later, spent=spent[min(at, len(turns))], session_key=7)
    ] == summed(turns[:at])
    assert [msgspec.structs.astuple(one) for one in ledgers.ledger_of(rows, spent=spent[-1], session_key=7)] == summed(
        turns
    )


@pytest.mark.parametrize(
    "later",
    [
        [Usage("tool", "m", 1)],
        [Usage("tool", "m", 0, 1)],
        [Usage("tool", "m", 0, 0, 1)],
        [Usage("tool", "m", 0, 0, 0, 1)],
        [Usage("turn", "m", 6)],
        [Usage("turn", "m", 0, 1)],
        [Usage("turn", "m", 3), Usage("turn", "m", 3)],
    ],
    ids=["input", "output", "cached", "reasoning", "too little", "too little output", "too little for both"],
)
def test_a_ledger_that_does_not_add_up_is_damage(later: list[Usage]) -> None:
    with pytest.raises(Corrupt) as info:
        ledgers.ledger_of([UsageRow("turn", "m", 5, 0, 0, 0, 1)], later, spent=5, session_key=7)
    assert info.value.table == "usage"


def test_a_ledger_that_lost_a_counter_is_damage_and_not_a_smaller_ledger() -> None:
    row = UsageRow("turn", "m", 5, 0, 2, 0, 1)
    other = UsageRow("tool", "m", 1, 0, 0, 0, 2)
    assert len(ledgers.ledger_of([row, other], spent=8, session_key=7)) == 2
    for rows in ([], [row], [other]):
        with pytest.raises(Corrupt) as info:
            ledgers.ledger_of(rows, spent=8, session_key=7)
        assert (info.value.table, info.value.key) == ("usage", "7")


def test_a_total_beyond_every_number_is_still_a_number() -> None:
    most = 2**63 - 1
    rows = [UsageRow("turn", "m", most, most, most, most, 1)]
    total = ledgers.total(most, rows)
    assert 0 <= total <= most
    assert len(ledgers.ledger_of(rows, spent=ledgers.total(0, rows), session_key=7)) == 1
