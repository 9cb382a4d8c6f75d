"""Every ref names a body that is stored or sent along; a missing body is damage and never an empty state."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Corrupt, InvalidRequest, UnknownRef
from holdfast.records.checkpoints import Checkpoint, CheckpointManifest, Ref
from holdfast.records.graph import AgentFrame
from holdfast.records.limits import Limits
from holdfast.rows import BlobRow
from holdfast.rules import checkpoints, deltas
from holdfast.rules.checkpoints import Contents

STEADY = settings(derandomize=True, deadline=None)
LIMITS = Limits(component_bytes=64, commit_items=3, id_bytes=16)


def json_ref(data: bytes) -> str:
    return f"json-sha256:{hashlib.sha256(data).hexdigest()}"


def bytes_ref(data: bytes) -> str:
    return f"bytes-sha256:{hashlib.sha256(data).hexdigest()}"


KNOWN = json_ref(b"known")


def check(checkpoint: object, contents: Contents | None = None) -> CheckpointManifest:
    return checkpoints.check_checkpoint("checkpoint", checkpoint, contents or Contents({}, {}), LIMITS)


def test_a_body_is_taken_in_by_its_content_and_a_ref_is_kept_to_be_proven() -> None:
    contents = Contents({}, {})
    manifest = check(
        Checkpoint(
            turn_state={"b": 1, "a": 2},
            tool_state=None,
            plugin_state=Ref(KNOWN),
            execution_state=bytearray(b"\xff"),  # type: ignore[arg-type]
            others={"memory": memoryview(b"m"), "notes": [1]},  # type: ignore[dict-item]
        ),
        contents,
    )
    sorted_state = b'{"a":2,"b":1}'
    assert manifest.refs == {
        "turn_state": json_ref(sorted_state),
        "tool_state": json_ref(b"null"),
        "plugin_state": KNOWN,
        "execution_state": bytes_ref(b"\xff"),
        "memory": bytes_ref(b"m"),
        "notes": json_ref(b"[1]"),
    }
    assert contents.kept == {"checkpoint.plugin_state": KNOWN}
    assert contents.bodies == {
        json_ref(sorted_state): sorted_state,
        json_ref(b"null"): b"null",
        bytes_ref(b"\xff"): b"\xff",
        bytes_ref(b"m"): b"m",
        json_ref(b"[1]"): b"[1]",
    }


def test_a_component_that_is_left_out_is_not_in_the_manifest() -> None:
    assert check(Checkpoint()).refs == {}
    assert list(check(Checkpoint(tool_state=1)).refs) == ["tool_state"]


@pytest.mark.parametrize(
    ("checkpoint", "field"),
    [
        ({"turn_state": 1}, "checkpoint"),
        (Checkpoint(turn_state={1, 2}), "checkpoint.turn_state"),
        (Checkpoint(turn_state="x" * 63), "checkpoint.turn_state"),
        (Checkpoint(execution_state=bytes(65)), "checkpoint.execution_state"),
        (Checkpoint(tool_state=Ref("nonsense")), "checkpoint.tool_state"),
        (Checkpoint(tool_state=Ref(5)), "checkpoint.tool_state"),  # type: ignore[arg-type]
        (Checkpoint(tool_state=Ref("checkpoint-sha256:" + "0" * 64)), "checkpoint.tool_state"),
        (Checkpoint(others=[1]), "checkpoint.others"),  # type: ignore[arg-type]
        (Checkpoint(others={"a": 1, "b": 1, "c": 1, "d": 1}), "checkpoint.others"),
        (Checkpoint(others={"": 1}), "checkpoint.others"),
        (Checkpoint(others={5: 1}), "checkpoint.others"),  # type: ignore[dict-item]
        (Checkpoint(others={"turn_state": 1}), "checkpoint.others"),
        (Checkpoint(others={"execution_state": 1}), "checkpoint.others"),
        (Checkpoint(others={"a": {1}}), "checkpoint.a"),
    ],
)
def test_a_checkpoint_that_cannot_be_kept_is_refused(checkpoint: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        check(checkpoint)
    assert info.value.field == field


COMPONENTS = st.dictionaries(
    st.sampled_from(["turn_state", "tool_state", "plugin_state", "execution_state", "a", "b", "c"]),
    st.none() | st.booleans() | st.integers(0, 9) | st.binary(max_size=3) | st.lists(st.integers(0, 3), max_size=3),
)


@STEADY
@given(COMPONENTS)
def test_a_checkpoint_comes_back_from_its_manifest_and_bodies(components: dict[str, Any]) -> None:
    contents = Contents({}, {})
    manifest = check(Checkpoint.of(components), contents)
    rows = checkpoints.blob_rows(contents, frozenset(), {})
    assert {row.hash for row in rows} == set(contents.bodies)
    found = checkpoints.checkpoint_of(manifest, deltas.opened(rows), needed_by="test")
    assert found.components() == components
    assert [type(found.components()[name]) for name in components] == [type(one) for one in components.values()]


@STEADY
@given(COMPONENTS, COMPONENTS)
def test_a_checkpoint_has_one_name_and_another_one_has_another(left: dict[str, Any], right: dict[str, Any]) -> None:
    first, second = check(Checkpoint.of(left)), check(Checkpoint.of(right))
    same = {name: (type(one), one) for name, one in left.items()} == {
        name: (type(one), one) for name, one in right.items()
    }
    assert (checkpoints.manifest_ref(first) == checkpoints.manifest_ref(second)) is same


def test_the_name_of_a_checkpoint_is_the_hash_of_its_manifest() -> None:
    manifest = CheckpointManifest({"b": "2", "a": "1"})
    assert checkpoints.manifest_ref(manifest) == (
        "checkpoint-sha256:" + hashlib.sha256(b'{"a":"1","b":"2"}').hexdigest()
    )


# Frames.


def frames(*given: object) -> tuple[str, tuple[str, ...], Contents]:
    contents = Contents({}, {})
    ref, states = checkpoints.check_frames("frames", list(given), contents, LIMITS)
    return ref, states, contents


def test_frames_are_one_document_and_their_states_are_bodies_of_their_own() -> None:
    kept = bytes_ref(b"known")
    first = AgentFrame("f1", status="superseded", execution_state=b"stack")
    second = AgentFrame("f2", "f1", execution_state_ref=kept, assignment={"a": 1}, created_at_ms=5)
    third = AgentFrame("f3", "f2", reason="retry", caused_by=[1], turn_options={"t": 0})
    ref, states, contents = frames(first, second, third)
    assert states == (bytes_ref(b"stack"), kept)
    assert contents.kept == {"frames[1].execution_state_ref": kept}
    assert set(contents.bodies) == {ref, bytes_ref(b"stack")}
    document = checkpoints.content_of(ref, contents.bodies, needed_by="test")
    assert checkpoints.frames_of(document, needed_by="test") == (
        msgspec.structs.replace(first, execution_state=None, execution_state_ref=bytes_ref(b"stack")),
        second,
        third,
    )


def test_no_frames_are_frames_too() -> None:
    ref, states, contents = frames()
    assert (ref, states) == (json_ref(b"[]"), ())
    assert contents.bodies == {json_ref(b"[]"): b"[]"}


def test_a_list_of_frames_that_no_reader_would_unpack_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "LARGEST_CONTENT", 100)
    frame = AgentFrame("f", reason="r", created_at_ms=1)
    with pytest.raises(InvalidRequest, match="no reader unpacks") as info:
        checkpoints.check_frames("frames", [frame], checkpoints.Contents({}, {}), LIMITS)
    assert (info.value.field, info.value.limit) == ("frames", 100)


def test_a_state_that_is_sent_wins_over_a_ref() -> None:
    _, states, contents = frames(AgentFrame("f", execution_state=b"new", execution_state_ref=bytes_ref(b"old")))
    assert states == (bytes_ref(b"new"),)
    assert contents.kept == {}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (["f"], "frames[0]"),
        ([AgentFrame("f"), AgentFrame("f")], "frames"),
        ([AgentFrame(str(index)) for index in range(4)], "frames"),
        ([AgentFrame("")], "frames[0].frame_id"),
        ([AgentFrame("f", "")], "frames[0].previous_frame_id"),
        ([AgentFrame("f", status="done")], "frames[0].status"),
        ([AgentFrame("f", reason="")], "frames[0].reason"),
        ([AgentFrame("f", caused_by={1})], "frames[0].caused_by"),
        ([AgentFrame("f", created_at_ms=-1)], "frames[0].created_at_ms"),
        ([AgentFrame("f", assignment={1})], "frames[0].assignment"),
        ([AgentFrame("f"), AgentFrame("g", turn_options=(1,))], "frames[1].turn_options"),
        ([AgentFrame("f", execution_state="text")], "frames[0].execution_state"),  # type: ignore[arg-type]
        ([AgentFrame("f", execution_state=bytes(65))], "frames[0].execution_state"),
        ([AgentFrame("f", execution_state_ref="x")], "frames[0].execution_state_ref"),
        ([AgentFrame("f", execution_state_ref=KNOWN)], "frames[0].execution_state_ref"),
    ],
    ids=[
        "type",
        "twice",
        "too many",
        "id",
        "previous",
        "status",
        "reason",
        "cause",
        "time",
        "assignment",
        "options",
        "state",
        "large state",
        "ref",
        "ref of a document",
    ],
)
def test_frames_that_cannot_be_kept_are_refused(given: list[object], field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        frames(*given)
    assert info.value.field == field


@pytest.mark.parametrize("document", [None, {}, [1], [{}], [{"frame_id": 5}]], ids=str)
def test_stored_frames_that_are_invalid_are_damage(document: object) -> None:
    with pytest.raises(Corrupt, match="list of frames") as info:
        checkpoints.frames_of(document, needed_by="revision 3")
    assert (info.value.table, info.value.key) == ("blobs", "revision 3")


# Bodies.


def test_a_ref_must_be_stored_or_come_along() -> None:
    contents = Contents({json_ref(b"1"): b"1"}, {"a": json_ref(b"1"), "b": KNOWN})
    checkpoints.require_known(contents, frozenset({KNOWN}))
    with pytest.raises(UnknownRef) as info:
        checkpoints.require_known(contents, frozenset())
    assert (info.value.field, info.value.ref) == ("b", KNOWN)


def test_a_ref_of_another_format_is_another_ref() -> None:
    data = b"1"
    contents = Contents({bytes_ref(data): data}, {"a": json_ref(data)})
    with pytest.raises(UnknownRef):
        checkpoints.require_known(contents, frozenset({bytes_ref(data)}))


def test_only_bodies_that_are_not_stored_yet_are_written() -> None:
    large = b"x" * 1_000
    contents = Contents({bytes_ref(b"a"): b"a", bytes_ref(b"b"): b"b", bytes_ref(large): large}, {})
    small, compressed = checkpoints.blob_rows(contents, frozenset({bytes_ref(b"a")}), {})
    assert small == BlobRow(bytes_ref(b"b"), "raw", 1, b"b")
    assert (compressed.hash, compressed.encoding, compressed.size) == (bytes_ref(large), "zstd", 1_000)
    assert deltas.opened([small, compressed]) == {bytes_ref(b"b"): b"b", bytes_ref(large): large}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (BlobRow(bytes_ref(b"a"), "raw", 1, b"b"), "does not match its hash"),
        (BlobRow(bytes_ref(b"a"), "zip", 1, b"a"), "unknown encoding"),
        (BlobRow("a", "raw", 1, b"a"), "is not a ref"),
    ],
    ids=["content", "encoding", "name"],
)
def test_a_damaged_body_is_reported(row: BlobRow, reason: str) -> None:
    with pytest.raises(Corrupt, match=reason) as info:
        deltas.opened([row])
    assert (info.value.table, info.value.key) == ("blobs", row.hash)


def test_a_missing_body_is_damage_and_never_an_empty_state() -> None:
    manifest = CheckpointManifest({"turn_state": KNOWN})
    with pytest.raises(Corrupt, match="revision 3 needs it") as info:
        checkpoints.checkpoint_of(manifest, {}, needed_by="revision 3")
    assert (info.value.table, info.value.key) == ("blobs", KNOWN)


def test_a_body_is_read_by_the_format_that_its_ref_names() -> None:
    bodies = {json_ref(b"[1]"): b"[1]", bytes_ref(b"[1]"): b"[1]", json_ref(b"{"): b"{"}
    assert checkpoints.content_of(json_ref(b"[1]"), bodies, needed_by="test") == [1]
    assert checkpoints.content_of(bytes_ref(b"[1]"), bodies, needed_by="test") == b"[1]"
    with pytest.raises(Corrupt, match="not JSON"):
        checkpoints.content_of(json_ref(b"{"), bodies, needed_by="test")
    assert checkpoints.split(KNOWN) == ("json", hashlib.sha256(b"known").hexdigest())


@pytest.mark.parametrize("ref", ["", "json", "json-sha256:", "yaml-sha256:" + "0" * 64, "json-sha256:" + "G" * 64])
def test_an_invalid_stored_ref_is_damage(ref: str) -> None:
    with pytest.raises(Corrupt, match="is not a ref"):
        checkpoints.split(ref)
