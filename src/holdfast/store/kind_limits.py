"""Limits of kinds of work: the claims that may live at once, of a kind and of each key; and pauses."""

from __future__ import annotations

from holdfast.operations import limits as operations
from holdfast.records.common import Page
from holdfast.records.queue import KindLimit, QueueDepth
from holdfast.rules import checks
from holdfast.rules import limits as rules
from holdfast.store.context import FacetBase


class KindLimits(FacetBase):
    """The part of the queue that holds work back."""

    async def set_limit(
        self, kind: str, *, at_once: int | None = None, per_key: int | None = None, keep: bool = False
    ) -> KindLimit:
        """Limit the concurrent claims of a kind: in total, and for each `key` of the work.

        The limits are stored, hold for every worker, and are exact. The newest call wins: it replaces both limits.
        With `keep=True`, a limit that is not given stays as it is stored, in the same transaction.
        Existing claims count and continue, even if there are more than a new limit allows. Work without a
        key counts for `at_once` only. At the limit, `claim` and `claim_next` find nothing. `at_once` holds for
        runs of the kind, too: they count apart from its work while a worker holds them, and have no key.

        >>> store.queue.set_limit("send-mail", at_once=10, per_key=1).per_key
        1
        >>> for number in range(2):
        ...     draft = holdfast.WorkDraft(session_id=f"mail-{number}", payloads=[1], kind="send-mail", key="ada")
        ...     _ = store.queue.enqueue(draft)
        >>> claim = store.queue.claim_next(owner_id="worker-1")
        >>> store.queue.claim_next(owner_id="worker-2") is None
        True
        >>> _ = store.queue.complete(claim)
        >>> store.queue.claim_next(owner_id="worker-2").session_id
        'mail-1'
        """
        checked = self._context.identifier("kind", kind)
        most, most_per_key = rules.check_limits(at_once, per_key)
        stays = checks.flag("keep", keep)
        return await self._context.backend.write(
            lambda tx: operations.declare(tx, checked, at_once=most, per_key=most_per_key, keep=stays), idempotent=True
        )

    async def remove_limit(self, kind: str) -> bool:
        """Remove both limits of a kind. Return False if it has no limits. A pause stays.

        >>> _ = store.queue.set_limit("send-mail", at_once=10)
        >>> store.queue.remove_limit("send-mail"), store.queue.remove_limit("send-mail")
        (True, False)
        """
        checked = self._context.identifier("kind", kind)
        return await self._context.backend.write(lambda tx: operations.remove(tx, checked))

    async def limits(self, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE) -> Page[KindLimit]:
        """Return one page of the kinds that have limits or are paused, by kind.

        >>> _ = store.queue.set_limit("send-mail", at_once=10)
        >>> [(one.kind, one.at_once, one.paused) for one in store.queue.limits()]
        [('send-mail', 10, False)]
        """
        place = checks.cursor("limits", after, [str])
        size = checks.page_size(limit, self._context.limits)
        start = "" if place is None else place[0]
        return await self._context.backend.read(lambda tx: operations.list_page(tx, after=start, limit=size))

    async def depths(self, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE) -> Page[QueueDepth]:
        """Return one page of the kinds that have unsettled work or dead letters, with their counts, by kind.

        Its cost grows with that work, and not with the settled work that is kept.

        >>> _ = store.sessions.create("chat-42").enqueue("hi")
        >>> [(one.kind, one.ready, one.claimed, one.dead) for one in store.queue.depths()]
        [('turn', 1, 0, 0)]
        """
        place = checks.cursor("depths", after, [str])
        size = checks.page_size(limit, self._context.limits)
        start = "" if place is None else place[0]
        return await self._context.backend.read(lambda tx: operations.depths_page(tx, after=start, limit=size))

    async def pause(self, kind: str) -> bool:
        """Stop claims of a kind by all workers until `resume`. Return False if it is paused already.

        Claims that live continue. Work can still be enqueued. In a session, work behind a batch of a paused kind waits.
        Runs of the kind are not claimed either, even if they are asked to cancel. A run that a worker holds continues
        until it ends or sleeps.

        >>> store.queue.pause("send-mail")
        True
        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="mail", payloads=[1], kind="send-mail"))
        >>> store.queue.claim_next(owner_id="worker-1") is None
        True
        >>> store.queue.resume("send-mail")
        True
        >>> store.queue.claim_next(owner_id="worker-1").session_id
        'mail'
        """
        checked = self._context.identifier("kind", kind)
        return await self._context.backend.write(lambda tx: operations.pause(tx, checked))

    async def resume(self, kind: str) -> bool:
        """End the pause of a kind, and wake waiting workers. Return False if it is not paused.

        >>> store.queue.resume("send-mail")
        False
        """
        checked = self._context.identifier("kind", kind)
        return await self._context.backend.write(lambda tx: operations.resume(tx, checked))

    async def paused_sessions(self, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE) -> Page[str]:
        """Return one page of the ids of paused sessions.

        >>> _ = store.sessions.create("chat-42").pause()
        >>> list(store.queue.paused_sessions())
        ['chat-42']
        """
        place = checks.cursor("paused sessions", after, [int])
        size = checks.page_size(limit, self._context.limits)
        start = 0 if place is None else place[0]
        return await self._context.backend.read(lambda tx: operations.paused_page(tx, after=start, limit=size))
