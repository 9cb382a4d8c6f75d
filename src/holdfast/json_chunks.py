"""Check and decode large JSON in pieces, so that no call holds the interpreter's lock for long.

A call of msgspec runs to its end before any other thread runs Python code, the thread of an event loop included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from holdfast.loop_budget import charge, is_large

T = TypeVar("T")

TEXT_PIECE: Final = 256 * 1024
"""Characters of a text that are encoded at once."""

DECODED_AT_ONCE: Final = 64 * 1024
"""Bytes of JSON that are decoded at once: every two of them may become an object."""

MOST_ITEMS: Final = 8192
"""Items of a container that are weighed together."""
STEADY_ITEMS: Final = 16
STEADY_GROUPS: Final = 16

COMMA, BACKSLASH = b",\\"
OPEN_BRACKETS, CLOSE_BRACKETS = b"[{", b"]}"
LONGEST_ESCAPE: Final = 6
DEEPEST: Final = 128
"""Nested containers that are read in pieces: each costs a scan of a whole piece."""
DEEPEST_STORED: Final = 512
"""No stored document or record is nested deeper."""

BETWEEN: Final = {b"{": b"},{", b"[": b"],[", b'"': b'","'}
"""Probable text between an item that begins like this and the next one."""


# Encoding.

Encode = Callable[[Any], bytes]


class Piece(NamedTuple):
    """A part of a value that is encoded at once, without its brackets if it stands between others."""

    value: Any
    brackets: bytes = b""

    @property
    def is_text(self) -> bool:
        """True if it is text, or JSON between pieces: if it can be encoded, it comes back equal."""
        return type(self.value) in (str, bytes)

    def closed(self, data: bytes) -> bytes:
        """Put the brackets back."""
        return self.brackets[:1] + data + self.brackets[1:] if self.brackets else data


def encoded(value: object, encode: Encode, *, ordered: bool) -> Iterator[tuple[Piece, bytes]]:
    """Split a document into pieces, and yield each with its JSON; `ordered` sorts keys."""
    for piece in _pieces_of(value, encode, ordered):
        if isinstance(piece, bytes):
            yield Piece(piece), piece
        else:
            data = encode(piece.value)
            yield piece, data[1:-1] if piece.brackets else data


def _pieces_of(value: object, encode: Encode, ordered: bool) -> Iterator[Piece | bytes]:
    kind = type(value)
    if not is_large(value):
        yield Piece(value)
    elif kind is list:
        yield b"["
        yield from _of_list(cast("list[Any]", value), encode, ordered)
        yield b"]"
    elif kind is dict:
        yield b"{"
        yield from _of_dict(cast("dict[Any, Any]", value), encode, ordered)
        yield b"}"
    elif kind is str:
        yield b'"'
        text = cast("str", value)
        for start in range(0, len(text), TEXT_PIECE):
            yield Piece(text[start : start + TEXT_PIECE], b'""')
        yield b'"'
    else:
        yield Piece(value)


def _of_list(values: list[Any], encode: Encode, ordered: bool) -> Iterator[Piece | bytes]:
    comma = b""
    for group, large in _groups(values.copy(), list):
        yield comma
        comma = b","
        if large:
            yield from _pieces_of(group[0], encode, ordered)
        else:
            yield Piece(group, b"[]")


def _of_dict(values: dict[Any, Any], encode: Encode, ordered: bool) -> Iterator[Piece | bytes]:
    comma = b""
    items = list(values.items())
    if ordered:
        items.sort(key=itemgetter(0))
    for group, large in _groups(items, dict):
        yield comma
        comma = b","
        if large:
            [(key, one)] = group.items()
            yield encode(key) + b":"
            yield from _pieces_of(one, encode, ordered)
        else:
            yield Piece(group, b"{}")


def _groups(items: list[Any], kind: Callable[[list[Any]], T]) -> Iterator[tuple[T, bool]]:
    """Group adjacent items that together are not large. A large item comes alone, with True."""
    start = fitted = 0
    count = 1
    while start < len(items):
        group = kind(items[start : start + count])
        large = is_large(group)
        while count > 1 and large:
            count = (count + 1) // 2
            fitted = 0
            group = kind(items[start : start + count])
            large = is_large(group)
        yield group, large
        start += count
        fitted += 1
        # Grow while all groups fit, later only occasionally: weighing a group that is too large is wasted.
        if count < STEADY_ITEMS or fitted % STEADY_GROUPS == 0:
            count = min(2 * count, MOST_ITEMS)


# Decoding.

TOKENS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{}]', re.DOTALL)
"""Matches tokens that delimit values: whole text, brackets, and the quote of a text that continues beyond the piece."""

CLOSING: Final[dict[type, bytes]] = {list: b"]", dict: b"}"}
OPENING: Final[dict[bytes, Callable[[], Any]]] = {b"[": list, b"{": dict}


class Unexpected(Exception):
    """JSON text that the encoders of this library do not write."""


def decoded(data: bytes, decode: Callable[[bytes], Any]) -> Any:
    """Decode JSON. Invalid JSON raises as `decode` does."""
    charge(len(data))
    if len(data) <= DECODED_AT_ONCE:
        return decode(data)
    try:
        return Reader(data, decode).read()
    except (Unexpected, msgspec.DecodeError, UnicodeDecodeError):
        # Spaces, a pair of surrogates, or invalid JSON.
        return decode(data)


class Reader:
    """Decodes a large JSON text.

    Containers larger than one piece are open, one inside the other. The items of the innermost are decoded as many at a
    time as fit into a piece.
    """

    def __init__(self, data: bytes, decode: Callable[[bytes], Any]) -> None:
        self._data = data
        self._decode = decode
        self._place = 0
        self._found: list[Any] = []
        self._open: list[Any] = [self._found]

    def read(self) -> Any:
        """Read the whole text."""
        data = self._data
        self._enter(0)
        while len(self._open) > 1:
            start = self._place
            innermost: Any = self._open[-1]
            if self._guess(innermost, start):
                continue
            end, closes = self._cut(start)
            if end > start:
                self._take(innermost, data[start:end])
            elif not closes:
                self._enter(start)
                continue
            self._place = end + 1
            if closes:
                self._leave(innermost, end)
        if self._place != len(data) or len(self._found) != 1:
            raise Unexpected
        return self._found[0]

    def _guess(self, container: Any, start: int) -> bool:
        """Take items up to a probable end. If the bytes before it are valid JSON, an item does end there."""
        data = self._data
        between = BETWEEN.get(data[start : start + 1], b",")
        cut = data.rfind(between, start, start + DECODED_AT_ONCE)
        cut += len(between) // 2
        if not _is_list(container) or cut <= start or start + DECODED_AT_ONCE >= len(data):
            return False
        try:
            container.extend(self._decode(b"[" + data[start:cut] + b"]"))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        self._place = cut + 1
        return True

    def _take(self, container: Any, items: bytes) -> None:
        if _is_list(container):
            container.extend(self._decode(b"[" + items + b"]"))
        else:
            container.update(self._decode(b"{" + items + b"}"))

    def _leave(self, container: Any, end: int) -> None:
        """Continue after a container, in the one around it."""
        data = self._data
        if data[end : end + 1] != CLOSING[type(container)] or (end > 0 and data[end - 1 : end] == b","):
            raise Unexpected
        self._open.pop()
        if len(self._open) > 1:
            self._after_value()

    def _after_value(self) -> None:
        """Skip the comma after a large value. The next `_cut` finds a closing bracket."""
        following = self._data[self._place : self._place + 1]
        if following == b",":
            self._place += 1
            if self._data[self._place : self._place + 1] in (b"]", b"}"):
                raise Unexpected
        elif following not in (b"]", b"}"):
            raise Unexpected

    def _cut(self, start: int) -> tuple[int, bool]:
        """Return the end of the last item that fits into a piece, and True if the container ends there."""
        data = self._data
        limit = min(start + DECODED_AT_ONCE, len(data))
        cut = last = start
        depth = 0
        for token in TOKENS.finditer(data, start, limit):
            first, last = token.span()
            kind = data[first]
            if depth == 0 and first > start and data[first - 1] == COMMA:
                cut = first - 1
            if kind in OPEN_BRACKETS:
                depth += 1
                if depth > DEEPEST_STORED:
                    raise Unexpected
            elif kind in CLOSE_BRACKETS:
                if depth == 0:
                    return first, True
                depth -= 1
            elif last - first == 1:  # text that continues
                return cut, False
        if depth == 0:
            cut = max(cut, data.rfind(b",", last, limit))
        return cut, False

    def _enter(self, start: int) -> None:
        """Open the container, or read the text, that begins here and is larger than a piece."""
        data = self._data
        key = None
        around: Any = self._open[-1]
        if not _is_list(around):
            token = TOKENS.match(data, start)
            if token is None or data[token.end() : token.end() + 1] != b":":
                raise Unexpected
            key = self._decode(token.group())
            start = token.end() + 1
        opening = OPENING.get(data[start : start + 1])
        value: Any
        if opening is not None:
            if len(self._open) > DEEPEST:
                raise Unexpected
            value = opening()
            self._place = start + 1
        else:
            end = self._end_of_text(start)
            value = "".join(self._text(start + 1, end))
            self._place = end + 1
        if key is None:
            around.append(value)
        else:
            around[key] = value
        if opening is not None:
            self._open.append(value)
        elif len(self._open) > 1:
            self._after_value()

    def _end_of_text(self, start: int) -> int:
        """Return the place of the closing quote."""
        data = self._data
        end = start if data[start : start + 1] == b'"' else -1
        while end >= 0:
            end = data.find(b'"', end + 1)
            if end >= 0 and (data[end - 1] != BACKSLASH or not _is_escape(data, start, end - 1)):
                return end
        raise Unexpected

    def _text(self, start: int, end: int) -> Iterator[str]:
        """Decode a large text in parts that end between two characters."""
        data = self._data
        while start < end:
            stop = min(start + DECODED_AT_ONCE, end)
            if stop < end:
                escape = data.rfind(b"\\", max(start, stop - LONGEST_ESCAPE), stop)
                if escape >= 0 and _is_escape(data, start, escape):
                    stop = escape
                while data[stop] & 0xC0 == 0x80:
                    stop -= 1
            if stop <= start:
                raise Unexpected
            yield self._decode(b'"' + data[start:stop] + b'"')
            start = stop


def _is_list(container: Any) -> bool:
    return isinstance(container, list)


def _is_escape(data: bytes, start: int, place: int) -> bool:
    """Return True if the backslash at a place begins an escape, and is not escaped itself."""
    run = place
    while run > start and data[run - 1] == BACKSLASH:
        run -= 1
    return (place - run) % 2 == 0
