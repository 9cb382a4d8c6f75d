"""At most one holder at any time, a higher fence each time, and proof only by token, fence and time together."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Corrupt, InvalidRequest, LeaseHeld, LeaseLost
from holdfast.records.common import Token
from holdfast.records.leases import Lease, LeaseHolder, OnProcess, OnSession, Resource
from holdfast.records.limits import Limits
from holdfast.rows import LeaseRow
from holdfast.rules import leases

STEADY = settings(derandomize=True, deadline=None)
LIMITS = Limits()
BUILD = OnProcess("build")


def row(**changes: object) -> LeaseRow:
    """Return the lease of `w1` on the process: fence 4, from 100 to 200."""
    token_hash = hashlib.sha256(b"secret").hexdigest()
    return msgspec.structs.replace(LeaseRow("process", "build", "w1", token_hash, 4, 100, 200), **changes)


def lease(**changes: object) -> Lease:
    return msgspec.structs.replace(Lease(BUILD, "w1", Token("secret"), 4, 100, 200), **changes)


def take(
    current: LeaseRow | None, owner: str, now_ms: int, *, ttl_ms: int = 100, floor: int = 0, token: str = "new"
) -> tuple[LeaseRow, Lease]:
    taken = leases.claim(
        current,
        BUILD,
        stored_as=("process", "build"),
        owner_id=owner,
        token=Token(token),
        ttl_ms=ttl_ms,
        fence_floor=floor,
        now_ms=now_ms,
    )
    return taken, leases.lease_of(taken, BUILD, Token(token))


def test_only_the_hash_of_a_token_is_stored() -> None:
    assert leases.hash_token("secret") == hashlib.sha256(b"secret").hexdigest()
    stored, handed_out = take(None, "w1", 100, token="secret")
    assert stored == row(fence=1)
    assert handed_out == lease(fence=1)
    assert "secret" not in repr(stored)


def test_a_floor_that_nothing_can_be_counted_on_from_is_damage() -> None:
    assert take(None, "w1", 100, floor=2**62 - 1)[0].fence == 2**62
    with pytest.raises(Corrupt, match="fence_floor"):
        take(None, "w1", 100, floor=2**62)


def test_a_token_matches_its_own_hash_only() -> None:
    assert leases.token_matches("secret", hashlib.sha256(b"secret").hexdigest())
    assert not leases.token_matches("Secret", hashlib.sha256(b"secret").hexdigest())
    assert not leases.token_matches("secret", "secret")
    assert not leases.token_matches("secret", None)


@pytest.mark.parametrize(
    ("now_ms", "ttl_ms", "ends_at"), [(0, 0, 0), (5, 7, 12), (2**63 - 1, 1, 2**63 - 1), (2**63 - 10, 9, 2**63 - 1)]
)
def test_an_end_never_leaves_the_range_of_times(now_ms: int, ttl_ms: int, ends_at: int) -> None:
    assert leases.expiry(now_ms, ttl_ms) == ends_at


@pytest.mark.parametrize(
    ("stored", "now_ms", "live"),
    [
        (None, 150, False),
        (row(), 150, True),
        (row(), 199, True),
        (row(), 200, False),
        (row(owner_id=None, token_hash=None), 150, False),
    ],
    ids=["none", "live", "last moment", "over", "released"],
)
def test_a_lease_is_live_until_its_end_and_not_at_it(stored: LeaseRow | None, now_ms: int, live: bool) -> None:
    assert (stored is not None and stored.is_live(now_ms)) is live
    expected = LeaseHolder(BUILD, "w1", 4, 100, 200) if live else None
    assert leases.holder(stored, BUILD, now_ms) == expected


@pytest.mark.parametrize(
    ("resource", "words"),
    [(BUILD, "process 'build'"), (OnSession("chat"), "session 'chat'")],
    ids=["process", "session"],
)
def test_a_held_lease_keeps_another_owner_out_and_names_its_holder(resource: Resource, words: str) -> None:
    with pytest.raises(LeaseHeld) as info:
        leases.claim(
            row(), resource, stored_as=("k", "r"), owner_id="w2", token=Token("t"), ttl_ms=1, fence_floor=0, now_ms=199
        )
    assert (info.value.resource, info.value.owner, info.value.expires_at_ms) == (words, "w1", 200)


@pytest.mark.parametrize(
    ("stored", "owner", "now_ms", "floor", "fence"),
    [
        (None, "w2", 150, 0, 1),
        (None, "w2", 150, 9, 10),
        (row(), "w1", 150, 0, 5),
        (row(), "w2", 200, 0, 5),
        (row(owner_id=None, token_hash=None), "w2", 150, 0, 5),
    ],
    ids=["first", "first after others", "own", "expired", "released"],
)
def test_a_free_lease_or_one_s_own_is_taken_with_a_higher_fence(
    stored: LeaseRow | None, owner: str, now_ms: int, floor: int, fence: int
) -> None:
    taken, handed_out = take(stored, owner, now_ms, floor=floor)
    assert taken == LeaseRow("process", "build", owner, hashlib.sha256(b"new").hexdigest(), fence, now_ms, now_ms + 100)
    assert handed_out == Lease(BUILD, owner, Token("new"), fence, now_ms, now_ms + 100)


@pytest.mark.parametrize(
    ("stored", "shown", "now_ms", "holds"),
    [
        (row(), lease(), 150, True),
        (row(), lease(owner_id="anybody"), 150, True),
        (None, lease(), 150, False),
        (row(), lease(), 200, False),
        (row(), lease(fence=3), 150, False),
        (row(), lease(fence=5), 150, False),
        (row(), lease(token=Token("other")), 150, False),
        (row(owner_id=None, token_hash=None), lease(), 150, False),
        (row(expires_at_ms=300), lease(), 250, True),
        (row(), lease(expires_at_ms=10_000), 250, False),
    ],
    ids=[
        "live",
        "the token is the proof",
        "none",
        "expired",
        "old fence",
        "new fence",
        "token",
        "released",
        "renewed",
        "forged end",
    ],
)
def test_a_lease_holds_by_token_fence_and_stored_end(
    stored: LeaseRow | None, shown: Lease, now_ms: int, holds: bool
) -> None:
    assert leases.holds(stored, shown, now_ms) is holds
    if holds:
        assert leases.require(stored, shown, now_ms) is stored
    else:
        with pytest.raises(LeaseLost) as info:
            leases.require(stored, shown, now_ms)
        assert info.value.resource == "process 'build'"


def test_a_released_lease_keeps_its_fence_and_nothing_that_proves() -> None:
    assert leases.released(row()) == LeaseRow("process", "build", None, None, 4, 100, 200)


# Checks.


def test_a_lease_is_checked_field_by_field() -> None:
    assert leases.check_lease("lease", lease(), LIMITS) == lease()
    on_session = lease(resource=OnSession("chat"))
    assert leases.check_session_lease("lease", on_session, "chat", LIMITS) == on_session
    assert leases.check_process_lease("lease", lease(), "build", LIMITS) == lease()


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("lease", "lease"),
        (lease(resource="build"), "lease.resource"),
        (lease(resource=OnProcess("")), "lease.resource.process_id"),
        (lease(resource=OnSession("")), "lease.resource.session_id"),
        (lease(owner_id=""), "lease.owner_id"),
        (lease(token=""), "lease.token"),
        (lease(fence=-1), "lease.fence"),
        (lease(claimed_at_ms=-1), "lease.claimed_at_ms"),
        (lease(expires_at_ms=2**63), "lease.expires_at_ms"),
    ],
    ids=["type", "resource", "process", "session", "owner", "token", "fence", "start", "end"],
)
def test_anything_but_a_lease_is_refused(value: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        leases.check_lease("lease", value, LIMITS)
    assert info.value.field == field


@pytest.mark.parametrize("resource", [BUILD, OnSession("other"), OnProcess("chat")], ids=["process", "other", "name"])
def test_a_lease_on_something_else_does_not_open_a_session(resource: Resource) -> None:
    with pytest.raises(InvalidRequest) as info:
        leases.check_session_lease("lease", lease(resource=resource), "chat", LIMITS)
    assert info.value.field == "lease.resource"


@pytest.mark.parametrize(
    "resource", [OnSession("build"), OnProcess("other"), OnSession("chat")], ids=["name", "other", "session"]
)
def test_a_lease_on_something_else_does_not_complete_a_process(resource: Resource) -> None:
    with pytest.raises(InvalidRequest, match="must be the process 'build'") as info:
        leases.check_process_lease("lease", lease(resource=resource), "build", LIMITS)
    assert info.value.field == "lease.resource"


# The life of a lease.


STEPS = st.lists(
    st.tuples(st.sampled_from(["claim", "release", "renew", "wait"]), st.integers(0, 2), st.integers(0, 150)),
    max_size=40,
)


@STEADY
@given(STEPS)
def test_a_lease_is_never_held_by_two_and_its_fence_only_rises(steps: list[tuple[str, int, int]]) -> None:
    now_ms, stored, issued, highest = 1_000, None, [], 0
    for number, (step, worker, wait_ms) in enumerate(steps):
        owner = f"w{worker}"
        mine = [one for one in issued if one.owner_id == owner]
        if step == "wait":
            now_ms += wait_ms
        elif step == "claim":
            others = [one for one in issued if leases.holds(stored, one, now_ms) and one.owner_id != owner]
            if others:
                with pytest.raises(LeaseHeld):
                    take(stored, owner, now_ms)
            else:
                stored, fresh = take(stored, owner, now_ms, ttl_ms=wait_ms, token=f"t{number}")
                assert fresh.fence > highest
                highest = fresh.fence
                issued.append(fresh)
        elif mine and leases.holds(stored, mine[-1], now_ms):
            assert stored is not None
            stored = (
                leases.released(stored)
                if step == "release"
                else msgspec.structs.replace(stored, expires_at_ms=now_ms + 50)
            )
        live = [one for one in issued if leases.holds(stored, one, now_ms)]
        assert len(live) <= 1
        assert (leases.holder(stored, BUILD, now_ms) is not None) is bool(live)
        assert stored is None or stored.fence == highest
