"""`python -m benchmarks`: runs every benchmark, shows its progress, and writes the results as Markdown and JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import machine
from benchmarks.contender import ROOT
from benchmarks.core import Bench, Result

FOLDER = ROOT / "benchmarks"
PLOTS = ROOT / "docs" / "explanation" / "performance"
ROUNDS, QUICK_ROUNDS = 5, 2
MODULES = sorted(path.stem for path in FOLDER.glob("s[0-9][0-9]_*.py"))


def main(arguments: list[str]) -> int:
    """Run the chosen benchmarks. Return 1 if a comparison turned out to be unfair."""
    options = parsed(arguments)
    # On SIGTERM, still remove the server and the databases.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = options.out or (FOLDER / ".quick" if options.quick else FOLDER)
    plots = out if options.quick or options.out else PLOTS
    (out / "results").mkdir(parents=True, exist_ok=True)
    plots.mkdir(parents=True, exist_ok=True)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
        bench = Bench(quick=options.quick, rounds=rounds, peers=options.peers, folder=Path(folder))
        facts = machine.describe()
        try:
            for name in drawn(options.draw):
                question = importlib.import_module(f"benchmarks.{name}")
                if options.only and question.ID not in options.only:
                    continue
                bench.label = question.ID
                began_s = time.monotonic()
                result: Result = question.run(bench)
                if options.quick:
                    result.judge_nothing()
                result.data |= {"machine": facts, "rounds": rounds, "quick": options.quick}
                print(result.markdown() + f"\n\n({time.monotonic() - began_s:.1f} s)\n", flush=True)
                (out / "results" / f"{name}.json").write_text(result.json() + "\n", encoding="utf-8")
                (out / "results" / f"{name}.md").write_text(result.markdown() + "\n", encoding="utf-8")
                for file, svg in result.plots.items():
                    (plots / file).write_text(svg, encoding="utf-8")
        finally:
            bench.postgres.close()
    write_results(out, facts, quick=options.quick)
    print(f"all in {time.monotonic() - started_s:.1f} s: {out / 'RESULTS.md'}")
    return 0


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that everything works; judges nothing"
    )
    parser.add_argument("--only", type=lambda text: set(text.upper().split(",")), help="such as S1,S3")
    parser.add_argument("--draw", type=int, default=1, metavar="N", help="run one in N of them, drawn at random")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}, quick {QUICK_ROUNDS}")
    parser.add_argument(
        "--peers", action=argparse.BooleanOptionalAction, help="with or without the peers; a quick run is without"
    )
    parser.add_argument("--out", type=Path, help="another folder for all results")
    options = parser.parse_args(arguments)
    options.peers = not options.quick if options.peers is None else options.peers
    return options


def drawn(share: int) -> list[str]:
    """Return one in so many benchmarks, in their order."""
    return sorted(random.sample(MODULES, -(-len(MODULES) // share)))


def write_results(out: Path, facts: dict[str, str], *, quick: bool) -> None:
    """Write RESULTS.md from the parts of this run and of earlier ones, each with its own date."""
    kind = "a quick run: sizes too small to judge by" if quick else "a full run"
    parts = [
        "# Results",
        f"Written by `python -m benchmarks`, {kind}. Ratios are taken within a round; each number is the median of the "
        "rounds, with the smallest and the largest in brackets. [PROFILES.md](PROFILES.md) explains "
        "each target that is missed.",
        "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())]),
    ]
    for name in MODULES:
        text, data = out / "results" / f"{name}.md", out / "results" / f"{name}.json"
        if text.exists():
            answer = json.loads(data.read_text(encoding="utf-8"))["machine"]
            measured = f"Measured {answer['date']} at {answer['commit']}, load {answer['load at the start']}."
            parts += [text.read_text(encoding="utf-8").strip(), measured]
    (out / "RESULTS.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
