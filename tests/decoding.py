"""The child of `test_decoding.py`: decodes hostile bytes, and prints what Python's audit hook reported."""

from __future__ import annotations

import contextlib
import json
import marshal
import pickle
import random
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec
from tests.backends.sqlite.furnished import QUICK, reads, seed

import holdfast
from holdfast import codec
from holdfast.public_names import places, value_at
from holdfast.testing.clock import ManualClock

WATCHED = (
    "import",
    "exec",
    "compile",
    "open",
    "code.__new__",
    "ctypes",
    "marshal",
    "os.",
    "pickle",
    "shutil",
    "socket",
)
WATCHED += ("subprocess", "urllib")
EVENTS: list[str] = []
LISTENING = False


def hook(event: str, _: Any) -> None:
    if LISTENING and event.startswith(WATCHED):
        EVENTS.append(event)


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return (eval, ("__import__('os').getcwd()",))


PLAIN: list[bytes] = [
    pickle.dumps(Evil()),
    pickle.dumps({"a": 1}, protocol=0),
    marshal.dumps(compile("1", "x", "eval")),
    b"__import__('os').system('true')",
    b'{"py/object": "os.system", "py/reduce": [{"py/function": "os.system"}, ["true"]]}',
    b'{"__class__": "subprocess.Popen", "__init__": ["true"], "lc": 1, "type": "constructor", "id": ["os", "system"]}',
    b'{"$type": "System.Diagnostics.Process", "@class": "java.lang.Runtime", "__reduce__": ["os.system", ["true"]]}',
    b"!!python/object/apply:os.system ['true']",
    b'{"type": "External", "metadata": {"__proto__": {"polluted": 1}}}',
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b"1" * 100_000,
    b"1e999999999",
    b"-" * 1_000,
    b'"' + b"\\ud800" * 1_000 + b'"',
    b"\xff\xfe" * 100,
    b"\xc7\xff\x01" + b"\0" * 255,
    b"\xc9\xff\xff\xff\xff\x01",
    b"PK\x03\x04" + b"\0" * 60,
    b"\x80\x04\x95" + b"\xff" * 8,
    b"null",
    b"",
    b"\0",
    b"\x01",
]


def corpus(chance: random.Random) -> Callable[[], bytes]:
    """Yield hostile bytes without end: from the list, as a record, compressed, cut, joined or mangled."""
    right = [
        codec.encode_document({"a": [1, "x", None]}),
        codec.encode_record(holdfast.sessions.SessionMeta("s", "n", 0)),
    ]
    bomb = codec.zstd.compress(b"\0" * (256 * 1024 * 1024))

    def one() -> bytes:
        data = chance.choice(PLAIN + right * 3)
        kind = chance.random()
        if kind < 0.2:
            data = b"\x01" + data
        elif kind < 0.3:
            data = codec.zstd.compress(data)
        elif kind < 0.4:
            data = data[: chance.randrange(len(data) + 1)]
        elif kind < 0.5:
            data += chance.choice(PLAIN)[:1_000]
        elif kind < 0.8:
            mangled = bytearray(data[:5_000])
            for _ in range(chance.randrange(1, 5)):
                mangled[chance.randrange(len(mangled) + 1) : chance.randrange(len(mangled) + 1)] = chance.randbytes(2)
            data = bytes(mangled)
        elif kind < 0.81:
            data = bomb
        return data

    return one


def decoders() -> list[Callable[[bytes], object]]:
    """Return every decoder from stored bytes to a value."""
    kinds: list[Any] = [
        kind
        for place in places()
        if isinstance(kind := value_at(place), type) and issubclass(kind, msgspec.Struct) and may_be_stored(kind)
    ]
    kinds += [holdfast.processes.ProcessInput, holdfast.processes.ProcessOutcome, list[str], dict[str, Any]]
    found: list[Callable[[bytes], object]] = [
        lambda data: codec.decode_document(data, table="t", key="k"),
        lambda data: codec.decode_value(data, table="t", key="k"),
        lambda data: codec.decode_value(codec.PACKED + codec._checksum(data) + data, table="t", key="k"),
        lambda data: codec.decode_cursor("sessions", data.decode("latin-1")[:5_000], [int]),
    ]
    found += [partial(record, kind) for kind in kinds]
    found += [
        partial(content, encoding, size)
        for encoding in ("raw", "zstd", "gzip", "pickle")
        for size in (0, 10, 5_000, 2**40)
    ]
    return found


