"""Artifacts: the checks on their refs and their stored form. A ref that names its content must match it."""

from __future__ import annotations

import re
from typing import Final, cast

from msgspec import UNSET, UnsetType

from holdfast import codec
from holdfast.errors import ArtifactConflict, InvalidRequest
from holdfast.label_rows import FIRST_CHARACTER
from holdfast.records.artifacts import Artifact, ArtifactCheck, ArtifactSummary
from holdfast.records.graph import IdRange
from holdfast.records.limits import Limits
from holdfast.rows import ArtifactHead, ArtifactRange, ArtifactRow
from holdfast.rules import checks, replacements

RUN_RESULT: Final = "run-result"
"""The kind of artifacts that hold a result of a run that is too large for an event."""
_RESULT_REF = re.compile(r"([0-9]+)/(.+)/[0-9a-f]{32}", re.DOTALL)
_HASH = re.compile("[0-9a-f]{64}")
LONGEST_PROBLEM = 1_000
"""The most characters of a check's problem that an error repeats: an exception may quote the whole artifact."""


def content_ref(kind: str, data: bytes) -> str:
    """Return the ref that is derived from the content."""
    return minted_ref(kind, codec.digest(data))


def minted_ref(kind: str, hash: str) -> str:
    """Return the ref of content with this hash."""
    return f"{kind}:sha256:{hash}"


def result_ref(process_id: str, created_at_ms: int, data: bytes, limits: Limits) -> str | None:
    """Return the ref of a run's result, which names the run and its start; None if the id is too long for that."""
    ref = f"{created_at_ms}/{process_id}/{codec.digest(data)[:32]}"
    return ref if len(ref.encode()) <= limits.id_bytes else None


def run_of_result(ref: str) -> tuple[str, int] | None:
    """Return id and start of the run that a ref names, None if it names none."""
    named = _RESULT_REF.fullmatch(ref)
    return None if named is None else (named[2], int(named[1]))


def check_artifact(kind: object, ref: object | None, data: object, limits: Limits) -> tuple[str, str, bytes]:
    """Return kind, ref and bytes. Without a ref, one is minted from the content."""
    checked_kind = checks.identifier("kind", kind, limits)
    body = checks.content("data", data, most=limits.artifact_bytes)
    minted = content_ref(checked_kind, body)
    if ref is None:
        return checked_kind, minted, body
    checked_ref = checks.identifier("ref", ref, limits)
    if checked_ref.startswith(f"{checked_kind}:sha256:") and checked_ref != minted:
        raise InvalidRequest("ref", f"names other content: these bytes are {minted!r}")
    return checked_kind, checked_ref, body


def check_hash(expected: object) -> str | UnsetType | None:
    """Check the hash of the artifact that a put replaces; None means that no artifact may be stored yet."""
    if expected is None or expected is UNSET:
        return expected
    if not isinstance(expected, str) or _HASH.fullmatch(expected) is None:
        raise InvalidRequest(
            "expected_hash", "must be the hash of an artifact that was read, or None for one that must not exist"
        )
    return expected


def range_of(kind: str | None, prefix: str, place: tuple[str, str] | None) -> ArtifactRange:
    """Return the artifacts of a kind, or of all kinds, whose refs begin with a text, after a place in their listing."""
    if kind is None:
        whole = ArtifactRange()
    else:
        refs = IdRange.prefix(prefix)
        # No kind holds NUL, so that none stands between a kind and the kind with the least character after it.
        end = (kind + FIRST_CHARACTER, "") if refs.before is None else (kind, refs.before)
        whole = ArtifactRange((kind, refs.first), end)
    return whole if place is None else _after(whole, place)


def _after(whole: ArtifactRange, place: tuple[str, str]) -> ArtifactRange:
    return whole._replace(first=max(whole.first, (place[0], place[1] + FIRST_CHARACTER)))


def upto(given: ArtifactRange, last: ArtifactHead) -> ArtifactRange:
    """Return the part of a range that ends with an artifact."""
    return given._replace(before=(last.kind, last.ref + FIRST_CHARACTER))


def require_stored(row: ArtifactRow, found: ArtifactRow | None, *, is_retry: bool) -> None:
    """Refuse a put that wrote nothing, unless its content is there already: a retry finds its own."""
    if found is not None and found.hash == row.hash:
        return
    if not is_retry:
        raise ArtifactConflict(row.kind, row.ref, None if found is None else found.hash)
    what = f"artifact {row.kind}/{row.ref}"
    if found is None:
        # The earlier try may have stored it and a later delete removed it; storing again would undo that delete.
        raise replacements.uncertain(what)
    replacements.is_stored(found.hash, row.hash, what)


def judge(check: ArtifactCheck, kind: str, ref: str, data: bytes) -> None:
    """Raise `InvalidRequest` if the caller's check for the kind finds a problem, or misbehaves."""
    refused = f"{kind} artifact {ref!r} was refused by its check"
    try:
        problem = cast("object", check(ref, data))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise InvalidRequest("data", f"{refused}: {problem[:LONGEST_PROBLEM]}") from error
    if problem is None:
        return
    if isinstance(problem, str) and problem.strip():
        raise InvalidRequest("data", f"{refused}: {problem[:LONGEST_PROBLEM]}")
    raise InvalidRequest(
        f"artifact_checks[{kind!r}]", f"must return None or the problem as text, not {type(problem).__name__}"
    )


def packed(kind: str, ref: str, data: bytes, *, now_ms: int) -> ArtifactRow:
    """Return the artifact as the database stores it."""
    encoding, body = codec.pack(data)
    return ArtifactRow(kind, ref, codec.digest(data), encoding, len(data), now_ms, body)


def opened(row: ArtifactRow) -> Artifact:
    """Return the artifact of a row, with its bytes proven by their hash."""
    key = f"{row.kind}/{row.ref}"
    data = codec.unpack(row.encoding, row.body, size=row.size, hash=row.hash, table="artifacts", key=key)
    return Artifact(row.kind, row.ref, data, row.stored_at_ms, row.hash)


def prove(row: ArtifactRow) -> None:
    """Raise `Corrupt` unless the artifact can be read."""
    key = f"{row.kind}/{row.ref}"
    codec.prove(row.encoding, row.body, size=row.size, hash=row.hash, table="artifacts", key=key)


def summary_of(row: ArtifactHead) -> ArtifactSummary:
    """Return the artifact without its bytes."""
    return ArtifactSummary(row.kind, row.ref, row.size, row.stored_at_ms, row.hash)
