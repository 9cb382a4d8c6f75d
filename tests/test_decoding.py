"""Stored bytes are decoded as data: no import, no compilation, no execution, no file access, for any bytes.

Everything runs in a child process under an audit hook, which Python itself calls for each of those.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NUMBER = int(os.environ.get("HOLDFAST_HOSTILE_BYTES", "3000"))
SEED = os.environ.get("HOLDFAST_SEED", "0")
MOST_MIB = 600
WAIT_S = 300 + NUMBER / 50


def child(*arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("decoding.py")), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    said = f"HOLDFAST_SEED={SEED} HOLDFAST_HOSTILE_BYTES={NUMBER} replays this"
    assert done.returncode == 0, f"{said}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_the_hook_notices_decoding() -> None:
    received = child("hook")["events"]
    assert isinstance(received, list)
    assert {"import", "exec", "compile", "open"} <= set(received)


def test_hostile_bytes_are_data_for_every_decoder() -> None:
    answer = child("decoders", SEED, str(NUMBER))
    assert answer["events"] == []
    assert answer["tried"] == NUMBER
    # Most of it is refused, and the rest is a plain value.
    assert answer["strays"] == []
    assert isinstance(answer["refused"], int)
    assert answer["refused"] > NUMBER // 2
    assert isinstance(answer["mib"], int)
    assert answer["mib"] < MOST_MIB


def test_hostile_bytes_in_every_column_of_a_store_are_data(tmp_path: Path) -> None:
    answer = child("columns", SEED, str(tmp_path / "state.db"))
    assert answer["events"] == []
    assert answer["strays"] == []
    assert isinstance(answer["tried"], int)
    assert answer["tried"] > 40
