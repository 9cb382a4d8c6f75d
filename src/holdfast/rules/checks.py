"""Checks of input values: each returns the value that it was given, or refuses it and names the field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast, overload

from holdfast.codec import Unfit, checked_document, decode_cursor
from holdfast.errors import InvalidRequest
from holdfast.loop_budget import charge
from holdfast.records.common import Document, Scope, Token
from holdfast.records.limits import LARGEST_INTEGER, Limits

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
W = TypeVar("W")
X = TypeVar("X")

LISTS: Final = (list, tuple)
BYTES: Final = (bytes, bytearray, memoryview)
"""Types that are looked for in every call: a union would be built anew each time."""

LEFT_OUT: Final = ()
"""The default of a field that is a list. It is one object, so that a check can return at once if it is given."""

DEFAULT_PAGE = 50
DEFAULT_CLAIM = 64


def identifier(field: str, value: object, limits: Limits) -> str:
    """Check an id: text that is not blank, holds no NUL and is not too long. Any other character is allowed."""
    # Fast path: nearly every id begins with a visible character and is printable ASCII, one byte per character
    # and without NUL.
    if (
        type(value) is str
        and value[:1] > " "
        and len(value) <= limits.id_bytes
        and value.isascii()
        and value.isprintable()
    ):
        return value
    if not isinstance(value, str):
        raise InvalidRequest(field, f"must be text, not {type(value).__name__}")
    if not value.strip():
        raise InvalidRequest(field, "must not be blank")
    if "\0" in value:
        raise InvalidRequest(field, "must not contain NUL")
    size = len(_utf8(field, value))
    if size > limits.id_bytes:
        raise InvalidRequest(field, f"is {size} bytes long, the limit is {limits.id_bytes}", limit=limits.id_bytes)
    return _plain(value)


def optional_identifier(field: str, value: object, limits: Limits) -> str | None:
    """Check an id, or None."""
    return None if value is None else identifier(field, value, limits)


def text(field: str, value: object, limits: Limits) -> str:
    """Check free text: within the limit, and without NUL, which not every database column can hold."""
    if not isinstance(value, str):
        raise InvalidRequest(field, f"must be text, not {type(value).__name__}")
    if "\0" in value:
        raise InvalidRequest(field, "must not contain NUL")
    size = len(_utf8(field, value))
    if size > limits.text_bytes:
        raise InvalidRequest(field, f"is {size} bytes long, the limit is {limits.text_bytes}", limit=limits.text_bytes)
    return _plain(value)


def optional_text(field: str, value: object, limits: Limits) -> str | None:
    """Check free text, or None."""
    return None if value is None else text(field, value, limits)


def _plain(value: str) -> str:
    """Return the text itself: `str()` of an enum member that is text would be its name."""
    return str.__str__(value)


def _utf8(field: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, "contains a lone surrogate, which is not text") from None


def whole(field: str, value: object, *, least: int = 0, most: int = LARGEST_INTEGER) -> int:
    """Check a whole number in `least` … `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(field, f"must be a whole number, not {type(value).__name__}")
    if value < least:
        raise InvalidRequest(field, f"must be at least {least}", limit=least)
    if value > most:
        raise InvalidRequest(field, f"must be at most {most}", limit=most)
    return value


def optional_whole(field: str, value: object, *, least: int = 0, most: int = LARGEST_INTEGER) -> int | None:
    """Check a whole number, or None."""
    return None if value is None else whole(field, value, least=least, most=most)


def flag(field: str, value: object) -> bool:
    """Check for True or False."""
    if not isinstance(value, bool):
        raise InvalidRequest(field, f"must be True or False, not {type(value).__name__}")
    return value


def callback(field: str, value: Callable[[T], None] | None) -> Callable[[T], None] | None:
    """Check for a callable, or None."""
    if value is not None and not callable(value):
        raise InvalidRequest(field, f"must be callable, not {type(value).__name__}")
    return value


def one_of(field: str, value: object, words: Sequence[str]) -> str:
    """Check for one of a closed set of words."""
    if not isinstance(value, str) or value not in words:
        raise InvalidRequest(field, f"must be one of {', '.join(words)}")
    return value


@overload
def instance(field: str, value: object, kind: type[T]) -> T: ...
@overload
def instance(field: str, value: object, kind: tuple[type[T], type[U]]) -> T | U: ...
@overload
def instance(field: str, value: object, kind: tuple[type[T], type[U], type[V]]) -> T | U | V: ...
@overload
def instance(field: str, value: object, kind: tuple[type[T], type[U], type[V], type[W]]) -> T | U | V | W: ...
@overload
def instance(
    field: str, value: object, kind: tuple[type[T], type[U], type[V], type[W], type[X]]
) -> T | U | V | W | X: ...
def instance(field: str, value: object, kind: type[Any] | tuple[type[Any], ...]) -> Any:
    """Check for an instance of one of the types."""
    if not isinstance(value, kind):
        names = kind.__name__ if isinstance(kind, type) else " or ".join(one.__name__ for one in kind)
        if isinstance(value, type):
            raise InvalidRequest(field, f"must be {names}, not the class {value.__name__}: call it to make one")
        raise InvalidRequest(field, f"must be {names}, not {type(value).__name__}")
    return value


def sequence(field: str, value: Any, *, most: int) -> Sequence[Any]:
    """Check a list or tuple of at most `most` items."""
    items: Sequence[Any] = value
    if not isinstance(items, LISTS):
        raise InvalidRequest(field, f"must be a list or tuple, not {type(value).__name__}")
    if len(items) > most:
        raise InvalidRequest(field, f"has {len(items)} items, the limit is {most}", limit=most)
    return items


def mapping(field: str, value: Any, *, most: int) -> dict[str, Any]:
    """Check a dict of at most `most` items."""
    items: dict[str, Any] = value
    if not isinstance(value, dict):
        raise InvalidRequest(field, f"must be a dict, not {type(value).__name__}")
    if len(items) > most:
        raise InvalidRequest(field, f"has {len(items)} items, the limit is {most}", limit=most)
    return items


def document(
    field: str, value: Document, limits: Limits, *, most: int | None = None, wrapped: int = 0, canonical: bool = False
) -> bytes:
    """Return a JSON value as the bytes to store. `wrapped` is the number of its levels that are not the caller's."""
    size = limits.document_bytes if most is None else most
    checked = checked_document(value, depth=limits.document_depth + wrapped, size=size, canonical=canonical)
    if isinstance(checked, Unfit):
        raise InvalidRequest(field, checked.problem, limit=checked.limit)
    return checked


def optional_document(field: str, value: Document | None, limits: Limits) -> bytes | None:
    """Return a JSON value as the bytes to store, or None for None."""
    return None if value is None else document(field, value, limits)


def content(field: str, value: object, *, most: int) -> bytes:
    """Return bytes within the limit."""
    if not isinstance(value, BYTES):
        raise InvalidRequest(field, f"must be bytes, not {type(value).__name__}")
    charge(memoryview(cast("bytes", value)).nbytes)
    data = bytes(cast("bytes | bytearray", value))
    if len(data) > most:
        raise InvalidRequest(field, f"is {len(data)} bytes long, the limit is {most}", limit=most)
    return data


def token(field: str, value: object) -> Token:
    """Check the form of a claim's or lease's secret."""
    if not isinstance(value, str) or not value or len(value) > 128 or not value.isascii():
        raise InvalidRequest(field, "is not a token that this store handed out")
    return Token(value)


def scope(field: str, value: object, limits: Limits) -> Scope:
    """Check a session or one of its frames. An empty frame id means none."""
    given = instance(field, value, Scope)
    frame_id = optional_identifier(f"{field}.frame_id", None if given.frame_id == "" else given.frame_id, limits)
    return Scope(identifier(f"{field}.session_id", given.session_id, limits), frame_id)


def page_size(value: object, limits: Limits) -> int:
    """Check the most items of a page. The default follows a store whose pages are smaller."""
    return _most("limit", value, DEFAULT_PAGE, limits)


def claim_size(value: object, limits: Limits) -> int:
    """Check the most batches of a claim. The default follows a store whose pages are smaller."""
    return _most("max_batches", value, DEFAULT_CLAIM, limits)


def _most(field: str, value: object, default: int, limits: Limits) -> int:
    if type(value) is int and value == default:
        return min(default, limits.page)
    return whole(field, value, least=1, most=limits.page)


def cursor(listing: str, after: object, kinds: Sequence[type]) -> tuple[Any, ...] | None:
    """Return the place where a listing continues, or None for its start."""
    return None if after is None else decode_cursor(listing, after, kinds)


def timeout(field: str, value: object) -> int:
    """Check a timeout in milliseconds."""
    return whole(field, value, most=365 * 24 * 3600 * 1000)
