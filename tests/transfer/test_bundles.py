"""No bit of a bundle changes unnoticed; a refused bundle leaves no trace; the cost of reading one is bounded."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import io
import random
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.transfer.files import Lines, exported, fill, opened, read, sealed

import holdfast
from holdfast import transfer
from holdfast.errors import ImportRefused
from holdfast.sessions import SessionMeta
from holdfast.transfer import bundle as bundles
from holdfast.transfer import restoring


@functools.cache
def genuine() -> bytes:
    with holdfast.open_blocking("memory:") as store:
        fill(store)
        return exported(store)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdfast.BlockingStore]:
    url = {"memory": "memory:", "sqlite": str(tmp_path / "target.db")}.get(request.param)
    with holdfast.open_blocking(url or request.getfixturevalue("clean_postgres_url")) as store:
        yield store


def refuse_without_a_trace(store: holdfast.BlockingStore, data: bytes, says: str | None = None, **how: Any) -> None:
    before = store._backend.dump()
    with pytest.raises(ImportRefused, match=says):
        transfer.restore(store, read(data), **how)
    assert store._backend.dump() == before


def test_every_flipped_bit_is_refused() -> None:
    """Every bit of the first line, a part of the others; an error of another type fails the test."""
    data = genuine()
    first = data.index(b"\n") + 1
    bits = [*range(first * 8), *random.Random(12).sample(range(first * 8, len(data) * 8), 2_000)]
    for bit in bits:
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ImportRefused):
            read(bytes(changed))
    assert read(data).manifest.session_id == "chat"
    assert sealed(*opened(data)) == data


def one(lines: Lines, kind: str, last: bool = True) -> dict[str, Any]:
    return [line for line in lines if line["line"] == kind][-1 if last else 0]


def unknown_parent(lines: Lines) -> None:
    one(lines, "node")["node"]["parent"] = "nobody"


def reversed_lines(lines: Lines) -> None:
    lines.reverse()


def reversed_nodes(lines: Lines) -> None:
    nodes = [index for index, line in enumerate(lines) if line["line"] == "node"]
    lines[nodes[0] : nodes[-1] + 1] = lines[nodes[0] : nodes[-1] + 1][::-1]


def unset_parent(lines: Lines) -> None:
    del one(lines, "node")["node"]["parent"]


def node_without_id(lines: Lines) -> None:
    one(lines, "node")["node"]["id"] = ""


def node_twice(lines: Lines) -> None:
    place = lines.index(one(lines, "node"))
    lines.insert(place, msgspec.json.decode(msgspec.json.encode(lines[place])))
    lines[place]["node"]["payload"] = "another"


def negative_time(lines: Lines) -> None:
    one(lines, "node")["node"]["created_at_ms"] = -1


def huge_usage(lines: Lines) -> None:
    one(lines, "head")["usage"][0]["input_tokens"] = 2**70


def negative_usage(lines: Lines) -> None:
    one(lines, "head")["usage"][0]["input_tokens"] = -1


def huge_number(lines: Lines) -> None:
    one(lines, "batch")["draft"]["payloads"] = [2**70]


def unknown_leaf(lines: Lines) -> None:
    one(lines, "head")["leaf"] = "nobody"


def no_checkpoint(lines: Lines) -> None:
    one(lines, "head")["has_checkpoint"] = False


def head_twice(lines: Lines) -> None:
    lines.insert(lines.index(one(lines, "head")), one(lines, "head"))


def no_head(lines: Lines) -> None:
    lines.remove(one(lines, "head"))


def negative_due(lines: Lines) -> None:
    one(lines, "batch")["draft"]["available_at_ms"] = -1


def work_twice(lines: Lines) -> None:
    one(lines, "batch")["draft"]["source_key"] = "first"


def work_without_key(lines: Lines) -> None:
    one(lines, "batch")["draft"]["source_key"] = None


def work_for_another(lines: Lines) -> None:
    one(lines, "batch")["draft"]["session_id"] = "another"


def unknown_kind(lines: Lines) -> None:
    lines[-1]["line"] = "surprise"


def other_state(lines: Lines) -> None:
    one(lines, "component")["data"] = base64.b64encode(b"xyz").decode()


def no_ref(lines: Lines) -> None:
    one(lines, "component")["ref"] = "bytes-sha256:" + "0" * 64


def other_format(lines: Lines) -> None:
    line = one(lines, "component")
    line["ref"] = line["ref"].replace("bytes", "json")


def two_contents(lines: Lines) -> None:
    one(lines, "component")["document"] = 1


def node_with_two_contents(lines: Lines) -> None:
    line = one(lines, "node")
    line["node"]["payload"], line["data"] = 1, base64.b64encode(b"\x00").decode()


def no_name(lines: Lines) -> None:
    one(lines, "component")["name"] = ""


def component_twice(lines: Lines) -> None:
    lines.insert(lines.index(one(lines, "component")), one(lines, "component"))


def frame_without_state(lines: Lines) -> None:
    one(lines, "frame")["frame"]["execution_state"] = None


def attached(lines: Lines) -> dict[str, Any]:
    return next(line for line in lines if line["line"] == "attachment" and line["data"])


def other_bytes(lines: Lines) -> None:
    attached(lines)["data"] = base64.b64encode(b"xyz").decode()


def other_size(lines: Lines) -> None:
    attached(lines)["ref"]["byte_count"] = 4


def missing_bytes(lines: Lines) -> None:
    attached(lines)["data"] = None


CHANGES: list[Callable[[Lines], None]] = [
    *(unknown_parent, reversed_lines, reversed_nodes, unset_parent, node_twice, negative_time, huge_usage),
    *(negative_usage, node_without_id),
    *(huge_number, unknown_leaf, no_checkpoint, head_twice, no_head, negative_due, work_twice, work_without_key),
    *(work_for_another, unknown_kind, other_state, two_contents, no_name, component_twice, frame_without_state),
    *(node_with_two_contents, other_bytes, other_size, missing_bytes),
]


def test_a_fault_of_a_bundle_is_reported_before_anything_is_written(target: holdfast.BlockingStore) -> None:
    for change in CHANGES:
        manifest, lines = opened(genuine())
        change(lines)
        try:
            refuse_without_a_trace(target, sealed(manifest, lines))
        except BaseException as problem:
            problem.add_note(change.__name__)
            raise
    assert len(target.sessions.list()) == 0
    assert transfer.restore(target, read(genuine())).outcome == "imported"


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"version": 0}, "there is no format version 0"),
        ({"version": -1}, "there is no format version -1"),
        ({"version": 2}, "format version 2, this program knows 1: upgrade holdfast"),
        ({"session_id": " "}, "session_id"),
        ({"session_id": "x" * 600}, "session_id"),
        ({"source": {"revision": -1, "node_count": 2}}, "manifest is damaged"),
        ({"source": {"revision": 0, "node_count": 2}}, "head does not match"),
        ({"source": {"revision": 1, "node_count": 2**70}}, "manifest is damaged"),
        ({"counts": {}}, "do not match"),
    ],
    ids=str,
)
def test_a_manifest_that_cannot_be_is_refused(facts: dict[str, Any], says: str) -> None:
    with holdfast.open_blocking("memory:") as store:
        refuse_without_a_trace(store, sealed(*opened(genuine()), **facts), says)


def test_limits_of_the_target_are_judged_before_anything_is_written() -> None:
    for limits in (
        holdfast.Limits(document_bytes=8),
        holdfast.Limits(attachment_bytes=2),
        holdfast.Limits(component_bytes=1),
        holdfast.Limits(commit_bytes=3),
        holdfast.Limits(id_bytes=40),
    ):
        with holdfast.open_blocking("memory:", limits=limits) as store:
            refuse_without_a_trace(store, genuine(), "the store refuses content of the file")
    # Narrow, and just wide enough: chunks are as large as the target accepts.
    with holdfast.open_blocking("memory:", limits=holdfast.Limits(commit_nodes=1, commit_items=2)) as store:
        assert transfer.restore(store, read(genuine())).outcome == "imported"
        with pytest.raises(holdfast.InvalidRequest, match="session_id"):
            transfer.restore(store, read(genuine()), into="")


def test_the_targets_part_of_the_session_is_judged_too(target: holdfast.BlockingStore) -> None:
    """The state after an interrupted import, with a conflict added."""
    _, lines = opened(genuine())
    meta = msgspec.convert(one(lines, "meta")["meta"], SessionMeta)

    def begun(name: str, *nodes: holdfast.Node) -> holdfast.blocking.Session:
        session = target.sessions.handle(name)
        session.save_meta(msgspec.structs.replace(meta, session_id=name))
        session.add_nodes(nodes)
        return session

    begun("other content", holdfast.Node("n1", parent=None, payload={"a": True}))
    refuse_without_a_trace(target, genuine(), "exists with other content", into="other content")
    begun("hidden", holdfast.Node("n1", parent=None, payload={"a": 1})).tombstone(["n1"])
    refuse_without_a_trace(target, genuine(), "was begun here", into="hidden")
    target.queue.enqueue(holdfast.WorkDraft(session_id="other work", payloads=["other"], source_key="last"))
    refuse_without_a_trace(target, genuine(), "was used for other work", into="other work")
    claim = target.queue.claim("other work", owner_id="w")
    assert claim is not None
    assert target.queue.cancel("other work", claim.batches[0].batch_id) is None
    target.queue.give_back(claim)
    target.queue.cancel("other work", claim.batches[0].batch_id)
    refuse_without_a_trace(target, genuine(), "was used for other work", into="other work")
    begun("continues", holdfast.Node("n1", parent=None, payload={"a": 1}))
    assert transfer.restore(target, read(genuine()), into="continues").outcome == "imported"


def test_a_file_of_the_same_turn_with_other_work_is_refused_without_a_trace(target: holdfast.BlockingStore) -> None:
    transfer.restore(target, read(genuine()))
    claim = target.queue.claim("chat", owner_id="w", max_batches=1)
    assert claim is not None
    target.sessions.handle("chat").commit(holdfast.Commit(completes=[claim]))
    manifest, lines = opened(genuine())
    lines.insert(-2, {**lines[-1], "draft": {**lines[-1]["draft"], "source_key": "new", "payloads": ["new"]}})
    first = next(line for line in lines if line["line"] == "batch" and line["draft"]["source_key"] == "first")
    first["draft"]["payloads"] = ["another"]
    refuse_without_a_trace(target, sealed(manifest, lines), "was used for other work")
    lines.remove(first)
    assert transfer.restore(target, read(sealed(manifest, lines))).outcome == "imported"
    assert [batch.source_key for batch in target.queue.list("chat")] == ["last", "new"]


def test_a_large_bundle_is_judged_on_a_file_that_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(restoring, "CHUNK_BYTES", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    manifest, lines = opened(genuine())
    negative_due(lines)
    with holdfast.open_blocking("memory:") as store:
        refuse_without_a_trace(store, sealed(manifest, lines))
        assert transfer.restore(store, read(genuine())).outcome == "imported"
    assert list(tmp_path.iterdir()) == []


# Bounds.


class Counted(io.BytesIO):
    """A file that records how much is read at a time."""

    asked = 0

    def readline(self, size: int | None = -1) -> bytes:
        assert size is not None
        assert size >= 0
        self.asked = max(self.asked, size)
        return super().readline(size)


def test_a_line_is_read_up_to_the_limit_and_no_further() -> None:
    limits = transfer.BundleLimits(line_bytes=100_000)
    endless = Counted(b" " * 200_000)
    with pytest.raises(ImportRefused, match="its first line has more than 65536 bytes"):
        transfer.Bundle(endless, limits)
    assert endless.asked == 65_537
    second = Counted(genuine() + b" " * 200_000)
    with pytest.raises(ImportRefused, match="line 13 has more than 100000 bytes: if you trust the file"):
        transfer.Bundle(second, limits)
    assert second.asked == 100_001


def test_a_packed_bomb_takes_little_memory() -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        file.write(genuine())
        for _ in range(64):
            file.write(bytes(1 << 20))
    packed.seek(0)
    tracemalloc.start()
    try:
        with pytest.raises(ImportRefused, match="has more than"):
            transfer.Bundle(packed, transfer.BundleLimits(line_bytes=1 << 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("shape", ["[]", "{}", '{"a":0}', "0", "1.5", '"abc"', '{"%d":[1,2,{}]}', '"é😀"', "[[[]]]"])
def test_the_memory_of_a_decoded_line_is_never_underestimated(shape: str) -> None:
    items = [shape % number if "%d" in shape else shape for number in range(20_000)]
    data = f"[{','.join(items)}]".encode()
    said = bundles.decoded_bytes(data, 0)
    tracemalloc.start()
    try:
        decoded = msgspec.json.decode(data)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(decoded) == 20_000
    assert taken <= said


def test_text_is_not_taken_for_structure() -> None:
    text = msgspec.json.encode({"csv": 'a,"b",\\[{' * 10_000})
    assert bundles.decoded_bytes(text, 0) < len(text) + 1_000
    assert bundles.decoded_bytes(text, 10**9) > 2 * len(text)


def test_messages_held_until_the_turn_are_bounded_as_a_whole() -> None:
    """Each line is within its bounds, has the right ref, and compresses well; together they would take ten times it."""
    _, lines = opened(genuine())
    document = [[] for _ in range(20_000)]
    ref = "json-sha256:" + hashlib.sha256(msgspec.json.encode(document)).hexdigest()
    place = lines.index(one(lines, "component"))
    lines[place:place] = [{"line": "component", "name": f"c{n}", "ref": ref, "document": document} for n in range(20)]
    data = gzip.compress(sealed(opened(genuine())[0], lines))
    del lines, document
    assert len(data) < 100_000
    limits = transfer.BundleLimits(decoded_bytes=8 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(ImportRefused, match="bytes of memory with those that are held until the turn"):
            read(data, limits)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limits.decoded_bytes


@pytest.mark.parametrize("kind", ["node", "attachment"])
def test_ids_are_held_within_the_same_bound(kind: str) -> None:
    manifest, lines = opened(genuine())
    first = one(lines, kind, last=False)
    place = lines.index(first)
    for number in range(20):
        more = msgspec.json.decode(msgspec.json.encode(first))
        (more["node"] if kind == "node" else more["ref"])["id"] = f"{number}" + "x" * 100_000
        lines.insert(place, more)
    limits = transfer.BundleLimits(decoded_bytes=2 << 20)
    with pytest.raises(ImportRefused, match="held until the turn"):
        read(sealed(manifest, lines), limits)


def test_numbers_that_take_long_to_read_are_bounded() -> None:
    manifest, lines = opened(genuine())
    one(lines, "node")["node"]["payload"] = ["1e300 is text"] * 2_000
    assert read(sealed(manifest, lines), transfer.BundleLimits(far_numbers=1_000))
    one(lines, "node")["node"]["payload"] = [1e300, 2.5e-305] * 1_000
    with pytest.raises(ImportRefused, match="more than 1000 numbers beyond 1e±290"):
        read(sealed(manifest, lines), transfer.BundleLimits(far_numbers=1_000))
    assert read(sealed(manifest, lines))


@pytest.mark.parametrize("change", [other_state, no_ref, other_format], ids=lambda change: change.__name__)
def test_a_component_is_compared_with_its_ref_when_its_line_is_read(change: Callable[[Lines], None]) -> None:
    manifest, lines = opened(genuine())
    change(lines)
    with pytest.raises(ImportRefused, match="the ref of component 'execution_state' is not the name"):
        read(sealed(manifest, lines))


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (transfer.BundleLimits(lines=10), "more than 10 lines"),
        (transfer.BundleLimits(total_bytes=1_000), "more than 1000 bytes"),
        (transfer.BundleLimits(decoded_bytes=500), "line 2 would take more than 500 bytes of memory"),
    ],
    ids=["lines", "total", "decoded"],
)
def test_a_bundle_beyond_a_limit_is_refused(limits: transfer.BundleLimits, says: str) -> None:
    with pytest.raises(ImportRefused, match=says):
        read(genuine(), limits)
    assert read(genuine(), transfer.BundleLimits(lines=11)).manifest.counts["batch"] == 2
    assert read(genuine(), transfer.TRUSTED).size_bytes == len(genuine()) - genuine().index(b"\n") - 1


def test_labels_travel_with_their_session(target: holdfast.BlockingStore) -> None:
    with holdfast.open_blocking("memory:") as source:
        source.sessions.create("chat", labels={"user": "u1", "é": ""}).commit(holdfast.Commit())
        data = exported(source)
    transfer.restore(target, read(data))
    assert transfer.restore(target, read(data), into="copy").outcome == "imported"
    assert [one.session_id for one in target.sessions.list(labels={"user": "u1", "é": ""})] == ["chat", "copy"]
    assert transfer.restore(target, read(data)).outcome == "already_there"
    with holdfast.open_blocking("memory:", limits=holdfast.Limits(labels=1)) as narrow:
        refuse_without_a_trace(narrow, data, "labels: has 2 items, the limit is 1")
