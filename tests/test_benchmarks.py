"""The benchmarks run, small and without peers; their speed is not judged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import child, cpu, plot, profiles, statistics, work
from benchmarks.contender import Contender, Running, UnlikeWork

ROOT = Path(__file__).resolve().parent.parent


def test_the_same_seed_gives_the_same_turn_of_the_promised_size() -> None:
    turn = work.turn("chat-0", 7)
    assert turn == work.turn("chat-0", 7)
    assert turn != work.turn("chat-0", 8)
    assert len(turn.question.encode()) + len(turn.answer.encode()) == work.PARTS["messages"]
    assert len(turn.state.encode()) == work.PARTS["state"]


def test_rounds_continue_where_the_last_one_ended() -> None:
    lanes = child.Lanes()
    assert [[turn.number for turn in lane] for lane in lanes.next(2, 2)] == [[1, 2], [1, 2]]
    assert [[turn.number for turn in lane] for lane in lanes.next(1, 2)] == [[3, 4]]
    assert lanes.turns == 6


def test_a_ratio_is_taken_round_by_round() -> None:
    fast, slow = statistics.Spread((100.0, 10.0, 40.0)), statistics.Spread((50.0, 5.0, 40.0))
    assert fast.over(slow).rounds == (2.0, 2.0, 1.0)
    assert fast.over(slow).median == 2.0


@pytest.mark.parametrize(
    ("values", "share", "expected"), [([3, 1, 2], 0.5, 2), ([5], 0.99, 5), (list(range(1, 101)), 0.99, 99)]
)
def test_a_percentile_is_a_value_that_was_measured(values: list[float], share: float, expected: float) -> None:
    assert statistics.percentile(values, share) == expected


def test_a_plot_is_an_image_with_every_line_named() -> None:
    series = {"one & two": [(0.0, 1.0), (10.0, 100.0)], "three": [(5.0, 0.5)]}
    for logarithmic in (False, True):
        drawn = plot.lines("Title", "turn", "ms", series, logarithmic=logarithmic)
        assert drawn.startswith("<svg ")
        assert drawn.count("<polyline") == 2
        assert "one &amp; two" in drawn


def test_a_check_counts_for_the_innermost_part_and_not_at_all_if_there_is_nothing_to_do() -> None:
    drive, store = "drive (/x/benchmarks/child.py:65)", "commit (/x/holdfast/store/session.py:9)"
    looks = [
        f"{drive};{store};check_commit (/x/holdfast/rules/commits.py:90);identifier (/x/holdfast/rules/checks.py:3) 5",
        f"{drive};{store};StatementRunner.control (/x/holdfast/backends/sqlite/connection.py:7) 4",
        f"{drive};{store};StatementRunner.run (/x/holdfast/backends/sqlite/connection.py:8) 3",
        "turns (/x/benchmarks/drivers/holdfast_turns.py:4);text (/x/benchmarks/work.py:8) 90",
        "run (/y/threading.py:1);Writer._run (/x/holdfast/backends/sqlite/writer.py:99) 90",
        "run (/y/threading.py:1);odd (/y/odd.py:1) 1",
    ]
    parts, functions = profiles.counted("\n".join(looks))
    assert list(parts.values()) == [5, 4, 3, 1]
    assert list(functions) == [
        "checks.py: identifier",
        "connection.py: StatementRunner.control",
        "connection.py: StatementRunner.run",
        "odd",
    ]
    found = profiles.table(profiles.Profile("S1", 10, 2_600.0, parts, functions))
    assert "| rules: checks and judgements | 1,000 | 38% |" in found


SOURCES = {"/" + file.relative_to(ROOT / "src").as_posix(): file for file in (ROOT / "src").rglob("*.py")}


@pytest.mark.parametrize("piece", [piece for piece, _ in profiles.PARTS if piece.startswith("/holdfast/")])
def test_each_part_of_a_profile_is_a_module_of_today(piece: str) -> None:
    assert any(place.startswith(piece) for place in SOURCES)


METHODS = [
    piece
    for piece in (*[piece for piece, _ in profiles.PARTS], *profiles.PARKED)
    if re.fullmatch(r"[A-Z]\w+\.\w+ \(", piece)
]


@pytest.mark.parametrize("piece", METHODS)
def test_each_method_that_a_profile_names_exists(piece: str) -> None:
    owner, _, method = piece.removesuffix(" (").partition(".")
    texts = [file.read_text(encoding="utf-8") for file in SOURCES.values()]
    assert any(f"class {owner}" in text and f"def {method}(" in text for text in texts)


def test_a_contender_that_keeps_less_than_it_claims_ends_the_run(tmp_path: Path) -> None:
    path = str(tmp_path / "floor.db")
    running = Running(Contender("floor", "benchmarks.drivers.floor_sqlite", {"path": path}, carries=("messages",)))
    try:
        running.open()
        running.ask("turns", sessions=1, turns=2)
        with pytest.raises(UnlikeWork, match="keeps"):
            running.audit()
    finally:
        running.close()


def test_holdfast_and_the_floor_do_the_same_turns_and_the_results_are_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1", "--only", "S1", "--out", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [found] = [json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")]
    assert found["id"] == "S1"
    assert "Targets" in (tmp_path / "RESULTS.md").read_text()


def test_the_processor_time_of_a_call_is_printed_beside_that_of_the_floor(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if request.config.getoption("--no-postgres"):
        pytest.skip("needs a PostgreSQL server")
    cpu.main(["--only", "event, 1 process", "--rounds", "1", "--size", "0.05"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[1] for row in rows] == ["floor", "now"]
    for row in rows:
        assert all(int(cell.replace(",", "")) > 0 for cell in row[2:5])
