"""`store.artifacts`: opaque documents of the runtime's, by kind and ref."""

from __future__ import annotations

from holdfast.operations import artifacts as operations
from holdfast.records.artifacts import Artifact, ArtifactSummary
from holdfast.records.common import Page
from holdfast.rules import artifacts as rules
from holdfast.rules import checks
from holdfast.store.context import Context


class Artifacts:
    """The artifact store. Kinds are namespaces: `module`, `environment`, whatever the runtime has."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def put(self, kind: str, ref: str, data: bytes) -> str:
        """Store bytes under a ref, over what was there. A ref `<kind>:sha256:<hash>` must match its bytes.

        >>> store.artifacts.put("module", "main", b"code")
        'main'
        """
        checked_kind, checked_ref, body = rules.check_artifact(
            kind, self._context.identifier("ref", ref), data, self._context.limits
        )
        return await self._context.backend.write(
            lambda tx: operations.put(tx, checked_kind, checked_ref, body), repeatable=True
        )

    async def put_content(self, kind: str, data: bytes) -> str:
        """Store bytes under the ref that their content gives them, and return it.

        >>> store.artifacts.put_content("environment", b"{}").startswith("environment:sha256:")
        True
        """
        checked_kind, ref, body = rules.check_artifact(kind, None, data, self._context.limits)
        return await self._context.backend.write(
            lambda tx: operations.put(tx, checked_kind, ref, body), repeatable=True
        )

    async def get(self, kind: str, ref: str) -> Artifact | None:
        """The artifact, proven by its hash; None if there is none.

        >>> _ = store.artifacts.put("module", "main", b"code")
        >>> store.artifacts.get("module", "main").data
        b'code'
        """
        checked_kind = self._context.identifier("kind", kind)
        checked_ref = self._context.identifier("ref", ref)
        return await self._context.backend.read(lambda tx: operations.get(tx, checked_kind, checked_ref))

    async def list(self, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE) -> Page[ArtifactSummary]:
        """One page of the artifacts by kind and ref, without their bytes.

        >>> _ = store.artifacts.put("module", "main", b"code")
        >>> [(one.kind, one.ref, one.size_bytes) for one in store.artifacts.list()]
        [('module', 'main', 4)]
        """
        place = checks.cursor("artifacts", after, [str, str])
        start = ("", "") if place is None else (str(place[0]), str(place[1]))
        size = checks.page_size(limit, self._context.limits)
        return await self._context.backend.read(lambda tx: operations.list_page(tx, after=start, limit=size))

    async def delete(self, kind: str, ref: str) -> bool:
        """Remove an artifact; False if there was none.

        >>> store.artifacts.delete("module", "main")
        False
        """
        checked_kind = self._context.identifier("kind", kind)
        checked_ref = self._context.identifier("ref", ref)
        return await self._context.backend.write(lambda tx: operations.delete(tx, checked_kind, checked_ref))
