"""Encode values to bytes and decode them to equal values, or raise. Stored bytes are data and never code.

Documents (the caller's JSON) are stored as they were sent, key order included, unless they are named by their content:
then equal values must be equal bytes, and keys are sorted. Records (the library's own values) carry a format version in
their first byte. Content is named by the SHA-256 of its uncompressed bytes.
"""

from __future__ import annotations

import base64
import binascii
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar, cast

import msgspec

from holdfast import json_chunks, loop_budget, value_size
from holdfast.errors import Corrupt, InvalidRequest
from holdfast.loop_budget import BUDGET_BYTES, OWN_LOOP_BYTES, charge
from holdfast.records.common import Document
from holdfast.records.limits import LARGEST_CONTENT

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")

RECORD_FORMAT = 1
"""The format of stored records. A reader refuses a format that it does not know."""

COMPRESS_FROM_BYTES = 256
"""Smaller contents are not compressed: a frame header would cost what compression saves."""

SMALL_BYTES = 16 * 1024
"""Contents up to this size are compressed at level 1: as small as at the default level 3, in two thirds of the time."""

LARGEST_WINDOW_LOG = 27
"""The largest window, 128 MiB, that a zstd reader allows by default."""

CHUNK_BYTES = 4 * 1024 * 1024
"""Bytes of a content that are packed or unpacked at a time."""

Encoding = Literal["raw", "zstd", "delta"]
ContentFormat = Literal["json", "bytes"]


def _plain(value: object) -> str:
    """Return text of a subclass as plain text: msgspec encodes only types that it knows."""
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_encode_64_bit = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_encode_sorted = msgspec.json.Encoder(enc_hook=_plain, order="sorted").encode
_decode = msgspec.json.Decoder().decode

_building = threading.RLock()  # a signal handler may use another store
UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""The errors of decoding stored bytes that are not what was stored: no JSON, nested too deeply, or no text."""
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a kind's decoder, built once and by one thread: msgspec shows other threads a half-built one."""
    decoder = _decoders.get(kind)
    if decoder is None:
        with _building:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder


def _encoded(value: object) -> bytes:
    data = _encode(value)
    charge(len(data))
    return data


def _decoded_as(kind: type[T], data: bytes) -> T:
    """Decode a record, whose documents may be large."""
    if len(data) <= BUDGET_BYTES:
        charge(len(data))
        small: T = _decoder(kind).decode(data)
        return small
    return msgspec.convert(json_chunks.decoded(data, _decode), kind)


# Documents.


def encode_document(value: Document) -> bytes:
    """Encode as JSON, in the caller's key order. The value must have been checked (see `checked_document`)."""
    return _encoded(value)


def decode_document(data: bytes, *, table: str, key: object) -> Document:
    """Decode a stored document."""
    try:
        return json_chunks.decoded(data, _decode)
    except UNDECODABLE as error:
        raise Corrupt(table, str(key), "the stored document is not JSON") from error


class Unfit(msgspec.Struct, frozen=True):
    """The reason why a value cannot be a document, and the limit that it exceeded, if any."""

    problem: str
    limit: int | None = None


def checked_document(value: Document, *, depth: int, size: int, canonical: bool = False) -> bytes | Unfit:
    """Return the value's bytes if it survives its own encoding unchanged, else the reason.

    A value that JSON cannot hold (NaN, bytes, a tuple, a non-text key, a lone surrogate) does not come back equal. The
    bytes have the caller's key order, or sorted keys if `canonical`.
    """
    encode = _encode_sorted if canonical else _encode
    try:
        if value_size.is_light(value, depth, min(size, BUDGET_BYTES)):
            data = encode(value)
            charge(len(data))
            if len(data) < FAR_BYTES and len(data) <= size:
                return data if _decode(data) == value else _misfit(value)
            parts = [(json_chunks.Piece(value), data)]
        else:
            charge(OWN_LOOP_BYTES)
            if not isinstance(value, value_size.SIMPLE) and (unfit := _unwritable(value, depth, size)) is not None:
                return unfit
            parts = list(json_chunks.encoded(value, encode, ordered=canonical))
            data = b"".join([part for _, part in parts])
            parts = [(piece, part) for piece, part in parts if not piece.is_text]
        if len(data) > size:  # before anything else is done with it
            return Unfit(f"is {len(data)} bytes long, the limit is {size}", size)
        if _has_far_numbers([part for _, part in parts]):
            return Unfit(f"has more than {FAR_NUMBERS} numbers beyond 1e±290, which take long to read", FAR_NUMBERS)
        for piece, part in parts:
            if _decode(piece.closed(part)) != piece.value:
                return _misfit(value)
            # MessagePack has only whole numbers of 64 bits; larger ones may come back from JSON as floats.
            _encode_64_bit(piece.value)
    except RecursionError:  # of a caller that is deep in the stack
        return _too_deep(depth)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        # A lone surrogate is a `ValueError`, too.
        return _misfit(value)
    return data


