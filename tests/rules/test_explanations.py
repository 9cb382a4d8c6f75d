"""A holder is judged by its own last report, not by the list of live workers, which has an end."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import holdfast
from holdfast.records.processes import ProcessIdentity, Provenance, Run
from holdfast.rows import LeaseRow
from holdfast.rules import explanations, process_explanations
from holdfast.workers import WorkerInfo

NOW = 1_000


def cause(expires_at_ms: int, overdue: dict[str, int] | None = None) -> holdfast.maintenance.Cause:
    """Explain a run whose holder reported itself until then, and is not among the listed workers."""
    holder = WorkerInfo(
        "w1", host="here", pid=7, overdue=overdue or {}, heartbeat_at_ms=900, expires_at_ms=expires_at_ms
    )
    process = holdfast.processes.Process(
        "r1", "hash", Run("research"), ProcessIdentity("research"), (), Provenance(), None, None, 0, 0
    )
    lease = LeaseRow("process", "r1", "w1", "t", 1, 900, 10_000_000)
    workers = explanations.Workers((), {"w1": holder})
    facts = process_explanations.ProcessFacts("r1", NOW, process, lease, None, workers)
    return process_explanations.explain_process(facts).causes[0]


def test_a_holder_that_still_reports_is_alive_also_if_it_is_not_listed() -> None:
    assert (cause(NOW + 1).name, cause(NOW + 1).remedy) == ("running", ())


def test_a_holder_whose_report_has_expired_is_dead() -> None:
    assert cause(NOW).name == "lease-of-a-dead-worker"
    assert cause(NOW).remedy == ("leases", "release", "--process", "r1")


def test_a_handler_over_its_time_limit_is_reported_with_its_process() -> None:
    found = cause(NOW + 1, {"r1": 6_950})
    assert (found.name, found.standing) == ("over-its-time-limit", "stuck")
    assert found.problem.startswith("its handler is over its time limit for 7 s")
    assert "end process 7 on here" in found.problem
    assert cause(NOW + 1, {"r2": 6_950}).name == "running"
    assert cause(NOW, {"r1": 6_950}).name == "lease-of-a-dead-worker"


def test_the_page_on_looking_into_a_store_explains_every_cause() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "look-into-a-store.md").read_text(encoding="utf-8")
    named: set[str] = set()
    for module in (explanations, process_explanations):
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Cause":
                words = [one for one in ast.walk(call.args[0]) if isinstance(one, ast.Constant)]
                named |= {one.value for one in words if isinstance(one.value, str)}
    assert len(named) > 30
    assert [name for name in sorted(named) if f"`{name}`" not in page] == []
