"""Values become bytes and come back equal, or an error says why; stored bytes are data and never code.

Documents (the caller's JSON) are stored as they were sent, key order included, unless they are named by their content:
then equal values must be equal bytes, and keys are sorted. Records (our own values) carry a format
version in their first byte. Content is named by the SHA-256 of its uncompressed bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar, cast

import msgspec

from holdfast.errors import Corrupt, InvalidRequest
from holdfast.records.common import Document
from holdfast.records.limits import LARGEST_CONTENT, SMALLEST_INTEGER

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")

RECORD_FORMAT = 1
"""The format of stored records; a reader refuses a format that it does not know."""

COMPRESS_FROM_BYTES = 256
"""Smaller contents are stored as they are: a frame header would eat what compression saves."""

LARGEST_WINDOW_LOG = 27
"""The largest window, 128 MiB, that a reader of zstd grants without being asked for more."""

CHUNK_BYTES = 4 * 1024 * 1024
"""How much of a content is in memory at a time while it is only proven."""

Encoding = Literal["raw", "zstd", "delta"]
ContentFormat = Literal["json", "bytes"]


def _plain(value: object) -> str:
    """Text of a subclass as plain text; msgspec encodes nothing that it does not know by itself."""
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_encode_64_bit = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_encode_sorted = msgspec.json.Encoder(enc_hook=_plain, order="sorted").encode
_decode = msgspec.json.Decoder().decode


_building = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of a kind of record, built once and by one thread: msgspec shows others what it has half built."""
    decoder = _decoders.get(kind)
    if decoder is None:
        with _building:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder


# Documents.


def encode_document(value: Document) -> bytes:
    """JSON, in the caller's key order. The value must have been checked (see `checked_document`)."""
    return _encode(value)


def decode_document(data: bytes, *, table: str, key: object) -> Document:
    """The document that was stored."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Corrupt(table, str(key), "the stored document is not JSON") from error


class Unfit(msgspec.Struct, frozen=True):
    """Why a value cannot be a document, and the limit that it broke, if any."""

    problem: str
    limit: int | None = None


def checked_document(value: Document, *, depth: int, size: int, canonical: bool = False) -> bytes | Unfit:
    """The value's bytes if it survives its own encoding unchanged.

    A value that JSON cannot hold (NaN, bytes, a tuple, a non-text key, a lone surrogate) does not come back equal.
    The bytes have the caller's key order, or sorted keys if they are to be canonical.
    """
    too_deep = Unfit(f"is nested deeper than {depth} levels", depth)
    try:
        data = _encode_sorted(value) if canonical else _encode(value)
    except RecursionError:
        return too_deep
    except (TypeError, ValueError, OverflowError, msgspec.EncodeError):
        # A lone surrogate is a value error, too.
        return _misfit(value)
    if len(data) > size:  # before anything else is done with it
        return Unfit(f"is {len(data)} bytes long, the limit is {size}", size)
    # Depth cannot exceed the number of brackets, and counting those is cheap: most documents need no walk.
    if data.count(b"[") + data.count(b"{") > depth and _deeper_than(value, depth):
        return too_deep
    try:
        unchanged = bool(_decode(data) == value)
    except RecursionError:
        return too_deep
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _misfit(value)
    if not unchanged:
        return _misfit(value)
    try:
        # MessagePack knows whole numbers of 64 bits only, and larger ones may come back from JSON as floats.
        _encode_64_bit(value)
    except OverflowError:
        return _misfit(value)
    return data


LARGEST_UNSIGNED = 2**64 - 1
MISFIT_STEPS = 100_000
"""How many values are looked at for the one that does not fit."""
PLAIN_KEY = re.compile(r"\w{1,64}", re.ASCII)
CONVERSIONS = {
    "tuple": "use a list",
    "set": "use a list",
    "frozenset": "use a list",
    "bytes": "encode it as text, or put it into an attachment",
    "bytearray": "encode it as text, or put it into an attachment",
    "datetime": "convert it to text or a number first",
    "date": "convert it to text first",
    "Decimal": "convert it to text or a number first",
    "UUID": "convert it to text first",
}


def _misfit(value: Document) -> Unfit:
    """Say where the first value is that JSON cannot hold, and what it is, without repeating it."""
    waiting: list[tuple[str, Any]] = [("", value)]
    for _ in range(MISFIT_STEPS):
        if not waiting:
            break
        pointer, one = waiting.pop()
        problem = _problem(one)
        if problem is not None:
            return Unfit(f"is not a JSON value: {f'value at {pointer}' if pointer else 'it'} {problem}")
        if isinstance(one, dict):
            items = cast("dict[str, Any]", one).items()
            waiting += [(f"{pointer}/{_step(key)}", inside) for key, inside in reversed(items)]
        elif isinstance(one, list):
            items_in: list[Any] = cast("Any", one)
            waiting += [(f"{pointer}/{index}", items_in[index]) for index in reversed(range(len(items_in)))]
    return Unfit("is not a JSON value: it does not survive its own encoding")


def _problem(value: Any) -> str | None:
    """What is wrong with one value, apart from what it contains."""
    if isinstance(value, str):
        return None if _is_text(value) else "contains a lone surrogate, which is not text"
    if isinstance(value, bool) or value is None or isinstance(value, list):
        return None
    if isinstance(value, int):
        return None if SMALLEST_INTEGER <= value <= LARGEST_UNSIGNED else "is a whole number of more than 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else "is NaN or infinite, which JSON does not have"
    if isinstance(value, dict):
        keys: Iterable[Any] = cast("Any", value)
        return next((problem for key in keys if (problem := _key_problem(key))), None)
    name = type(value).__name__
    return f"is of type {name}; {CONVERSIONS.get(name, 'convert it to JSON values first')}"


def _key_problem(key: object) -> str | None:
    if not isinstance(key, str):
        return f"has a key of type {type(key).__name__}; keys must be text"
    return None if _is_text(key) else "has a key with a lone surrogate, which is not text"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _step(key: str) -> str:
    """A key in a pointer. One that is not a plain word may be content of the caller's, and is not repeated."""
    return key if PLAIN_KEY.fullmatch(key) else "…"


