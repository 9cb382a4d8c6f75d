"""`store.artifacts`: opaque documents of the runtime, by kind and ref."""

from __future__ import annotations

from functools import partial

from msgspec import UNSET, UnsetType

from holdfast.errors import InvalidRequest
from holdfast.operations import artifacts as operations
from holdfast.records.artifacts import Artifact, ArtifactSummary
from holdfast.records.common import Page
from holdfast.rows import ArtifactRange
from holdfast.rules import artifacts as rules
from holdfast.rules import checks
from holdfast.store.context import Context, FacetBase


class Artifacts(FacetBase):
    """The artifact store. Kinds are namespaces chosen by the runtime, such as `module` or `environment`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def put(self, kind: str, ref: str, data: bytes, *, expected_hash: str | UnsetType | None = UNSET) -> str:
        """Store bytes under a ref, replacing any earlier ones. A ref `<kind>:sha256:<hash>` must match its bytes.

        With `expected_hash`, replace only the artifact with this hash; None stores only a new artifact. Anything else
        is `ArtifactConflict`, and nothing is stored. Equal bytes are not a conflict, so that the call can be repeated:
        writers that must know which of them was first store different bytes.

        Several puts are one transaction in `store.transaction()`. If the store was opened with a check for the kind,
        the check judges ref and bytes first.

        >>> store.artifacts.put("module", "main", b"code")
        'main'
        >>> seen = store.artifacts.get("module", "main")
        >>> store.artifacts.put("module", "main", b"better code", expected_hash=seen.hash)
        'main'
        >>> store.artifacts.put("module", "main", b"other code", expected_hash=seen.hash)
        Traceback (most recent call last):
        holdfast.errors.ArtifactConflict: artifact module/main is not the expected one: the stored one has ...
        """
        checked = self._context.identifier("ref", ref)
        expected = rules.check_hash(expected_hash)
        artifact, heavy = await self._context.prepared(rules.check_artifact, kind, checked, data, self._context.limits)
        return await self._put(*artifact, expected, heavy=heavy)

    async def put_content(self, kind: str, data: bytes) -> str:
        """Store bytes under the ref derived from their content, and return the ref.

        >>> store.artifacts.put_content("environment", b"{}").startswith("environment:sha256:")
        True
        """
        artifact, heavy = await self._context.prepared(rules.check_artifact, kind, None, data, self._context.limits)
        return await self._put(*artifact, UNSET, heavy=heavy)

    async def _put(self, kind: str, ref: str, data: bytes, expected: str | UnsetType | None, *, heavy: bool) -> str:
        check = self._context.artifact_checks.get(kind)
        if check is not None:
            # Not in the write transaction, and not on the event loop: it may be slow.
            await self._context.application_code(partial(rules.judge, check, kind, ref, data))
        return await self._context.backend.write(
            lambda tx: operations.put(tx, kind, ref, data, expected), idempotent=True, heavy=heavy
        )

    async def get(self, kind: str, ref: str) -> Artifact | None:
        """Return the artifact, verified by its hash, or None.

        >>> _ = store.artifacts.put("module", "main", b"code")
        >>> store.artifacts.get("module", "main").data
        b'code'
        """
        checked_kind = self._context.identifier("kind", kind)
        checked_ref = self._context.identifier("ref", ref)
        return await self._context.backend.read(lambda tx: operations.get(tx, checked_kind, checked_ref))

    async def list(
        self,
        *,
        kind: str | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int = checks.DEFAULT_PAGE,
    ) -> Page[ArtifactSummary]:
        """Return one page of the artifacts by kind and ref, without their bytes.

        With `kind`, only artifacts of this kind; with `prefix` too, only those whose refs begin with it. Reads those
        artifacts and no others.

        >>> _ = store.artifacts.put("module", "main", b"code"), store.artifacts.put("report", "2026/may", b"...")
        >>> [(one.kind, one.ref, one.size_bytes) for one in store.artifacts.list(kind="module")]
        [('module', 'main', 4)]
        """
        checked_kind = checks.optional_identifier("kind", kind, self._context.limits)
        range = self._range(checked_kind, prefix, after)
        size = checks.page_size(limit, self._context.limits)
        return await self._context.backend.read(lambda tx: operations.list_page(tx, range, size))

    async def get_many(
        self, kind: str, *, prefix: str = "", after: str | None = None, limit: int = checks.DEFAULT_PAGE
    ) -> Page[Artifact]:
        """Return one page of the artifacts of a kind by ref, with their bytes; with `prefix`, those that begin with it.

        A page ends early with the artifact with which it reaches 16 MiB.

        >>> with store.transaction() as tx:
        ...     for month in ("april", "may"):
        ...         _ = tx.artifacts.put("report", f"2026/{month}", month.encode())
        >>> [one.data for one in store.artifacts.get_many("report", prefix="2026/")]
        [b'april', b'may']
        """
        range = self._range(self._context.identifier("kind", kind), prefix, after)
        size = checks.page_size(limit, self._context.limits)
        return await self._context.backend.read(lambda tx: operations.read_page(tx, range, size))

    def _range(self, kind: str | None, prefix: str, after: str | None) -> ArtifactRange:
        place = checks.cursor(operations.LISTING, after, [str, str])
        begins_with = checks.text("prefix", prefix, self._context.limits)
        if kind is None and begins_with:
            raise InvalidRequest("prefix", "is one of refs of a kind: give `kind`, too")
        return rules.range_of(kind, begins_with, None if place is None else (place[0], place[1]))

    async def delete(self, kind: str, ref: str) -> bool:
        """Delete an artifact. Return False if it does not exist.

        >>> store.artifacts.delete("module", "main")
        False
        """
        checked_kind = self._context.identifier("kind", kind)
        checked_ref = self._context.identifier("ref", ref)
        return await self._context.backend.write(lambda tx: operations.delete(tx, checked_kind, checked_ref))

    async def delete_many(self, kind: str, *, prefix: str) -> int:
        """Delete the artifacts of a kind whose refs begin with a prefix, in one transaction. Return how many.

        The prefix `""` is that of all refs.

        >>> _ = store.artifacts.put("report", "2026/may", b"..."), store.artifacts.put("report", "2027/may", b"...")
        >>> store.artifacts.delete_many("report", prefix="2026/")
        1
        """
        range = self._range(self._context.identifier("kind", kind), prefix, None)
        return await self._context.backend.write(lambda tx: operations.delete_range(tx, range))
