"""A flipped bit anywhere in a file leads to a Holdfast error or a right answer, never to another error or a hang.

Each flip is tried in a child process with a deadline, so that a crash of the interpreter or an endless loop is visible.
`HOLDFAST_FLIPS=10000` is the number of the reliability programme; `HOLDFAST_SEED` replays a run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.backends.sqlite.furnished import seed

FLIPS = int(os.environ.get("HOLDFAST_FLIPS", "200"))
PARTS = 2
SEED = os.environ.get("HOLDFAST_SEED", "0")
CHILD = Path(__file__).with_name("flipping.py")


@pytest.mark.timeout(120 + FLIPS)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_flipped_bit_is_noticed_or_harmless_and_only_our_errors_come(part: int, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    seed(path, tmp_path / "byte_store")
    arguments = [str(path), f"{SEED}-{part}", str(FLIPS // PARTS)]
    root = Path(__file__).resolve().parents[3]
    child = subprocess.run(
        [sys.executable, str(CHILD), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60 + FLIPS,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    replay = f"HOLDFAST_SEED={SEED} HOLDFAST_FLIPS={FLIPS} replays this"
    assert child.returncode == 0, f"{replay}:\n{child.stdout[-4000:]}{child.stderr[-4000:]}"
    tried, noticed = (int(word) for word in child.stdout.split()[-2:])
    assert tried == FLIPS // PARTS
    # Most of a small file is in use: if hardly any flip is noticed, hardly anything is checked.
    assert noticed > tried // 20, child.stdout
