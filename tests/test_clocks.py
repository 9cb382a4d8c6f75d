"""One clock decides which owner holds a lease; a clock that is wrong or set back never gives a thing two holders."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock

HOUR_MS = 3_600_000
RUNS = int(os.environ.get("HOLDFAST_CLOCK_RUNS", "100"))
SEED = os.environ.get("HOLDFAST_SEED", "0")
TTL_MS = 60_000


class Skewed:
    """This machine's clock, set forward or back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.off_ms = 0
        nanoseconds, seconds = time.time_ns, time.time
        monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() + self.off_ms * 1_000_000)
        monkeypatch.setattr(time, "time", lambda: seconds() + self.off_ms / 1_000)


@pytest.fixture
def skewed(monkeypatch: pytest.MonkeyPatch) -> Skewed:
    return Skewed(monkeypatch)


def server_ms(postgres_database: object) -> int:
    rows = postgres_database.administrator.rows  # type: ignore[attr-defined]
    return int(rows("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")[0][0])


def test_a_client_whose_clock_is_an_hour_off_steals_and_loses_nothing(
    clean_postgres_url: str, postgres_database: object, skewed: Skewed
) -> None:
    chance = random.Random(SEED)
    with holdfast.open_blocking(clean_postgres_url) as store:
        for number in range(RUNS):
            one_life_under_wrong_clocks(store, skewed, chance, number, postgres_database)


def one_life_under_wrong_clocks(
    store: BlockingStore, skewed: Skewed, chance: random.Random, number: int, postgres_database: object
) -> None:
    def move() -> None:
        skewed.off_ms = chance.choice((-HOUR_MS, 0, HOUR_MS))

    on = holdfast.leases.OnSession(f"s{number}")
    store.sessions.create(f"s{number}")
    store.queue.enqueue(holdfast.WorkDraft(session_id=f"s{number}", payloads=[1]))
    move()
    before = server_ms(postgres_database)
    lease = store.leases.claim(on, owner_id="holder", ttl_ms=TTL_MS)
    claim = store.queue.claim(f"s{number}", owner_id="holder", ttl_ms=TTL_MS, lease=lease)
    after = server_ms(postgres_database)
    assert claim is not None
    for expires_at_ms in (lease.expires_at_ms, claim.expires_at_ms):
        assert before + TTL_MS <= expires_at_ms <= after + TTL_MS
    move()
    with pytest.raises(holdfast.LeaseHeld):
        store.leases.claim(on, owner_id="thief", ttl_ms=TTL_MS)
    assert store.queue.claim(f"s{number}", owner_id="thief", ttl_ms=TTL_MS) is None
    move()
    lease = store.leases.renew(lease, ttl_ms=TTL_MS)
    claim = store.queue.renew(claim, ttl_ms=TTL_MS)
    move()
    store.sessions.handle(f"s{number}").commit(holdfast.Commit(lease=lease, completes=[claim]))
    assert store.leases.release(lease)
    # Expired by the server's clock, too, whatever a client's clock says.
    ended = store.leases.claim(on, owner_id="holder", ttl_ms=1)
    while server_ms(postgres_database) <= ended.expires_at_ms:
        pass
    move()
    with pytest.raises(holdfast.LeaseLost):
        store.leases.renew(ended, ttl_ms=TTL_MS)
    assert store.leases.claim(on, owner_id="next", ttl_ms=TTL_MS).fence == ended.fence + 1


# ---------------------------------------------------------------------------- a clock that is set back


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def moved(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[BlockingStore, ManualClock]]:
    clock = ManualClock(10_000 * HOUR_MS)
    url = {"memory": "memory:", "sqlite": str(tmp_path / "state.db")}.get(request.param)
    with holdfast.open_blocking(url or request.getfixturevalue("clean_postgres_url"), clock=clock) as store:
        yield store, clock


class Model:
    """The rules of a lease under one clock, and nothing else."""

    def __init__(self) -> None:
        self.owner: str | None = None
        self.fence = 0
        self.ends_ms = 0

    def live(self, now_ms: int) -> bool:
        return self.owner is not None and self.ends_ms > now_ms


def test_a_clock_that_goes_backwards_never_makes_two_holders(moved: tuple[BlockingStore, ManualClock]) -> None:
    store, clock = moved
    chance = random.Random(SEED)
    for number in range(RUNS // 5):
        session = store.sessions.create(f"s{number}")
        on, model, leases = holdfast.leases.OnSession(f"s{number}"), Model(), list[holdfast.leases.Lease]()
        for _ in range(10):
            clock.advance(chance.choice((-TTL_MS, -TTL_MS // 2, -1, 0, 1, TTL_MS - 1, TTL_MS, HOUR_MS, -HOUR_MS // 2)))
            now_ms, owner = clock.now_ms(), chance.choice("ab")
            if model.live(now_ms) and model.owner != owner:
                with pytest.raises(holdfast.LeaseHeld):
                    store.leases.claim(on, owner_id=owner, ttl_ms=TTL_MS)
            else:
                leases.append(store.leases.claim(on, owner_id=owner, ttl_ms=TTL_MS))
                model.owner, model.fence, model.ends_ms = owner, model.fence + 1, now_ms + TTL_MS
            assert leases[-1].fence == model.fence
            for lease in leases[:-1]:
                with pytest.raises(holdfast.LeaseLost):
                    session.commit(holdfast.Commit(lease=lease))
            if model.live(now_ms):
                session.commit(holdfast.Commit(lease=leases[-1]))
    assert store.maintenance.verify().ok


@pytest.mark.parametrize("off_ms", [-25 * HOUR_MS, 25 * HOUR_MS])
def test_a_schedule_follows_the_clock_of_the_database(
    clean_postgres_url: str, postgres_database: object, skewed: Skewed, off_ms: int
) -> None:
    """A client a day behind fires a tick that the server has passed; a client a day ahead fires none before it."""
    with holdfast.open_blocking(clean_postgres_url) as store:
        skewed.off_ms = off_ms
        before = server_ms(postgres_database)
        declared = store.schedules.put("daily", "0 3 * * *")
        after = server_ms(postgres_database)
        assert before <= declared.seen_ms <= after
        assert declared.next_tick_ms is not None
        assert 0 < declared.next_tick_ms - declared.seen_ms <= 24 * HOUR_MS
        assert store.schedules.fire_next() is None
        missed = msgspec.structs.replace(
            declared,
            name="missed",
            seen_ms=declared.next_tick_ms - 24 * HOUR_MS - 1,
            next_tick_ms=declared.next_tick_ms - 24 * HOUR_MS,
        )
        store.schedules.restore(missed)
        firing = store.schedules.fire_next()
        assert firing is not None
        assert (firing.name, firing.tick_ms) == ("missed", declared.next_tick_ms - 24 * HOUR_MS)
        assert before <= firing.occurrence.occurred_at_ms <= server_ms(postgres_database)
