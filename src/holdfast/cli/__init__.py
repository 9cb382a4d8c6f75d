"""The command line: parse arguments, call the public store, print the result. It uses no internals of the store."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    import sys

    from holdfast.cli.running import run

    return run(sys.argv[1:] if arguments is None else list(arguments))
