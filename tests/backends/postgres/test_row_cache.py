"""The row cache is shared between threads: heavy operations add rows from their own threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.backends.postgres.row_cache import LRU

MOST = 3
STEPS = 60_000


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Make threads switch after nearly every line."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switching")
def test_threads_may_use_and_drop_the_same_entries() -> None:
    cache: LRU[int, int] = LRU(MOST)

    def use(worker: int) -> None:
        for step in range(STEPS):
            key = (step * (worker + 1)) % (2 * MOST)
            cache.put(key, key)
            assert cache.get(key) in {key, None}
            if step % 7 == worker:
                cache.drop((key + 1) % (2 * MOST))
            if step % 101 == worker:
                cache.clear()

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(use, worker) for worker in range(4)]:
            done.result()
    for key in range(2 * MOST):
        cache.put(key, key)
    assert [key for key in range(2 * MOST) if cache.get(key) is not None] == list(range(MOST, 2 * MOST))
