"""Memory and SQLite are one store: led through the same random life, they answer alike and hold the same rows.

`HOLDFAST_SEED` replays a run that failed, `HOLDFAST_STEPS` makes it longer.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from tests.state_machine.lives import Difference, live_often

STEPS = int(os.environ.get("HOLDFAST_STEPS", "20000"))
SEED = os.environ.get("HOLDFAST_SEED") or f"{random.SystemRandom().getrandbits(48):x}"
PARTS = 4


@pytest.mark.timeout(120 + STEPS // 50)
@pytest.mark.parametrize("part", range(PARTS))
def test_both_backends_live_the_same_life(part: int, tmp_path: Path) -> None:
    sys.stdout.write(f"HOLDFAST_SEED={SEED} HOLDFAST_STEPS={STEPS}\n")
    try:
        done, answered = live_often(f"{SEED}-{part}", STEPS // PARTS, tmp_path)
    except Difference as difference:
        pytest.fail(f"HOLDFAST_SEED={SEED} HOLDFAST_STEPS={STEPS} replays this:\n{difference}", pytrace=False)
    assert done == STEPS // PARTS
    sys.stdout.write("\n".join(sorted(answered)))
