"""Small, likely bugs, each of which the machine has to notice.

They are planted in the memory backend, by replacing a method.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.backends.memory.backend import MemoryTransaction
from holdfast.backends.memory.tables import Table

Method = Callable[..., Any]


def forgets_settled_work(self: Any, right: Method) -> Method:
    async def save_batches(rows: Any) -> int:
        saved = await right(self, rows)
        for row in rows:
            if row.settled_state is not None:
                self.tables.batches.drop(row.enqueue_seq)
        return int(saved)

    return save_batches


def a_claim_lives_a_millisecond_longer(self: Any, right: Method) -> Method:
    async def ready_batches(session_key: int, now_ms: int, limit: int, *, with_back_off: bool) -> Any:
        return await right(self, session_key, now_ms - 1, limit, with_back_off=with_back_off)

    return ready_batches


def work_in_back_off_is_offered(self: Any, right: Method) -> Method:
    async def queue_front(session_key: int, claimed_upto: int, now_ms: int) -> Any:
        return [
            msgspec.structs.replace(row, retry_at_ms=0) for row in await right(self, session_key, claimed_upto, now_ms)
        ]

    return queue_front


def a_session_with_work_is_not_offered(self: Any, right: Method) -> Method:
    async def save_ready(row: Any) -> None:
        before = await self.find_ready(row.session_key)
        if before is None or before.level >= row.level:
            await right(self, row)

    return save_ready


def a_tombstone_does_not_cut_the_path(self: Any, right: Method) -> Method:
    async def read_path(leaf_key: int, last: int | None) -> Any:
        path, node = [], self.tables.nodes.get(leaf_key)
        while node is not None and (last is None or len(path) < last):
            path.append(self._with_parent(node))
            node = None if node.parent_key is None else self.tables.nodes.get(node.parent_key)
        return path

    return read_path


def what_a_turn_brings_back_stays_hidden(self: Any, right: Method) -> Method:
    async def revive_nodes(node_keys: Any) -> int:
        return len(node_keys)

    return revive_nodes


EVENT_PAGES = itertools.count(1)


def an_event_comes_twice(self: Any, right: Method) -> Method:
    async def list_events(filter: Any) -> Any:
        # Every third time: otherwise a reader that stops at an empty page would never stop.
        back = int(next(EVENT_PAGES) % 3 == 0)
        return await right(self, msgspec.structs.replace(filter, after=max(0, filter.after - back)))

    return list_events


def a_page_repeats_its_last_session(self: Any, right: Method) -> Method:
    async def list_sessions(filter: Any) -> Any:
        if filter.after is not None:
            filter = msgspec.structs.replace(filter, after=(*filter.after[:-1], filter.after[-1] - 1))
        return await right(self, filter)

    return list_sessions


def a_cancelled_subscription_still_fires(self: Any, right: Method) -> Method:
    async def list_subscriptions(filter: Any) -> Any:
        return await right(self, msgspec.structs.replace(filter, enabled=None))

    return list_subscriptions


def another_session_keeps_the_grant(self: Any, right: Method) -> Method:
    async def drop_session_grants(session_id: str) -> int:
        keys = self.tables.grants.keys(lambda key: key[0] == session_id and key[1] == "")
        return sum(self.tables.grants.drop(key) for key in keys)

    return drop_session_grants


def usage_is_replaced_not_added(self: Any, right: Method) -> Method:
    def _add_usage(session_key: int, usage: Any) -> None:
        self.tables.usage.put((session_key, usage.source, usage.model), usage)

    return _add_usage


def a_fence_starts_again_after_a_delete(self: Any, right: Method) -> Method:
    async def drop_lease(kind: str, resource: str) -> None:
        self.tables.leases.drop((kind, resource))

    return drop_lease


def garbage_collection_takes_one_too_many(self: Any, right: Method) -> Method:
    async def drop_unreferenced_blobs(family: int, *, limit: int, dry_run: bool) -> Any:
        answer = await right(self, family, limit=limit, dry_run=dry_run)
        for key in self.tables.blobs.keys(lambda key: key[0] == family)[:1]:
            self.tables.blobs.drop(key)
        return answer

    return drop_unreferenced_blobs


def the_text_order_ignores_case(self: Any, right: Method) -> Method:
    async def list_processes(filter: Any) -> Any:
        return sorted(await right(self, filter), key=lambda row: row.process_id.lower())

    return list_processes


PLANTED: dict[str, Callable[[Any, Method], Method]] = {
    "save_batches": forgets_settled_work,
    "ready_batches": a_claim_lives_a_millisecond_longer,
    "save_ready": a_session_with_work_is_not_offered,
    "queue_front": work_in_back_off_is_offered,
    "read_path": a_tombstone_does_not_cut_the_path,
    "revive_nodes": what_a_turn_brings_back_stays_hidden,
    "list_events": an_event_comes_twice,
    "list_sessions": a_page_repeats_its_last_session,
    "list_subscriptions": a_cancelled_subscription_still_fires,
    "drop_session_grants": another_session_keeps_the_grant,
    "_add_usage": usage_is_replaced_not_added,
    "drop_lease": a_fence_starts_again_after_a_delete,
    "drop_unreferenced_blobs": garbage_collection_takes_one_too_many,
    "list_processes": the_text_order_ignores_case,
}


def plant(monkeypatch: Any, name: str) -> None:
    """Replace the right method by a wrong one."""
    right, wrong = getattr(MemoryTransaction, name), PLANTED[name]
    monkeypatch.setattr(MemoryTransaction, name, lambda self, *args, **kwargs: wrong(self, right)(*args, **kwargs))


def plant_a_trace(monkeypatch: Any) -> None:
    """Make a refused call keep its staged writes."""
    monkeypatch.setattr(Table, "roll_back", Table.commit)
