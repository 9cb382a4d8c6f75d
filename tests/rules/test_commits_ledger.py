"""The ledger of any revision is the sum of what its turns spent; one that is not is damage."""

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
from holdfast.rules import commits

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
    """What the turns spent, in first-seen order."""
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
    assert [msgspec.structs.astuple(one) for one in commits.ledger_of(rows, later)] == summed(turns[:at])
    assert [msgspec.structs.astuple(one) for one in commits.ledger_of(rows)] == summed(turns)


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
        commits.ledger_of([UsageRow("turn", "m", 5, 0, 0, 0, 1)], later)
    assert info.value.table == "usage"
