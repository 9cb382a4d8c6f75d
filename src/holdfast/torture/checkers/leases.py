"""Checks that a lease has one holder at a time, that fences rise, and that a lapsed lease is over.

Writes under the lease form a register, as in `register`; the same search judges both.

Calls of a history, `LONG_MS` being longer than a history takes:

- `claim`, given `(owner, ttl_ms)`: answered with `(fence, claimed_at_ms, expires_at_ms)`; refused with `(owner,
  expires_at_ms)` of the holder.
- `renew`, given `(fence, ttl_ms)`: answered with `expires_at_ms`; refused if the lease is no longer held.
- `release`, given `fence`: answered with True if it was held, False if not.
- `act`, given `(fence, value)`, a write under the lease: answered with the revision, each one more than the last;
  refused if the lease is no longer held.
- `read`: answered with `(revision, value)` of the last write; `(0, None)` before the first. A read of unknown outcome
  says nothing.

Only times of the store's own clock are compared with each other, so that the clients' clocks do not matter: a lease of
`LONG_MS` or more never lapses within a history, and a shorter one may have lapsed at any moment. The next holder's
`claimed_at_ms`, or a refusal, proves that it has. After that no write is accepted under it, and it blocks no claim. A
claim ends `ttl_ms` after `claimed_at_ms`; a renewal `ttl_ms` after a moment at which the lease was held. If the time of
a revision is known, the lease must have been held then.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import msgspec

from holdfast.torture.checkers.histories import Call
from holdfast.torture.checkers.linear import Linear, linearize
from holdfast.torture.checkers.register import as_seen

LONG_MS = 60_000


class Held(msgspec.Struct, frozen=True):
    """State of one lease: its last fence, its holder, if any, and the last write under it."""

    fence: int = 0
    owner: str | None = None
    claimed_at_ms: int | None = None
    """None if no client got the answer."""
    expires_at_ms: int | None = None
    """None if no client got the answer."""
    lapses: bool = False
    """True if the lease may expire within the history."""
    lapsed: bool = False
    """True if a client saw that it has expired."""
    head: tuple[int, Hashable] = (0, None)


def check_lease(
    history: Sequence[Call],
    initial: Held = Held(),  # noqa: B008 - a frozen value
    written_at_ms: Mapping[int, int] = MappingProxyType({}),
) -> Linear:
    """Search for an order of the calls on one lease, and on its register, that explains every answer.

    `written_at_ms` holds the time at which each revision was written, by the store's clock, as far as that is known.
    """
    return linearize(as_seen(history, "act"), initial, partial(_step, written_at_ms), _late)


def _step(written_at_ms: Mapping[int, int], held: Held, call: Call) -> Iterator[Held]:
    if call.kind == "read":
        if call.answer == held.head:
            yield held
        return
    if call.kind == "claim":
        yield from _claim(held, call)
        return
    mine = held.owner is not None and held.fence == _fence_of(call) and not held.lapsed
    if call.outcome == "refused" or (call.kind == "release" and call.outcome == "ok" and not call.answer):
        if not mine:
            yield held
        elif held.lapses:
            yield msgspec.structs.replace(held, lapsed=True)
    elif mine:
        yield from _done(written_at_ms, held, call)


def _late(held: Held, call: Call) -> bool:
    return call.kind != "claim" and _fence_of(call) < held.fence


def _fence_of(call: Call) -> int:
    fence: int = call.given if call.kind == "release" else call.given[0]
    return fence


def _claim(held: Held, call: Call) -> Iterator[Held]:
    owner, ttl_ms = call.given
    lapses = ttl_ms < LONG_MS
    theirs = held.owner not in {None, owner}
    if call.outcome == "refused":
        holder, expires_at_ms = call.answer
        if theirs and not held.lapsed and holder == held.owner and held.expires_at_ms in {None, expires_at_ms}:
            yield msgspec.structs.replace(held, expires_at_ms=expires_at_ms)
        return
    if call.outcome == "unknown":
        if not theirs or held.lapses:
            yield Held(held.fence + 1, owner, lapses=lapses, head=held.head)
        return
    fence, claimed_at_ms, expires_at_ms = call.answer
    over = held.lapses and (held.expires_at_ms is None or held.expires_at_ms <= claimed_at_ms)
    if (not theirs or over) and fence > held.fence and expires_at_ms == claimed_at_ms + ttl_ms:
        yield Held(fence, owner, claimed_at_ms, expires_at_ms, lapses, head=held.head)


def _done(written_at_ms: Mapping[int, int], held: Held, call: Call) -> Iterator[Held]:
    if call.kind == "act":
        revision = held.head[0] + 1
        at_ms = written_at_ms.get(revision)
        if (call.outcome == "unknown" or call.answer == revision) and (at_ms is None or _live_at(held, at_ms)):
            yield msgspec.structs.replace(held, head=(revision, call.given[1]))
    elif call.kind == "release":
        yield Held(held.fence, head=held.head)
    else:
        ttl_ms = call.given[1]
        lapses = ttl_ms < LONG_MS
        if call.outcome == "unknown":
            yield msgspec.structs.replace(held, expires_at_ms=None, lapses=lapses)
        elif _live_at(held, call.answer - ttl_ms):
            yield msgspec.structs.replace(held, expires_at_ms=call.answer, lapses=lapses)


def _live_at(held: Held, now_ms: int) -> bool:
    """Return whether the store's clock may have shown this time while the lease was held."""
    begun = held.claimed_at_ms is None or held.claimed_at_ms <= now_ms
    return begun and (held.expires_at_ms is None or now_ms < held.expires_at_ms)