FAR_NUMBERS = 10_000
"""The most numbers with a large exponent in a document: reading one takes as long as 200 others."""
FAR_BYTES = len("1e300") * FAR_NUMBERS
"""A shorter document cannot have so many."""
FAR_NUMBER = re.compile(rb"e-?(?:29|3[0-9])[0-9]")
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def _has_far_numbers(parts: Sequence[bytes]) -> bool:
    """Return True if a document that was encoded here has too many of them. Matches inside texts do not count."""
    if sum(map(len, parts)) < FAR_BYTES:
        return False
    looks = sum(data.count(look) for data in parts for look in (b"e3", b"e-3", b"e29", b"e-29"))
    return looks > FAR_NUMBERS and sum(len(FAR_NUMBER.findall(STRING.sub(b'"', data))) for data in parts) > FAR_NUMBERS


def _misfit(value: Document) -> Unfit:
    """Return the place and type of the first value that JSON cannot hold."""
    return Unfit(f"is not a JSON value: {value_size.misfit(value)}")


def _too_deep(depth: int) -> Unfit:
    return Unfit(f"is nested deeper than {depth} levels", depth)


def _unwritable(value: Document, depth: int, size: int) -> Unfit | None:
    """Return the reason why a value must not even be encoded, or None."""
    match value_size.weigh(value, depth, size):
        case "fits":
            return None
        case "too long":
            return Unfit(f"is longer than the limit of {size} bytes", size)
        case "too deep":
            return _too_deep(depth)
        case "odd":
            return _misfit(value)


# Bytes in place of a document.

RAW, PACKED = b"\x00", b"\x01"
"""The first byte of stored bytes, which no JSON begins with. A checksum follows, then the bytes or a frame of them."""
CHECKSUM_BYTES = 4
LARGEST_RATIO = 16
"""The most bytes that one stored byte may stand for, so that a page of rows stays bounded."""


def encode_bytes(data: bytes) -> bytes:
    """Return bytes as they are stored in place of a document."""
    _, packed = pack(data)
    mark, body = (PACKED, packed) if len(packed) < len(data) <= len(packed) * LARGEST_RATIO else (RAW, data)
    return mark + _checksum(body) + body


def decode_value(data: bytes, *, table: str, key: object) -> Document | bytes:
    """Decode a stored document, or bytes in its place, proven by their checksum."""
    mark = data[:1]
    if mark not in (RAW, PACKED):
        if len(data) > json_chunks.DECODED_AT_ONCE:
            return decode_document(data, table=table, key=key)
        charge(len(data))  # Without a further call: paths have thousands of nodes.
        try:
            return _decode(data)
        except UNDECODABLE as error:
            raise Corrupt(table, str(key), "the stored document is not JSON") from error
    body = data[1 + CHECKSUM_BYTES :]
    if data[1 : 1 + CHECKSUM_BYTES] != _checksum(body):
        raise Corrupt(table, str(key), "does not match its checksum")
    if mark == RAW:
        return body
    size = _frame_size(body)
    if size > len(body) * LARGEST_RATIO:
        raise Corrupt(table, str(key), f"claims to have {size} bytes, more than were stored")
    charge(size)
    return _decompress(body, size, None, table=table, key=key)


def _checksum(body: bytes) -> bytes:
    return binascii.crc32(body).to_bytes(CHECKSUM_BYTES, "big")


# Records.


def document_of(value: object) -> Document:
    """Return a record as a document."""
    if not loop_budget.is_large(value):
        return msgspec.to_builtins(value, enc_hook=_plain)
    return json_chunks.decoded(_encoded(value), _decode)


def own_copy(kind: type[T], value: T) -> T:
    """Return a copy of the record with documents of its own: the caller may change those that it sent."""
    return _decoded_as(kind, _encoded(value))


