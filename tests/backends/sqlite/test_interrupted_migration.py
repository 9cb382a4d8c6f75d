"""A migration killed at any statement is applied whole or not at all, and opening the file again finishes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 200


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize(("what", "least"), [("new", 60), ("upgrade", 10)])
def test_a_kill_at_any_statement_leaves_a_whole_file(what: str, least: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("killing.py")), str(tmp_path), what],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # One kill for each statement: there are at least so many tables and indexes.
    assert int(done.stdout) >= least
