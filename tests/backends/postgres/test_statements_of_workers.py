"""A server function renews all that a worker holds as the rules do, in randomly drawn situations."""

from __future__ import annotations

from typing import Any

import pytest
from tests.backends.postgres.test_statements_of_leases import leases_to_prove
from tests.backends.postgres.test_statements_of_queues import claims_to_prove
from tests.backends.postgres.twins import LAST_MS, NOW_MS, SITUATIONS, Twins, rows_by_table

from holdfast.rules import workers
from holdfast.worker_rows import WorkerRow
from holdfast.workers import WorkerInfo

CLOCKS = pytest.mark.parametrize("now_ms", [NOW_MS, LAST_MS - 500], ids=["some time", "the end of time"])
KNOWN = 5
"""Workers that have reported themselves before."""


def worker_row(number: int, age_ms: int, now_ms: int) -> WorkerRow:
    """Return a worker whose report ended so long ago."""
    end_ms = max(0, now_ms - age_ms)
    report = workers.report_of(WorkerInfo(f"w{number}", host="here", pid=number))
    return WorkerRow(f"w{number}", 1, 2, end_ms, report)


@CLOCKS
def test_a_heartbeat_at_once_renews_and_reports_as_the_rules_do(twins: Twins, now_ms: int) -> None:
    twins.clock.advance(now_ms - twins.clock.now_ms())
    rng = twins.generator("heartbeat")
    of_queues, claims = claims_to_prove(rng, now_ms, SITUATIONS)
    of_sessions, on_sessions = leases_to_prove(rng, now_ms, range(SITUATIONS, 2 * SITUATIONS), "session")
    of_processes, on_processes = leases_to_prove(rng, now_ms, range(SITUATIONS), "process")
    held = [*on_sessions, *on_processes]
    rng.shuffle(held)
    ages = (0, 1, workers.FORGOTTEN_MS - 1, workers.FORGOTTEN_MS, workers.FORGOTTEN_MS + 1)
    tables: list[tuple[str, Any]] = [*of_queues, *of_sessions, *of_processes]
    twins.fill(rows_by_table([*tables, ("workers", [worker_row(n, ages[n], now_ms) for n in range(KNOWN)])]))
    renewed, lost, number = 0, 0, 0
    while claims or held:
        some_claims = [claims.pop() for _ in range(min(len(claims), rng.randint(0, 4)))]
        some_leases = [held.pop() for _ in range(min(len(held), rng.randint(0, 6)))]
        # Two known ones report again. A new one deletes those that are forgotten.
        name = rng.choice((None, "w0", "w1") if number < 20 else (None, "w0", "w1", "w7", "w8", "w9"))
        me = None if name is None else WorkerInfo(name, host="here", pid=rng.randrange(9), kinds=("turn",))
        ttl_ms = rng.choice((1, 400, 5_000))
        number += 1
        outcome, acted = twins.both(
            lambda store, me=me, ttl_ms=ttl_ms, mine=some_claims, owned=some_leases: store.workers.heartbeat(
                me, ttl_ms=ttl_ms, claims=[one[-2] for one in mine], leases=[one[-2] for one in owned]
            ),
            (me, ttl_ms, some_claims, some_leases),
        )
        assert acted, (me, some_claims, some_leases)
        assert outcome.error is None
        answers = [*outcome.value.claims, *outcome.value.leases]
        renewed += sum(answer is not None for answer in answers)
        lost += answers.count(None)
    assert renewed > SITUATIONS // 12
    assert lost > SITUATIONS // 12
    twins.compare_rows(lambda: "heartbeat")
