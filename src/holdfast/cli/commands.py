"""Declares a command once, as a value. Parser, help, completion and manual are all made from it."""

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
    """One argument or option, with its argparse settings."""

    names: tuple[str, ...]
    settings: dict[str, Any]


class Command(NamedTuple):
    """One command: its name, arguments, function and output."""

    name: str
    summary: str
    run: Callable[[Call], int]
    arguments: tuple[Argument, ...] = ()
    examples: tuple[str, ...] = ()
    json: str = ""
    notes: str = ""
    opens_a_store: bool = True
    without: tuple[str, ...] = ()
    """Options that every other command has and that have no meaning here."""
    because: str = ""
    """The reason why they have none, as the end of a sentence."""


def argument(*names: str, **settings: Any) -> Argument:
    """Declare an argument or option."""
    return Argument(names, settings)


# Argument types.


def duration_ms(text: str) -> int:
    """Parse a duration with its unit into milliseconds."""
    number = text.rstrip("dhms")
    unit = text[len(number) :]
    if not number.isascii() or not number.isdigit() or unit not in DURATIONS_MS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of time: write 500ms, 30s, 15m, 12h or 7d")
    return _bounded(text, int(number) * DURATIONS_MS[unit])


def up_to(most: str) -> Callable[[str], int]:
    """Return a parser for durations of at most this length."""

    def bounded_ms(text: str) -> int:
        value = duration_ms(text)
        if value > duration_ms(most):
            raise argparse.ArgumentTypeError(f"{text} is longer than {most}")
        return value

    return bounded_ms


def whole(text: str) -> int:
    """Parse a whole number from 0 on."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return _bounded(text, int(text))


def label(text: str) -> tuple[str, str]:
    """Parse a label: its key, an equals sign, its value, which may be empty."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not a label: write KEY=VALUE")
    return key, value


def page_size(text: str) -> int:
    """Parse the size of a page."""
    number = whole(text)
    if not 1 <= number <= MOST_OF_A_PAGE:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {MOST_OF_A_PAGE}")
    return number


def _bounded(text: str, value: int) -> int:
    if value > LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is too large")
    return value


def document(text: str) -> object:
    """Parse a JSON document: the text itself, or `@file` to read it from a file."""
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
LIMIT = argument("--limit", metavar="N", type=page_size, default=50, help="rows to show (default 50, at most 1000)")
AFTER = argument("--after", metavar="CURSOR", help="continue after this cursor, the `next` of an earlier page")
PAGE = (LIMIT, AFTER)
PAGE_JSON = "An object with `items` and `next` (the cursor for `--after`, or null at the end)."
