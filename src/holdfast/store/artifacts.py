"""`store.artifacts`: opaque documents of the runtime, by kind and ref."""

from __future__ import annotations

from functools import partial

from holdfast.operations import artifacts as operations
from holdfast.records.artifacts import Artifact, ArtifactSummary
from holdfast.records.common import Page
from holdfast.rules import artifacts as rules
from holdfast.rules import checks
from holdfast.store.context import Context


class Artifacts:
    """The artifact store. Kinds are namespaces chosen by the runtime, such as `module` or `environment`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def put(self, kind: str, ref: str, data: bytes) -> str:
        """Store bytes under a ref, replacing any earlier ones. A ref `<kind>:sha256:<hash>` must match its bytes.

        If the store was opened with a check for the kind, the check judges ref and bytes first.

        >>> store.artifacts.put("module", "main", b"code")
        'main'
        """
        checked = self._context.identifier("ref", ref)
        artifact, heavy = await self._context.prepared(rules.check_artifact, kind, checked, data, self._context.limits)
        return await self._put(*artifact, heavy=heavy)

    async def put_content(self, kind: str, data: bytes) -> str:
        """Store bytes under the ref derived from their content, and return the ref.

        >>> store.artifacts.put_content("environment", b"{}").startswith("environment:sha256:")
        True
        """
        artifact, heavy = await self._context.prepared(rules.check_artifact, kind, None, data, self._context.limits)
        return await self._put(*artifact, heavy=heavy)

    async def _put(self, kind: str, ref: str, data: bytes, *, heavy: bool) -> str:
        check = self._context.artifact_checks.get(kind)
        if check is not None:
            # Not in the write transaction, and not on the event loop: it may be slow.
            await self._context.application_code(partial(rules.judge, check, kind, ref, data))
        return await self._context.backend.write(
            lambda tx: operations.put(tx, kind, ref, data), idempotent=True, heavy=heavy
        )

    async def get(self, kind: str, ref: str) -> Artifact | None:
        """Return the artifact, verified by its hash; None if there is none.

        >>> _ = store.artifacts.put("module", "main", b"code")
        >>> store.artifacts.get("module", "main").data
        b'code'
        """
        checked_kind = self._context.identifier("kind", kind)
        checked_ref = self._context.identifier("ref", ref)
        return await self._context.backend.read(lambda tx: operations.get(tx, checked_kind, checked_ref))

    async def list(self, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE) -> Page[ArtifactSummary]:
        """Return one page of the artifacts by kind and ref, without their bytes.

        >>> _ = store.artifacts.put("module", "main", b"code")
        >>> [(one.kind, one.ref, one.size_bytes) for one in store.artifacts.list()]
        [('module', 'main', 4)]
        """
        place = checks.cursor("artifacts", after, [str, str])
        start = ("", "") if place is None else (str(place[0]), str(place[1]))
        size = checks.page_size(limit, self._context.limits)
        return await self._context.backend.read(lambda tx: operations.list_page(tx, after=start, limit=size))

    async def delete(self, kind: str, ref: str) -> bool:
        """Delete an artifact. Return False if there was none.

        >>> store.artifacts.delete("module", "main")
        False
        """
        checked_kind = self._context.identifier("kind", kind)
        checked_ref = self._context.identifier("ref", ref)
        return await self._context.backend.write(lambda tx: operations.delete(tx, checked_kind, checked_ref))