def encode_record(value: object) -> bytes:
    """Encode a record, with the format version in front."""
    return bytes((RECORD_FORMAT,)) + _encoded(value)


def decode_record(kind: type[T], data: bytes, *, table: str, key: object) -> T:
    """Decode a stored record. Anything else is `Corrupt`."""
    if not data or data[0] != RECORD_FORMAT:
        found = data[0] if data else "none"
        raise Corrupt(table, str(key), f"record format {found} is not {RECORD_FORMAT}")
    try:
        return _decoded_as(kind, data[1:])
    except UNDECODABLE as error:
        raise Corrupt(table, str(key), f"the stored {kind} does not decode") from error


# Names of content.


def digest(data: bytes) -> str:
    """Return the SHA-256 in lowercase hex."""
    import hashlib  # at its first use, because OpenSSL comes with it

    charge(len(data))
    return hashlib.sha256(data).hexdigest()


def encode_canonical(value: object) -> bytes:
    """Encode as compact JSON with sorted keys: equal values, equal bytes."""
    data = _encode_sorted(value)
    charge(len(data))
    return data


def stable_hash(value: object) -> str:
    """Return the hash of a value's canonical form."""
    return digest(encode_canonical(value))


def joint_hash(values: Iterable[object]) -> str:
    """Return the hash of canonical forms, one after another. Values must be lists or objects, whose ends are marked."""
    import hashlib  # at its first use, because OpenSSL comes with it

    seen = hashlib.sha256()
    for value in values:
        data = _encode_sorted(value)
        charge(2 * len(data))  # encoded and hashed
        seen.update(data)
    return seen.hexdigest()


def content_ref(format: ContentFormat, data: bytes) -> str:
    """Return the ref of a checkpoint component: the format of its bytes, and their hash."""
    return f"{format}-sha256:{digest(data)}"


def split_ref(ref: str) -> tuple[ContentFormat, str] | None:
    """Return the format and hash that a ref names, or None if it is not a valid ref."""
    format, mark, hash = ref.partition("-sha256:")
    if not mark or len(hash) != 64 or not set(hash) <= set("0123456789abcdef"):
        return None
    if format == "json":
        return "json", hash
    return ("bytes", hash) if format == "bytes" else None


# Contents.


class _OfThisThread(threading.local):
    """Compressors of one thread: threads must not share them, and making one costs more than a small content."""

    def __init__(self) -> None:
        self.small = zstd.ZstdCompressor(level=1)
        self.compressor = zstd.ZstdCompressor()


_own = _OfThisThread()


def pack(data: bytes) -> tuple[Encoding, bytes]:
    """Return the bytes as they are stored: compressed where that saves space."""
    charge(len(data))
    if len(data) >= COMPRESS_FROM_BYTES:
        # An interrupt between two parts would leave the shared compressor in the middle of a frame.
        parts = _compressed(_compressor_for(len(data)), data)
        if sum(map(len, parts)) < len(data):
            return "zstd", b"".join(parts)
    return "raw", data


def _compressor_for(size: int) -> zstd.ZstdCompressor:
    if size <= SMALL_BYTES:
        return _own.small
    return _own.compressor if size <= CHUNK_BYTES else zstd.ZstdCompressor()


def _compressed(compressor: zstd.ZstdCompressor, data: bytes) -> list[bytes]:
    """Compress into one frame, in parts: the interpreter's lock is held only while a part is copied."""
    if len(data) <= CHUNK_BYTES:
        return [compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)]
    # `unpack` reads the size from the frame.
    compressor.set_pledged_input_size(len(data))
    view = memoryview(data)
    parts = [
        compressor.compress(view[start : start + CHUNK_BYTES], zstd.ZstdCompressor.CONTINUE)
        for start in range(0, len(data), CHUNK_BYTES)
    ]
    return [*parts, compressor.flush(zstd.ZstdCompressor.FLUSH_FRAME)]


def pack_delta(data: bytes, base: bytes) -> bytes:
    """Compress to a frame that needs `base` to be read: content that both share, at any place, is left out."""
    charge(len(data))
    options = _DELTA_OPTIONS | {zstd.CompressionParameter.window_log: _window_log(data)}
    compressor = zstd.ZstdCompressor(options=options, zstd_dict=zstd.ZstdDict(base, is_raw=True).as_prefix)
    return b"".join(_compressed(compressor, data))


