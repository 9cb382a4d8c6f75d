"""S11: what do an import, an open store and many handles cost?"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.core import Bench, Result, Table
from benchmarks.statistics import Spread

ID, QUESTION = "S11", "`import holdfast`; opening an existing SQLite store; memory of 1,000 open session handles"

BARE = "import time; began = time.perf_counter(); import asyncio, sqlite3; print((time.perf_counter() - began) * 1000)"
IMPORT = "import time; began = time.perf_counter(); import holdfast; print((time.perf_counter() - began) * 1000)"
MAKE = "import sys, holdfast; holdfast.open_blocking(sys.argv[1]).close()"
OPEN = """
import sys, time, holdfast
began = time.perf_counter()
store = holdfast.open_blocking(sys.argv[1])
print((time.perf_counter() - began) * 1000)
store.close()
"""
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
    """Each in a process of its own, several times."""
    result = Result(ID, QUESTION)
    path = bench.file()
    python(MAKE, path)
    rounds = bench.size(max(bench.rounds, 10), 3)
    found: dict[str, list[float]] = {"import asyncio, sqlite3": [], "import holdfast": [], "open": []}
    for number in range(rounds):
        bench.tell(f"round {number + 1} of {rounds}")
        found["import asyncio, sqlite3"].append(python(BARE))
        found["import holdfast"].append(python(IMPORT))
        found["open"].append(python(OPEN, path))
    bench.tell("1,000 handles")
    memory = python(HANDLES, bench.file())
    table = Table("In a fresh process", ("", "ms"))
    table.rows = [[name, Spread(tuple(values)).show()] for name, values in found.items()]
    table.title = "In a fresh process, with warm files"
    result.tables.append(table)
    result.data["milliseconds"] = found
    result.data["megabytes of 1,000 handles"] = memory
    result.at_most("`import holdfast` <= 60 ms", Spread(tuple(found["import holdfast"])), 60, unit=" ms")
    opened = Spread(tuple(found["open"]))
    result.at_most("open of an existing SQLite store <= 15 ms", opened, 15, unit=" ms")
    result.at_most("1,000 open session handles <= 10 MB", Spread((memory,)), 10, unit=" MB")
    return result


def python(program: str, *arguments: str) -> float:
    """What the program prints last, 0 if it prints nothing."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return float((done.stdout.split() or ["0"])[-1])
