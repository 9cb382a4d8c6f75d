"""S11: the cost of an import, of opening a store, and of many handles."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.core import Bench, Result, Table
from benchmarks.statistics import Spread

ID, QUESTION = "S11", "`import holdfast`; opening an existing SQLite store; memory of 1,000 open session handles"

BEGIN = "import sys, time; began = time.perf_counter()\n"
END = "\nprint((time.perf_counter() - began) * 1000)"
OPEN = "store = holdfast.open_blocking(sys.argv[1])"
BARE, ALONE = "`import asyncio, sqlite3`", "`import holdfast` alone, which loads nothing yet"
USED = "`import holdfast; holdfast.open`: with the public names"
FIRST = "`import holdfast` and the first open, together"
WARM = "an open in a process that has opened before"
PROGRAMS = {
    BARE: BEGIN + "import asyncio, sqlite3" + END,
    ALONE: BEGIN + "import holdfast" + END,
    USED: BEGIN + "import holdfast; holdfast.open" + END,
    FIRST: BEGIN + f"import holdfast; {OPEN}" + END + "; store.close()",
    WARM: f"import sys, holdfast; {OPEN}; store.close()\n" + BEGIN + OPEN + END + "; store.close()",
}
"""Each prints its duration in milliseconds."""
HANDLES = """
import sys, tracemalloc, holdfast
with holdfast.open_blocking(sys.argv[1]) as store:
    first = store.sessions.create("first")
    first.load()
    tracemalloc.start()
    handles = [store.sessions.create(f"session-{number}") for number in range(1000)]
    print(tracemalloc.get_traced_memory()[0] / 1e6)
"""


def run(bench: Bench) -> Result:
    """Run each in a process of its own, several times."""
    result = Result(ID, QUESTION)
    path = bench.file()
    # Untimed: this makes the store, and the bytecode of every module.
    for name in (FIRST, *PROGRAMS):
        python(PROGRAMS[name], path)
    rounds = bench.size(max(bench.rounds, 10), 3)
    found: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for number in range(rounds):
        bench.tell(f"round {number + 1} of {rounds}")
        for name, program in PROGRAMS.items():
            found[name].append(python(program, path))
    bench.tell("1,000 handles")
    memory = python(HANDLES, bench.file())
    table = Table("In a process of its own, with warm files and bytecode; the store exists", ("", "ms"))
    table.rows = [[name, Spread(tuple(values)).show()] for name, values in found.items()]
    result.tables.append(table)
    result.data["milliseconds"] = found
    result.data["megabytes of 1,000 handles"] = memory
    used, opened = Spread(tuple(found[USED])), Spread(tuple(found[WARM]))
    result.at_most(
        "`import holdfast; holdfast.open` (import with the public names loaded) <= 80 ms", used, 80, unit=" ms"
    )
    result.at_most("open of an existing SQLite store, modules loaded, <= 15 ms", opened, 15, unit=" ms")
    result.at_most("1,000 open session handles <= 10 MB", Spread((memory,)), 10, unit=" MB")
    result.notes.append(
        "`import holdfast` loads its modules at the first use of a public name, so the import is judged with that use, "
        "and the open where all is loaded. The row of both together is the wait of a program that opens one store."
    )
    return result


def python(program: str, *arguments: str) -> float:
    """Return the number that the program prints last."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", program, *arguments]
    printed = subprocess.run(command, env=kept, capture_output=True, text=True, check=True).stdout.split()
    if not printed:
        raise ValueError(f"nothing was measured by: {program}")
    return float(printed[-1])
