"""An artifact comes back as it was put, and a content ref names exactly one content."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ArtifactConflict, Corrupt, InvalidRequest, ReplacementUncertain
from holdfast.records.artifacts import Artifact
from holdfast.records.limits import Limits
from holdfast.rules import artifacts

STEADY = settings(derandomize=True, deadline=None)
LIMITS = Limits(artifact_bytes=4)
MINTED = "module:sha256:" + hashlib.sha256(b"data").hexdigest()


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        (None, MINTED),
        (MINTED, MINTED),
        ("main", "main"),
        ("environment:sha256:0", "environment:sha256:0"),
        ("module:md5:0", "module:md5:0"),
    ],
    ids=["minted", "matching", "name", "of another kind", "of another hash"],
)
def test_a_ref_is_minted_matches_or_is_just_a_name(ref: str | None, expected: str) -> None:
    assert artifacts.content_ref("module", b"data") == MINTED
    assert artifacts.check_artifact("module", ref, bytearray(b"data"), LIMITS) == ("module", expected, b"data")


@pytest.mark.parametrize(
    ("kind", "ref", "data", "field"),
    [
        ("", None, b"data", "kind"),
        (5, None, b"data", "kind"),
        ("module", "", b"data", "ref"),
        ("module", 5, b"data", "ref"),
        ("module", "module:sha256:0", b"data", "ref"),
        ("module", MINTED, b"dada", "ref"),
        ("module", MINTED.upper().replace("MODULE:SHA256", "module:sha256"), b"data", "ref"),
        ("module", None, "data", "data"),
        ("module", None, b"12345", "data"),
    ],
)
def test_an_artifact_that_is_not_what_its_ref_says_is_refused(
    kind: object, ref: object, data: object, field: str
) -> None:
    with pytest.raises(InvalidRequest) as info:
        artifacts.check_artifact(kind, ref, data, LIMITS)
    assert info.value.field == field


@STEADY
@given(st.binary(max_size=400))
def test_an_artifact_comes_back_as_it_was_put(data: bytes) -> None:
    row = artifacts.packed("module", "main", data, now_ms=50)
    assert (row.kind, row.ref, row.size, row.hash) == ("module", "main", len(data), hashlib.sha256(data).hexdigest())
    assert artifacts.opened(row) == Artifact("module", "main", data, 50, row.hash)


def test_a_damaged_artifact_is_reported() -> None:
    row = msgspec.structs.replace(artifacts.packed("module", "main", b"data", now_ms=50), body=b"dada")
    with pytest.raises(Corrupt) as info:
        artifacts.opened(row)
    assert (info.value.table, info.value.key) == ("artifacts", "module/main")


def test_a_put_that_wrote_nothing_is_refused_unless_its_content_is_there() -> None:
    mine, theirs = (artifacts.packed("module", "main", data, now_ms=50) for data in (b"mine", b"theirs"))
    for is_retry in (False, True):
        artifacts.require_stored(mine, mine, is_retry=is_retry)
    for found in (None, theirs):
        with pytest.raises(ArtifactConflict) as refused:
            artifacts.require_stored(mine, found, is_retry=False)
        assert refused.value.actual == (None if found is None else found.hash)
        with pytest.raises(ReplacementUncertain):
            artifacts.require_stored(mine, found, is_retry=True)