def _deeper_than(value: Document, depth: int) -> bool:
    """Whether containers nest more than `depth` levels: `[]` is one level, `[[]]` two."""
    containers: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        inside: list[Any] = []
        for container in containers:
            items: Iterable[Any] = cast("Any", container.values() if isinstance(container, dict) else container)
            inside += [item for item in items if isinstance(item, dict | list)]
        containers = inside
        if not containers:
            return False
    return bool(containers)


# Records.


def document_of(value: object) -> Document:
    """One of our own values as a document."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def own_copy(kind: type[T], value: T) -> T:
    """The record with documents of its own: the caller may go on changing those that it sent."""
    copy: T = _decoder(cast("Any", kind)).decode(_encode(value))
    return copy


def encode_record(value: object) -> bytes:
    """One of our own values, with the format version in front."""
    return bytes((RECORD_FORMAT,)) + _encode(value)


def decode_record(kind: type[T], data: bytes, *, table: str, key: object) -> T:
    """The record that was stored; anything else is `Corrupt`."""
    if not data or data[0] != RECORD_FORMAT:
        found = data[0] if data else "none"
        raise Corrupt(table, str(key), f"record format {found} is not {RECORD_FORMAT}")
    try:
        decoded: T = _decoder(cast("Any", kind)).decode(data[1:])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Corrupt(table, str(key), f"the stored {kind} does not decode") from error
    return decoded


# Names of content.


def digest(data: bytes) -> str:
    """SHA-256, in lowercase hex."""
    return hashlib.sha256(data).hexdigest()


def encode_canonical(value: object) -> bytes:
    """Compact JSON with sorted keys: equal values, equal bytes."""
    return _encode_sorted(value)


def stable_hash(value: object) -> str:
    """The hash of a value's canonical form."""
    return digest(_encode_sorted(value))


def content_ref(format: ContentFormat, data: bytes) -> str:
    """The ref of a checkpoint component: how its bytes are read, and their hash."""
    return f"{format}-sha256:{digest(data)}"


def split_ref(ref: str) -> tuple[ContentFormat, str] | None:
    """The format and hash that a ref names, or None if it is no ref of ours."""
    format, mark, hash = ref.partition("-sha256:")
    if not mark or len(hash) != 64 or not set(hash) <= set("0123456789abcdef"):
        return None
    if format == "json":
        return "json", hash
    return ("bytes", hash) if format == "bytes" else None


# Contents.


class _OfThisThread(threading.local):
    """One compressor a thread: making one costs more than a small content does, and threads must not share it."""

    def __init__(self) -> None:
        self.compressor = zstd.ZstdCompressor()


_own = _OfThisThread()


def pack(data: bytes) -> tuple[Encoding, bytes]:
    """The bytes as they are stored: compressed where that saves space."""
    if len(data) >= COMPRESS_FROM_BYTES:
        packed = _own.compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
        if len(packed) < len(data):
            return "zstd", packed
    return "raw", data


def pack_delta(data: bytes, base: bytes) -> bytes:
    """The bytes as a frame that is read with `base` at hand: what both share, wherever it stands, is not in it."""
    options = _DELTA_OPTIONS | {zstd.CompressionParameter.window_log: _window_log(data)}
    compressor = zstd.ZstdCompressor(options=options, zstd_dict=zstd.ZstdDict(base, is_raw=True).as_prefix)
    return compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)


