"""Checks a coverage report: decisions are covered completely, everything else almost. Exit code 1 if not.

Usage: python tools/coverage_gate.py coverage.json [--decisions]

`holdfast.rules` and `holdfast.operations` need every line and every branch. The rest of the package, taken together,
needs 90 % of its lines and branches, unless the run has measured the decisions alone. `holdfast.testing` and
`holdfast.torture` are test code and are not counted: a process that is killed cannot report its coverage.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = "src/holdfast/"
COMPLETE = ("rules", "operations")
NOT_COUNTED = ("testing", "torture")
REST_MINIMUM_PERCENT = 90.0
NO_COVER, NO_BRANCH = "# pragma: no cover", "# pragma: no branch"


@dataclass(frozen=True)
class CoveredFile:
    """The report's figures for one file. Lines and branches count alike."""

    path: str
    covered: int
    total: int
    missing_lines: tuple[int, ...]
    missing_branches: tuple[tuple[int, int], ...]

    @property
    def part(self) -> str:
        """Return the first name below the package: `rules` for both `rules.py` and `rules/turns.py`."""
        return self.path.removeprefix(PACKAGE).split("/")[0].removesuffix(".py")


def main(arguments: Sequence[str]) -> int:
    """Check the report named on the command line."""
    report = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    files = read_files(report)
    failures = [failure for part in COMPLETE for failure in judge_complete(part, files)]
    if "--decisions" not in arguments:
        failures += judge_rest([file for file in files if file.part not in (*COMPLETE, *NOT_COUNTED)])
    for failure in failures:
        print(failure)
    return 1 if failures else 0


def read_files(report: dict[str, Any]) -> list[CoveredFile]:
    """Return the package's files in slipcover's report. Refuse one measured without branches."""
    if not report["meta"]["branch_coverage"]:
        raise SystemExit("coverage gate: the report has no branch coverage")
    return [
        read_file(path.replace("\\", "/"), entry)
        for path, entry in sorted(report["files"].items())
        if path.replace("\\", "/").startswith(PACKAGE)
    ]


def read_file(path: str, entry: dict[str, Any]) -> CoveredFile:
    """Read one file's entry of the report."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    missing_lines = tuple(entry["missing_lines"])
    missing_branches = tuple(
        (source, target)
        for source, target in entry["missing_branches"]
        # slipcover excludes lines, and no branch that leads to one.
        if NO_BRANCH not in lines[source - 1] and not (target and NO_COVER in lines[target - 1])
    )
    covered = entry["summary"]["covered_lines"] + entry["summary"]["covered_branches"]
    total = covered + len(missing_lines) + len(missing_branches)
    return CoveredFile(path, covered, total, missing_lines, missing_branches)


def judge_complete(part: str, files: Iterable[CoveredFile]) -> list[str]:
    """Return the failures of a part that must be covered completely. A part that was not measured fails, too."""
    own = [file for file in files if file.part == part]
    if not own:
        return [f"coverage gate: nothing of {PACKAGE}{part} was measured"]
    print(f"coverage gate: {part}: {percent(own):.2f} % (needs 100 %)")
    return [describe(file) for file in own if file.covered < file.total]


def judge_rest(files: Sequence[CoveredFile]) -> list[str]:
    """Return the failures of the rest of the package, which is judged as a whole."""
    if not files:
        return [f"coverage gate: nothing else of {PACKAGE} was measured"]
    reached = percent(files)
    print(f"coverage gate: the rest: {reached:.2f} % (needs {REST_MINIMUM_PERCENT:.0f} %)")
    if reached >= REST_MINIMUM_PERCENT:
        return []
    return [describe(file) for file in files if file.covered < file.total]


def percent(files: Iterable[CoveredFile]) -> float:
    """Return the covered share of the lines and branches of all files together."""
    covered = total = 0
    for file in files:
        covered += file.covered
        total += file.total
    return 100.0 * covered / total if total else 100.0


def describe(file: CoveredFile) -> str:
    """Return a file's gaps on one line. Branch target 0 means leaving the function."""
    gaps = [f"lines {ranges(file.missing_lines)}"] if file.missing_lines else []
    gaps += [f"branch {source}->{target if target > 0 else 'exit'}" for source, target in file.missing_branches]
    return f"  {file.path}: {file.covered}/{file.total}: {', '.join(gaps)}"


def ranges(lines: Sequence[int]) -> str:
    """Return line numbers with runs folded: 3, 5-7."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and line == runs[-1][1] + 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
