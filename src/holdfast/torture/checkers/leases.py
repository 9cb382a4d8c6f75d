"""A lease is held by one owner at a time, and each acquisition has a higher fence.

Calls of a history, `LONG_MS` being longer than a history takes:

- `claim`, given `(owner, ttl_ms)`: answered with `(fence, claimed_at_ms, expires_at_ms)`; refused with
  `(owner, expires_at_ms)` of the holder.
- `renew`, given `(fence, ttl_ms)`: answered with `expires_at_ms`; refused if the lease is not held any more.
- `release`, given `fence`: answered with True if it was held, False if not.
- `act`, given `fence`, a write under the lease: answered if it was accepted; refused if the lease is not held any more.

Only times of the store's own clock are compared with each other, so that the clients' clocks do not matter: a lease of
`LONG_MS` or more never lapses within a history, and a shorter one may have lapsed at any moment, except that the next
holder's `claimed_at_ms` proves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.torture.checkers.histories import Call
from holdfast.torture.checkers.linear import Linear, linearize

LONG_MS = 60_000


class Held(msgspec.Struct, frozen=True):
    """What one lease stands at: its last fence, and who holds it, if anybody."""

    fence: int = 0
    owner: str | None = None
    expires_at_ms: int | None = 0
    lapses: bool = False


def check_lease(history: Sequence[Call], initial: Held = Held()) -> Linear:  # noqa: B008 - a frozen value
    """Search an order of the calls on one lease that one lease explains."""
    return linearize(history, initial, _step)


def _step(held: Held, call: Call) -> Iterator[Held]:
    if call.kind == "claim":
        yield from _claim(held, call)
        return
    fence = call.given if call.kind in {"release", "act"} else call.given[0]
    mine = held.owner is not None and held.fence == fence
    if call.outcome == "refused" or (call.kind == "release" and call.outcome == "ok" and not call.answer):
        if not mine or held.lapses:
            yield held
    elif mine:
        yield from _done(held, call)


def _claim(held: Held, call: Call) -> Iterator[Held]:
    owner, ttl_ms = call.given
    lapses = ttl_ms < LONG_MS
    if call.outcome == "refused":
        holder, expires_at_ms = call.answer
        if held.owner not in {None, owner} and holder == held.owner and held.expires_at_ms in {None, expires_at_ms}:
            yield held
        return
    if call.outcome == "unknown":
        if held.owner in {None, owner} or held.lapses:
            # Nobody was told when it ends.
            yield Held(held.fence + 1, owner, None, True)
        return
    fence, claimed_at_ms, expires_at_ms = call.answer
    free = held.owner in {None, owner} or held.expires_at_ms is None or held.expires_at_ms <= claimed_at_ms
    if free and fence > held.fence:
        yield Held(fence, owner, expires_at_ms, lapses)


def _done(held: Held, call: Call) -> Iterator[Held]:
    if call.kind == "act":
        yield held
    elif call.kind == "release":
        yield Held(held.fence)
    else:
        ttl_ms = call.given[1]
        expires_at_ms = None if call.outcome == "unknown" else call.answer
        yield Held(held.fence, held.owner, expires_at_ms, ttl_ms < LONG_MS or call.outcome == "unknown")
