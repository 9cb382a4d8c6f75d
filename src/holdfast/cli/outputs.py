"""A file that a command writes is whole or as it was; what is no plain file is written to and never replaced."""

from __future__ import annotations

import contextlib
import os
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.cli.running import Call


def ask_to_overwrite(call: Call, name: str) -> None:
    """Go on if there is no file of this name, or it may be replaced; writing to a pipe or a device removes nothing."""
    from pathlib import Path

    if Path(name).is_file():
        call.confirm(f"Overwrite {name!r}?")


@contextlib.contextmanager
def whole_file(name: str) -> Generator[IO[bytes]]:
    """What is written here becomes the file of this name at the end, if the end is reached."""
    import secrets
    import shutil
    from pathlib import Path

    given = Path(name)
    if given.exists() and not given.is_file():
        with given.open("wb") as file:
            yield file
        return
    # A link stays a link: what it leads to is replaced, by a file beside that.
    target = given.resolve()
    unfinished = target.with_name(f"{target.name}.{secrets.token_hex(4)}.unfinished")
    try:
        file = unfinished.open("xb")
    except OSError as error:
        error.filename = name
        raise
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, unfinished)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
