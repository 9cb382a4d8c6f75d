"""An artifact is what was put under its kind and ref; a ref that names its content must match it."""

from __future__ import annotations

from typing import cast

from holdfast import codec
from holdfast.errors import InvalidRequest
from holdfast.records.artifacts import Artifact, ArtifactCheck, ArtifactSummary
from holdfast.records.limits import Limits
from holdfast.rows import ArtifactHead, ArtifactRow
from holdfast.rules import checks

LONGEST_PROBLEM = 1_000
"""The characters of a check's problem that an error repeats: what raised may quote the whole artifact."""


def content_ref(kind: str, data: bytes) -> str:
    """The ref that content gets by itself."""
    return minted_ref(kind, codec.digest(data))


def minted_ref(kind: str, hash: str) -> str:
    """The ref that content with this hash gets by itself."""
    return f"{kind}:sha256:{hash}"


def check_artifact(kind: object, ref: object | None, data: object, limits: Limits) -> tuple[str, str, bytes]:
    """Kind, ref and bytes; without a ref, one is minted from the content."""
    checked_kind = checks.identifier("kind", kind, limits)
    body = checks.content("data", data, most=limits.artifact_bytes)
    minted = content_ref(checked_kind, body)
    if ref is None:
        return checked_kind, minted, body
    checked_ref = checks.identifier("ref", ref, limits)
    if checked_ref.startswith(f"{checked_kind}:sha256:") and checked_ref != minted:
        raise InvalidRequest("ref", f"names other content: these bytes are {minted!r}")
    return checked_kind, checked_ref, body


def judge(check: ArtifactCheck, kind: str, ref: str, data: bytes) -> None:
    """Raise `InvalidRequest` if the check that a caller has given for the kind finds a problem, or cannot be used."""
    refused = f"{kind} artifact {ref!r} was refused by its check"
    try:
        problem = cast("object", check(ref, data))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise InvalidRequest("data", f"{refused}: {said[:LONGEST_PROBLEM]}") from error
    if problem is None:
        return
    if isinstance(problem, str) and problem.strip():
        raise InvalidRequest("data", f"{refused}: {problem[:LONGEST_PROBLEM]}")
    raise InvalidRequest(
        f"artifact_checks[{kind!r}]", f"must return None or the problem as text, not {type(problem).__name__}"
    )


def packed(kind: str, ref: str, data: bytes, *, now_ms: int) -> ArtifactRow:
    """The artifact as the database keeps it."""
    encoding, body = codec.pack(data)
    return ArtifactRow(kind, ref, codec.digest(data), encoding, len(data), now_ms, body)


def opened(row: ArtifactRow) -> Artifact:
    """The artifact that a row holds, proven."""
    key = f"{row.kind}/{row.ref}"
    data = codec.unpack(row.encoding, row.body, size=row.size, hash=row.hash, table="artifacts", key=key)
    return Artifact(row.kind, row.ref, data, row.stored_at_ms)


def prove(row: ArtifactRow) -> None:
    """Raise `Corrupt` unless the artifact can be read."""
    key = f"{row.kind}/{row.ref}"
    codec.prove(row.encoding, row.body, size=row.size, hash=row.hash, table="artifacts", key=key)


def summary_of(row: ArtifactHead) -> ArtifactSummary:
    """The artifact without its bytes."""
    return ArtifactSummary(row.kind, row.ref, row.size, row.stored_at_ms)
