"""Estimate from the text of a regular expression its compiled size and the work of matching it.

A pattern of plain syntax is matched in one pass over the text. The pass is quick if the matcher needs few states: the
pattern is short, or each character leads to only one place in it. Otherwise each character may cost as much as the
pattern is long. Other syntax (look-around, references, atomic groups, flags) is matched by backtracking, and costs the
square of the text. The estimates hold for valid patterns; the validator refuses others.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import msgspec

GOING_BACK = 10_000
"""Backtracking steps after which a matcher gives up."""

FEW = 10
"""Up to this many places in a pattern make few sets of places, however they are combined."""

LONG = 600
"""A pattern with more states than this has more than a matcher caches."""

UNCACHED_WORK = 20
"""The work of one character if the state after it is not cached, without the work for the places in it."""

QUICK_WORK = 8
"""The work of 64 characters if every state is cached."""

WIDE_STATES = 8
"""The states of a set with multi-byte characters (beyond ASCII), for each range of them."""

PROPERTY_STATES = 2_000
"""The states of a set that Unicode defines."""

TOKEN = re.compile(
    r"""
      (?P<quantifier> (?: [*+?] | \{ (?P<least>[0-9]+) (?P<range> , (?P<most>[0-9]*) )? \} ) \?? )
    | (?P<open> \( (?: \?: | (?P<special> \? (?: P?<(?![=!])[^>]*>? | (?P<flags>[A-Za-z-]*) ) ) )? )
    | (?P<close> \) )
    | (?P<either> \| )
    | (?P<anchor> [\^$] | \\[Az] | \\[bB] (?: \{[a-z-]+\} )? )
    | (?P<narrow> [^.\\\[\x80-\U0010ffff] | \\[dwtnrfv] | \\x[0-7][0-9A-Fa-f] | \\[!-/:-@\[-`{-~]
                | \[ (?!\^) \]? (?: [\ -\[^-~] | \\[dw!-/:-@\[-`{-~] )*+ \] )
    | (?P<property> \\[pP] (?: \{[^}]*\}? | . )? )
    | (?P<wide> \\[DWSs] | \\x[0-9A-Fa-f]{2} | \\u[0-9A-Fa-f]{4} | \\[xu]\{[0-9A-Fa-f]+\}
              | \[ \^? \]? (?: [^\]\\] | \\. )*+ \]? | [^\\] )
    | (?P<unknown> \\ .? )
    """,
    re.VERBOSE | re.DOTALL,
)
"""Matches the next token of a pattern, as the validator reads it: a `[` inside brackets is a character."""


class PatternCost(msgspec.Struct, frozen=True):
    """The size of a compiled pattern, and the way in which it is matched."""

    states: int
    """Upper estimate of its size."""
    places: int
    """The number of places in it that a match may be at, all at once."""
    going: Literal["quick", "slow", "back"]

    def work(self, length: int) -> int:
        """Return the most work of matching a text of this many characters."""
        if self.going == "back":
            return (GOING_BACK + length) * (1 + length * self.places // 64)
        return (length + 16) * self.unit_work // 64

    @property
    def unit_work(self) -> int:
        """The most work of 64 characters of text, if it is matched without backtracking."""
        return QUICK_WORK if self.going == "quick" else 64 * (UNCACHED_WORK + self.places // 2)


def cost_of_pattern(pattern: str) -> PatternCost:
    """Return the cost of a pattern. Raise `ValueError` with the reason if it cannot be estimated."""
    reader = _Reader()
    for token in TOKEN.finditer(pattern):
        reader.take(token)
    states, places = reader.size
    if reader.goes_back:
        return PatternCost(states, places, "back")
    if reader.is_line:
        return PatternCost(states, 1, "quick" if states <= LONG else "slow")
    return PatternCost(states, places, "quick" if places <= FEW else "slow")


class _Size(NamedTuple):
    """The states and places of a part of a pattern."""

    states: int
    places: int

    def with_copies(self, last: _Size, copies: int) -> _Size:
        """Return it with more copies of its last part."""
        return _Size(self.states + last.states * copies, self.places + last.places * copies)


EMPTY, NO_PLACE = _Size(0, 0), _Size(1, 0)


class _Reader:
    """Adds up the tokens of a pattern from left to right."""

    def __init__(self) -> None:
        self.size = EMPTY
        """The size of the innermost open group, or of the whole pattern."""
        self.goes_back = False
        self.is_line = True
        """True while it begins at the start of the text, has no groups, and only the last of its counts varies."""
        self._outer: list[_Size] = []
        self._last = EMPTY
        self._is_counted = False
        self._varies = False

    def take(self, token: re.Match[str]) -> None:
        """Add the next token."""
        kind, text = str(token.lastgroup), token[0]
        if kind == "quantifier":
            self._count(token)
            return
        self._is_counted = False
        is_edge = (text == "^" and token.start() == 0) or (text == "$" and token.end() == len(token.string))
        is_set = kind in ("narrow", "wide", "property")
        self.is_line &= is_edge or (is_set and token.start() > 0 and not self._varies)
        if kind == "open":
            self._open(token)
        elif kind == "close" and self._outer:
            self._last, self.size = self.size, self._outer.pop().with_copies(self.size, 1)
        else:
            self.goes_back |= kind == "unknown"
            self._last = _size_of(kind, text)
            self.size = self.size.with_copies(self._last, 1)

    def _open(self, token: re.Match[str]) -> None:
        if "x" in (token["flags"] or ""):
            raise ValueError(f"the pattern {token.string[:40]!r} has the flag x: write it without spaces and comments")
        self.goes_back |= token["special"] is not None
        self._outer.append(self.size)
        self.size = NO_PLACE

    def _count(self, token: re.Match[str]) -> None:
        """Add the copies of the last part that a quantifier compiles to."""
        self.goes_back |= self._is_counted  # a quantifier of a quantifier makes it possessive
        self._is_counted = True
        self._varies |= token["least"] is None or token["range"] is not None
        least = _number(token["least"]) + (token["range"] is not None)
        copies = max(1, least, _number(token["most"]))
        self.size = self.size.with_copies(self._last, copies - 1)
        self._last = EMPTY.with_copies(self._last, copies)


def _number(digits: str | None) -> int:
    """Return a number. Digits after the ninth are dropped: it is large enough."""
    return int((digits or "").lstrip("0")[:9] or 0)


def _size_of(kind: str, text: str) -> _Size:
    match kind:
        case "narrow":
            return _Size(1, 1)
        case "wide" if r"\p" not in text.lower():
            ranges = sum(not sign.isascii() for sign in text) if text[0] == "[" else 0
            return _Size(WIDE_STATES * (1 + ranges + text[1:].count("\\")), 2)
        case "wide" | "property":
            return _Size(PROPERTY_STATES, FEW + 1)
        case _:
            return NO_PLACE