_DELTA_OPTIONS: dict[int, int] = {
    # Without long-distance matching, only the end of a large base is found. Level 2 gave the best size for its time.
    zstd.CompressionParameter.compression_level: 2,
    zstd.CompressionParameter.enable_long_distance_matching: 1,
    zstd.CompressionParameter.ldm_min_match: 32,
}


def _window_log(data: bytes) -> int:
    """Return the window size. The base is reachable for as long as the window holds everything written so far."""
    return min(max(10, (len(data) - 1).bit_length()), LARGEST_WINDOW_LOG)


def unpack(
    encoding: str, body: bytes, *, size: int, hash: str, table: str, key: object, base: bytes | None = None
) -> bytes:
    """Return the original bytes, proven by their hash. A delta needs the base that it was packed with."""
    check_claim(size, table=table, key=key)
    charge(size)
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
    """Raise `Corrupt` unless `unpack` would return the stored content. Takes little memory, however large that is."""
    charge(size)
    if encoding == "raw" or size <= CHUNK_BYTES:
        unpack(encoding, body, size=size, hash=hash, table=table, key=key, base=base)
        return
    check_claim(size, table=table, key=key)
    if encoding != ("zstd" if base is None else "delta"):
        raise Corrupt(table, str(key), f"unknown encoding {encoding!r}")
    import hashlib

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


def check_claim(size: int, *, table: str, key: object) -> None:
    """Raise `Corrupt` if a content claims to be larger than any can be."""
    if size > LARGEST_CONTENT:
        raise Corrupt(table, str(key), f"claims to have {size} bytes, no content has more than {LARGEST_CONTENT}")


def _decompressor(base: bytes | None) -> zstd.ZstdDecompressor:
    return zstd.ZstdDecompressor(zstd_dict=None if base is None else zstd.ZstdDict(base, is_raw=True).as_prefix)


def _chunks(decompressor: zstd.ZstdDecompressor, body: bytes, most: int) -> Iterator[bytes]:
    """Decompress a frame in parts, and stop once they hold `most` bytes or more."""
    given = body
    while most > 0 and not decompressor.eof:
        data = decompressor.decompress(given, max_length=min(most, CHUNK_BYTES))
        if not data and decompressor.needs_input:
            break
        yield data
        given = b""
        most -= len(data)


def _frame_size(body: bytes) -> int:
    """Return the size that a frame states of its content, 0 if it states none."""
    try:
        return zstd.get_frame_info(body).decompressed_size or 0
    except zstd.ZstdError:
        return 0


def _decompress(body: bytes, size: int, base: bytes | None, *, table: str, key: object) -> bytes:
    try:
        stated = zstd.get_frame_info(body).decompressed_size
        decompressor = _decompressor(base)
        # A damaged or hostile frame must not cause a larger allocation than was stored, even if it lies about its size.
        data = b"".join(_chunks(decompressor, body, size + 1)) if stated == size else b""
    except (zstd.ZstdError, ValueError, OverflowError) as error:
        raise Corrupt(table, str(key), "the stored content does not decompress") from error
    if stated != size or len(data) > size:
        raise Corrupt(table, str(key), "the stored size does not match the frame")
    if not decompressor.eof or decompressor.unused_data:
        raise Corrupt(table, str(key), "the stored content does not decompress")
    return data


# Cursors.


def encode_cursor(listing: str, position: Sequence[int | str]) -> str:
    """Return an opaque place in a listing."""
    return base64.urlsafe_b64encode(_encode([listing, *position])).decode().rstrip("=")


def decode_cursor(listing: str, cursor: object, kinds: Sequence[type], *, field: str = "after") -> tuple[Any, ...]:
    """Return the place that `encode_cursor` encoded. A cursor of another listing is refused."""
    problem = InvalidRequest(field, f"is not a cursor of this listing ({listing})")
    if not isinstance(cursor, str) or not cursor.isascii():
        raise problem
    try:
        parts = _decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, *UNDECODABLE) as error:
        raise problem from error
    place: list[Any] = cast("Any", parts) if isinstance(parts, list) else []
    if place[:1] != [listing] or len(place) != len(kinds) + 1:
        raise problem
    for part, kind in zip(place[1:], kinds, strict=True):
        if type(part) is not kind or (isinstance(part, int) and not 0 <= part < 2**63):
            raise problem
    return tuple(place[1:])
