"""Delays grow, stay below their limit and are spread; nonsense is refused."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.worker import GiveUp, Retry


def test_delays_double_up_to_the_limit() -> None:
    retry = Retry(9, backoff_s=2, max_backoff_s=10)
    assert [retry.delay_ms(attempt, chance=0.5) for attempt in range(1, 6)] == [2000, 4000, 8000, 10_000, 10_000]
    assert Retry(2, backoff_s=0).delay_ms(1, chance=1.0) == 0
    assert Retry(10**9).delay_ms(10**9, chance=0.5) == 3_600_000


def test_chance_spreads_a_delay_by_the_jitter() -> None:
    retry = Retry(backoff_s=10, jitter=0.2)
    assert [retry.delay_ms(1, chance=chance) for chance in (0.0, 0.5, 1.0)] == [8000, 10_000, 12_000]


def test_giving_up_inside_of_a_group_is_the_last_attempt() -> None:
    retry = Retry(5)
    nested = ExceptionGroup("tasks", [ValueError("no"), ExceptionGroup("more", [GiveUp("no such address")])])
    assert retry.delay_after(1, nested, chance=0.5) is None
    assert retry.delay_after(1, ExceptionGroup("tasks", [ValueError("no")]), chance=0.5) == 2000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("attempts", value) for value in (0, -1, True, 1.5, "3", 2**70)),
        *(("backoff_s", value) for value in (-1, float("nan"), float("inf"), "2", True)),
        ("factor", 0.5),
        ("max_backoff_s", -1),
        *(("jitter", value) for value in (-0.1, 1.1)),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(field: str, value: Any) -> None:
    with pytest.raises(holdfast.InvalidRequest) as info:
        Retry(**{field: value})
    assert info.value.field == f"retry.{field}"
