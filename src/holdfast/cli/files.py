"""Exports a session to a file and imports it, each as a whole. The file has a manifest and is checked before use."""

from __future__ import annotations

import sys
from typing import IO, Any

from holdfast.cli.commands import SESSION, YES, Command, argument
from holdfast.cli.outputs import whole_file
from holdfast.cli.running import Call, Misused, require_ordinary
from holdfast.cli.terminal import counted, printable

CHUNK_BYTES = 1 << 20
WITHOUT_BYTES = "they live elsewhere, or were never put; if they lie in a folder, name it with --attachments"


def export(call: Call) -> int:
    """Write a session to a file or to standard output."""
    import gzip

    from holdfast.transfer import exporting

    given = call.options
    if given.json and given.output == "-":
        raise Misused("the session and JSON do not go into one stream: add --output FILE")
    with call.store() as store:
        if given.output == "-":
            exporting.export(store, given.session, sys.stdout.buffer)
            return 0
        total = exporting.about(store, given.session)
        with whole_file(call, given.output) as file, call.terminal.progress("exporting", total) as progress:
            packed: Any = file
            if given.output.endswith(".gz"):
                packed = gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0)
            manifest = exporting.export(store, given.session, packed, progress.step)
            if packed is not file:
                packed.close()
    if given.json:
        call.terminal.json({"output": printable(given.output), "manifest": manifest})
    else:
        call.terminal.line(f"wrote {given.output}: {counted(manifest.counts['node'], 'node')}")
        if manifest.without_bytes:
            count = counted(manifest.without_bytes, "attachment")
            call.terminal.line((f"without the bytes of {count}: {WITHOUT_BYTES}", "yellow"))
    return 0


def import_(call: Call) -> int:
    """Read a session from a file or from standard input."""
    import tempfile
    from pathlib import Path

    from holdfast.transfer import bundle, restoring

    given = call.options
    limits = bundle.TRUSTED if given.trusted else bundle.BundleLimits()
    with tempfile.SpooledTemporaryFile(bundle.SPOOLED_BYTES) as spooled:
        file: IO[bytes] = spooled
        if given.file == "-":
            if sys.stdin is None:
                raise Misused("there is no standard input to read from: name a file")
            while chunk := sys.stdin.buffer.read(CHUNK_BYTES):
                if spooled.tell() > limits.total_bytes:
                    break  # refused below
                spooled.write(chunk)
            spooled.seek(0)
        else:
            file = Path(given.file).open("rb")  # noqa: SIM115 - closed below, with what is read from it
        with file:
            read = bundle.Bundle(file, limits)
            total = sum(read.manifest.counts.values())
            if given.into is not None:
                require_ordinary(given.into)
            with call.store(new_folder=True) as store, call.terminal.progress("importing", total) as progress:
                restored = restoring.restore(store, read, into=given.into, step=progress.step)
    if given.json:
        call.terminal.json({"session_id": restored.session_id, "outcome": restored.outcome, "manifest": read.manifest})
    else:
        word = "imported" if restored.outcome == "imported" else "already there"
        call.terminal.line(f"{word}: {restored.session_id}, {counted(read.manifest.counts['node'], 'node')}")
    return 0


COMMANDS = (
    Command(
        "sessions export",
        "write a session to a file",
        export,
        (
            SESSION,
            argument(
                "--output",
                "-o",
                metavar="FILE",
                default="-",
                help="the file; .gz is compressed (default: standard output)",
            ),
            YES,
        ),
        ("holdfast sessions export chat-42 -o chat-42.jsonl.gz", "holdfast sessions export chat-42 | less"),
        "With `--output`, an object: `output`, and `manifest` as in the file.",
        "Asks before it overwrites a file. The page on moving sessions lists the exported data.",
    ),
    Command(
        "sessions import",
        "read a session from a file",
        import_,
        (
            argument("file", metavar="FILE", help="the file, or - for standard input"),
            argument("--as", dest="into", metavar="SESSION", help="import it under this id"),
            argument("--trusted", action="store_true", help="accept a file of any size"),
        ),
        ("holdfast sessions import chat-42.jsonl.gz", "holdfast sessions import chat-42.jsonl --as chat-42-copy"),
        "An object: `session_id`, `outcome` (`imported` or `already_there`), and `manifest` as in the file.",
        "Validates the whole file before it writes: a refused file leaves no trace. Importing the same file again\n"
        "changes nothing. Without --trusted, a line may have 144 MiB, and the file 4 GiB and 1,000,000 lines after\n"
        "decompression, enough for the exports of stores with default limits.",
    ),
)
