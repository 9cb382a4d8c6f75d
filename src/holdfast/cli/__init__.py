"""The command line is arguments in, store calls, rendering out; it knows nothing but the public store."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and say with the exit code how it went."""
    import sys

    from holdfast.cli.running import run

    return run(sys.argv[1:] if arguments is None else list(arguments))
