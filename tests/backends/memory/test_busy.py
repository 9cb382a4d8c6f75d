"""A memory store that runs heavy work in a thread keeps the event loop free."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

import holdfast


@pytest.mark.timeout(30)
def test_a_call_that_waits_for_the_lock_leaves_the_event_loop_to_others() -> None:
    async def case() -> None:
        async with holdfast.open("memory:") as store:
            await store.sessions.handle("chat").commit(holdfast.Commit(config=1))
            backend = cast("Any", store)._context.backend
            held, release = threading.Event(), threading.Event()

            def hold() -> None:
                held.set()
                assert release.wait(20)

            holder = threading.Thread(target=backend._with_lock, args=(hold,))
            holder.start()
            assert held.wait(20)
            # If this waited on the loop, nothing here could release the lock.
            waiting = asyncio.create_task(store.sessions.handle("chat").commit(holdfast.Commit(config=2)))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            release.set()
            assert (await waiting).revision == 2
            holder.join()

    asyncio.run(case())