_DELTA_OPTIONS: dict[int, int] = {
    # Without long-distance matching, only the end of a large base is ever found. Level 2 was smallest for its time.
    zstd.CompressionParameter.compression_level: 2,
    zstd.CompressionParameter.enable_long_distance_matching: 1,
    zstd.CompressionParameter.ldm_min_match: 32,
}


def _window_log(data: bytes) -> int:
    """A base can be looked into for as long as the window holds everything that was written so far."""
    return min(max(10, (len(data) - 1).bit_length()), LARGEST_WINDOW_LOG)


def unpack(
    encoding: str, body: bytes, *, size: int, hash: str, table: str, key: object, base: bytes | None = None
) -> bytes:
    """The original bytes, proven by their hash. A delta needs the base that it was packed with."""
    _check_claim(size, table=table, key=key)
    if encoding == "raw":
        data = body
    elif (encoding == "zstd" and base is None) or (encoding == "delta" and base is not None):
        data = _decompress(body, size, base, table=table, key=key)
    else:
        raise Corrupt(table, str(key), f"unknown encoding {encoding!r}")
    if len(data) != size or digest(data) != hash:
        raise Corrupt(table, str(key), "the stored content does not match its hash")
    return data


def prove(
    encoding: str, body: bytes, *, size: int, hash: str, table: str, key: object, base: bytes | None = None
) -> None:
    """Raise `Corrupt` unless `unpack` would return what was stored. Takes little memory, however large that is."""
    if encoding == "raw" or size <= CHUNK_BYTES:
        unpack(encoding, body, size=size, hash=hash, table=table, key=key, base=base)
        return
    _check_claim(size, table=table, key=key)
    if encoding != ("zstd" if base is None else "delta"):
        raise Corrupt(table, str(key), f"unknown encoding {encoding!r}")
    seen, length = hashlib.sha256(), 0
    try:
        decompressor = _decompressor(base)
        data = decompressor.decompress(body, max_length=CHUNK_BYTES)
        while data and length <= size:
            seen.update(data)
            length += len(data)
            data = b"" if decompressor.eof else decompressor.decompress(b"", max_length=CHUNK_BYTES)
    except (zstd.ZstdError, ValueError, OverflowError) as error:
        raise Corrupt(table, str(key), "the stored content does not decompress") from error
    if not decompressor.eof or decompressor.unused_data:
        raise Corrupt(table, str(key), "the stored content does not decompress")
    if length != size or seen.hexdigest() != hash:
        raise Corrupt(table, str(key), "the stored content does not match its hash")


def _check_claim(size: int, *, table: str, key: object) -> None:
    if size > LARGEST_CONTENT:
        raise Corrupt(table, str(key), f"claims to have {size} bytes, no content has more than {LARGEST_CONTENT}")


def _decompressor(base: bytes | None) -> zstd.ZstdDecompressor:
    return zstd.ZstdDecompressor(zstd_dict=None if base is None else zstd.ZstdDict(base, is_raw=True).as_prefix)


def _decompress(body: bytes, size: int, base: bytes | None, *, table: str, key: object) -> bytes:
    try:
        stated = zstd.get_frame_info(body).decompressed_size
        decompressor = _decompressor(base)
        # A damaged or hostile frame must not make us allocate more than was stored, even if it lies about its size.
        data = decompressor.decompress(body, max_length=size + 1) if stated == size else b""
    except (zstd.ZstdError, ValueError, OverflowError) as error:
        raise Corrupt(table, str(key), "the stored content does not decompress") from error
    if stated != size or len(data) > size:
        raise Corrupt(table, str(key), "the stored size does not match the frame")
    if not decompressor.eof or decompressor.unused_data:
        raise Corrupt(table, str(key), "the stored content does not decompress")
    return data


# Cursors.


def encode_cursor(listing: str, position: Sequence[int | str]) -> str:
    """An opaque place in a listing."""
    return base64.urlsafe_b64encode(_encode([listing, *position])).decode().rstrip("=")


def decode_cursor(listing: str, cursor: object, kinds: Sequence[type], *, field: str = "after") -> tuple[Any, ...]:
    """The place that `encode_cursor` named; a cursor of another listing is refused."""
    problem = InvalidRequest(field, f"is not a cursor of this listing ({listing})")
    if not isinstance(cursor, str) or not cursor.isascii():
        raise problem
    try:
        parts = _decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise problem from error
    place: list[Any] = cast("Any", parts) if isinstance(parts, list) else []
    if place[:1] != [listing] or len(place) != len(kinds) + 1:
        raise problem
    for part, kind in zip(place[1:], kinds, strict=True):
        if type(part) is not kind or (isinstance(part, int) and not 0 <= part < 2**63):
            raise problem
    return tuple(place[1:])
