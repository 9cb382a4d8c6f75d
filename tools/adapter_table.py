"""Write the table of the adapters' tests, `docs/adapters/tested.md`, from the last whole run.

Usage: python3 tasks.py adapters, which runs everything and then this.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "adapters" / "results.json"
PAGE = ROOT / "docs" / "adapters" / "tested.md"

HEAD = """# What the adapters are tested with

`python3 tasks.py adapters` runs all of this and writes this page. The tests of a framework are fetched from its source
distribution, in the version that `uv.lock` pins, and run with Holdfast in place of the framework's own store. A few of
them measure time: if one of these fails on a busy machine, it is run again, and the table counts that.

| framework | suite | store | passed | failed | skipped |
|---|---|---|---|---|---|
"""


def main() -> int:
    """Write the page."""
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(rendered(results), encoding="utf-8")
    return 0


def rendered(results: dict[str, Any]) -> str:
    """Return the page."""
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in sorted(rows(results)))


def rows(results: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each suite of a framework and for each of our test files."""
    versions: dict[str, str] = results["versions"]
    for suite in results["suites"]:
        skipped: dict[str, int] = suite["skipped"]
        reasons = "; ".join(f"{count}: {reason}" for reason, count in sorted(skipped.items())) or "0"
        again = suite.get("again", 0)
        passed = f"{suite['passed']}, {again} of them when run again" if again else str(suite["passed"])
        counts = (passed, str(len(suite["failed"])), reasons.replace("|", "\\|"))
        yield (versions[suite["adapter"]], suite["suite"], suite["backend"], *counts)
    own: dict[str, dict[str, int]] = results["own"]
    for path, outcomes in own.items():
        adapter = Path(path).parent.name
        if adapter in versions:
            ended, failed, skipped_count = (str(outcomes.get(key, 0)) for key in ("passed", "failed", "skipped"))
            yield (versions[adapter], f"`{path}`", "all", ended, failed, skipped_count)


if __name__ == "__main__":
    sys.exit(main())
