"""A command is declared once, as a value: parser, help, completion and manual are all made from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from holdfast.cli.running import Call

DURATIONS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LARGEST = 2**63 - 1
MOST_OF_A_PAGE = 1000


class Argument(NamedTuple):
    """One argument or option, as argparse is told of it."""

    names: tuple[str, ...]
    settings: dict[str, Any]


class Command(NamedTuple):
    """One command: what it is called, takes, does and prints."""

    name: str
    summary: str
    run: Callable[[Call], int]
    arguments: tuple[Argument, ...] = ()
    examples: tuple[str, ...] = ()
    json: str = ""
    notes: str = ""
    opens_a_store: bool = True
    without: tuple[str, ...] = ()
    """Options that every other command has, and that would mean nothing here."""


def argument(*names: str, **settings: Any) -> Argument:
    """An argument or option."""
    return Argument(names, settings)


# What arguments may look like.


def duration_ms(text: str) -> int:
    """A length of time with its unit, in milliseconds."""
    number = text.rstrip("dhms")
    unit = text[len(number) :]
    if not number.isascii() or not number.isdigit() or unit not in DURATIONS_MS:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time: write 500ms, 30s, 15m, 12h or 7d")
    return _bounded(text, int(number) * DURATIONS_MS[unit])


def up_to(most: str) -> Callable[[str], int]:
    """A length of time that is not longer than this one."""

    def bounded_ms(text: str) -> int:
        value = duration_ms(text)
        if value > duration_ms(most):
            raise argparse.ArgumentTypeError(f"{text} is longer than {most}")
        return value

    return bounded_ms


def whole(text: str) -> int:
    """A whole number from 0 on."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return _bounded(text, int(text))


def page_size(text: str) -> int:
    """As many as one page may have."""
    number = whole(text)
    if not 1 <= number <= MOST_OF_A_PAGE:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {MOST_OF_A_PAGE}")
    return number


def _bounded(text: str, value: int) -> int:
    if value > LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is too large")
    return value


def document(text: str) -> object:
    """A JSON document: as text, or `@file` to read it from there."""
    from pathlib import Path

    import msgspec

    try:
        data = Path(text[1:]).read_bytes() if text.startswith("@") else text.encode()
        return msgspec.json.decode(data)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {text[1:]!r}: {error.strerror}") from None
    except (ValueError, RecursionError):
        # msgspec's own errors and text that is not UTF-8 are value errors, too.
        raise argparse.ArgumentTypeError("is not JSON: quote text as '\"text\"', or write @file") from None


# Arguments that several commands share.

SESSION = argument("session", metavar="SESSION", help="the session's id")
PROCESS = argument("process", metavar="PROCESS", help="the process's id")
YES = argument("--yes", "-y", action="store_true", help="do it without asking")
LIMIT = argument("--limit", metavar="N", type=page_size, default=50, help="how many to show (default 50, at most 1000)")
AFTER = argument("--after", metavar="CURSOR", help="go on after this cursor, the `next` of an earlier page")
PAGE = (LIMIT, AFTER)
PAGE_JSON = "An object with `items` and `next` (the cursor for `--after`, or null at the end)."
