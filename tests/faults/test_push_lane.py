"""Every fault runs on every backend that it applies to, as often as each push can afford, without a violation."""

from __future__ import annotations

import pytest

from holdfast.torture.catalogue import FAULTS
from holdfast.torture.faults import INVARIANTS, Fault
from holdfast.torture.places import Scratch
from holdfast.torture.running import run_fault

SEED = 20_260_101

# At most a minute on an idle machine; a busy one must not fail.
pytestmark = pytest.mark.timeout(1_500)

CASES = [
    pytest.param(fault, kind, id=f"{fault.name}-{kind}")
    for fault in FAULTS
    for kind, numbers in fault.numbers.items()
    if numbers.push
]


@pytest.mark.parametrize(("fault", "scratch"), CASES, indirect=["scratch"])
def test_everything_holds_under(fault: Fault, scratch: Scratch) -> None:
    result = run_fault(scratch, fault, seed=SEED, wanted=fault.numbers[scratch.kind].push)
    if result.skipped is not None:
        pytest.skip(result.skipped)
    assert not result.violations, "\n".join(
        f"seed {one.seed}: {problem}" for one in result.violations for problem in one.problems
    )
    assert result.cases >= result.wanted


def test_every_fault_names_invariants_that_there_are() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert fault.invariants
        assert set(fault.invariants) <= set(INVARIANTS)