def may_be_stored(kind: Any) -> bool:
    """Report whether a decoder of it can exist: a record that is only sent has untyped fields."""
    try:
        msgspec.json.Decoder(kind)
    except TypeError:
        return False
    return True


def record(kind: Any, data: bytes) -> object:
    return codec.decode_record(kind, data, table="t", key="k")


def content(encoding: str, size: int, data: bytes) -> object:
    return codec.unpack(encoding, data, size=size, hash=codec.digest(data), table="t", key="k")


def try_all(calls: list[Callable[[], object]]) -> tuple[int, list[str]]:
    """Run all calls under the hook; return how many were refused, and the errors that are not Holdfast's."""
    global LISTENING  # noqa: PLW0603 - the hook cannot be removed
    refused, strays = 0, []
    LISTENING = True
    for call in calls:
        try:
            call()
        except (holdfast.Corrupt, holdfast.InvalidRequest):
            refused += 1
        except holdfast.HoldfastError:
            pass
        except BaseException as error:
            LISTENING = False
            strays.append(f"{type(error).__name__}: {ascii(error)[:200]}")
            LISTENING = True
    LISTENING = False
    return refused, strays[:5]


def report(**answer: Any) -> None:
    # Of this program alone: the system's maximum for a process includes the time before `exec`.
    status = Path("/proc/self/status")
    if status.exists():
        [peak_kib] = [int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
    else:
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mib = peak_kib // 1024
    sys.stdout.write(json.dumps({"events": sorted(set(EVENTS)), "mib": mib, **answer}) + "\n")


def check_decoders(seed_text: str, number: int) -> None:
    chance = random.Random(seed_text)
    one, ways = corpus(chance), decoders()
    for way in ways:  # Build and load now everything that is built or loaded at first use.
        for data in (b"\x01{}", b"{}"):
            try_quietly(partial(way, data))
    sys.addaudithook(hook)
    tried, refused, strays = 0, 0, list[str]()
    while tried < number:
        # In chunks, so that the memory of decoding is measured, without that of the input.
        calls: list[Callable[[], object]] = [
            partial(chance.choice(ways), one()) for _ in range(min(1_000, number - tried))
        ]
        answer = try_all(calls)
        tried, refused, strays = tried + len(calls), refused + answer[0], strays + answer[1]
    report(tried=tried, refused=refused, strays=strays[:5])


def try_quietly(call: Callable[[], object]) -> None:
    with contextlib.suppress(holdfast.HoldfastError):
        call()


def check_columns(seed_text: str, path: Path) -> None:
    """Put hostile bytes into each column of bytes, and read them in every way through a store that was open before."""
    chance = random.Random(seed_text)
    seed(path, path.with_name("byte_store"))
    one = corpus(chance)
    outside = apsw.Connection(str(path))
    columns = [
        (table, column)
        for (table,) in outside.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        for _, column, kind, *_ in outside.execute(f"PRAGMA table_info({table})").fetchall()
        if kind == "BLOB"
    ]
    tried, strays = 0, []
    with holdfast.open_blocking(path, options=QUICK, clock=ManualClock(1_000_000)) as store:
        every = [*reads(store).values(), store.maintenance.verify]
        for call in every:
            try_quietly(call)
        sys.addaudithook(hook)
        for table, column in columns:
            for _ in range(3):
                outside.execute("BEGIN IMMEDIATE")
                outside.execute(f"UPDATE {table} SET {column} = ?", (one()[:100_000],))
                outside.execute("COMMIT")
                strays += try_all(every)[1]
                tried += 1
    outside.close()
    report(tried=tried, strays=strays[:5])


def check_hook() -> None:
    global LISTENING  # noqa: PLW0603
    sys.addaudithook(hook)
    LISTENING = True
    exec(compile("import wave", "x", "exec"))
    LISTENING = False
    report()


if __name__ == "__main__":
    if sys.argv[1] == "hook":
        check_hook()
    elif sys.argv[1] == "decoders":
        check_decoders(sys.argv[2], int(sys.argv[3]))
    else:
        check_columns(sys.argv[2], Path(sys.argv[3]))
