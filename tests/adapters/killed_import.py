"""Runs the command line, and kills its own process at a commit: before it, or after it with the answer lost."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import holdfast
from holdfast import cli


def main(at: int, *arguments: str) -> int:
    """Run a command that dies at the commit with the number `at`, after it if the number is negative."""
    with holdfast.open_blocking("memory:") as store:
        kind: Any = type(store.sessions.handle("x"))
    commit, seen = kind.commit, [0]

    def counted(self: Any, *given: Any, **named: Any) -> Any:
        seen[0] += 1
        if seen[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        receipt = commit(self, *given, **named)
        if seen[0] == -at:
            os.kill(os.getpid(), signal.SIGKILL)
        return receipt

    kind.commit = counted
    return cli.main([*arguments])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
