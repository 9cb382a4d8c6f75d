"""Texts measured and cut by the columns that they take on a terminal: a Chinese letter takes two, an accent none."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def columns_of(text: str) -> int:
    """Return the number of columns of a printable text.

    >>> from holdfast.cli.text_width import columns_of
    >>> columns_of("chat"), columns_of("会話"), columns_of("e\\u0301")
    (4, 4, 1)
    """
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(one: str) -> int:
    if unicodedata.category(one) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(one) in "WF" else 1


def beginning(text: str, most: int) -> str:
    """Return as much of the beginning as fits."""
    return "".join(_taken(text, most))


def end(text: str, most: int) -> str:
    """Return as much of the end as fits."""
    return "".join(_taken(reversed(text), most))[::-1]


def _taken(letters: Iterable[str], most: int) -> Iterable[str]:
    for one in letters:
        most -= _columns(one)
        if most < 0:
            return
        yield one


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Fill text with blanks up to a width, on its left side if it belongs to the `right`."""
    blanks = " " * (width - columns_of(text))
    return blanks + text if right else text + blanks


def wrapped(text: str, width: int) -> list[str]:
    """Return text in lines of at most this width. A word that is longer than a line is cut."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        rest = word if not line else f"{line} {word}"
        if columns_of(rest) > width and line:
            lines.append(line)
            rest = word
        while columns_of(rest) > width:
            head = beginning(rest, width) or rest[0]
            lines.append(head)
            rest = rest[len(head) :]
        line = rest
    return [*lines, line] if line else lines
