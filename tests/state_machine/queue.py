"""Steps on the queue, leases and time: claim, lose, give back, settle, and read."""

from __future__ import annotations

from tests.state_machine import values
from tests.state_machine.machine import Machine, rule

import holdfast

BOUNDARIES = ("idle", "idle", "active_turn_checkpoint")
TTLS = (0, 1, 1, 500, 500, 5_000, 5_000, 900_000)


@rule(7)
def advance(m: Machine) -> None:
    by = m.pick((1, 100, 499, 500, 1_000, 10_000, -250))
    left = [claim.expires_at_ms - m.clock.now_ms() for claim in m.known.claims]
    if m.chance(0.3):
        # To the exact expiry of a claim, where a millisecond decides.
        by = min((one for one in left if one > 0), default=by)
    m.log.append((m.number, f"clock advances by {by}", (), {}, None))
    m.clock.advance(by)


@rule(12)
def enqueue(m: Machine) -> None:
    batch = m.call("queue.enqueue", values.draft(m, session_id=m.session_id()))
    if batch is not None:
        m.known.batches.append((batch.session_id, batch.batch_id))


@rule(12)
def claim(m: Machine) -> None:
    session_id = m.session_id()
    held = values.lease(m, holdfast.leases.OnSession(session_id)) if m.chance(0.15) else None
    claimed = m.call(
        "queue.claim",
        session_id,
        owner_id=values.owner(m) if held is None or m.chance(0.2) else held.owner_id,
        boundary=m.pick(BOUNDARIES),
        ttl_ms=m.pick(TTLS[1:]) if m.chance(0.95) else 0,
        max_batches=m.pick((1, 1, 2, 2, 50, 50)) if m.chance(0.95) else 0,
        exclusive=m.chance(0.1),
        lease=held,
    )
    if claimed is not None:
        m.known.claims.append(claimed)


@rule(3)
def widen(m: Machine) -> None:
    if not m.known.claims:
        return
    held = m.pick(list(m.known.claims)[-4:])
    session_id = held.session_id if m.chance(0.95) else m.session_id()
    wider = m.call(
        "queue.claim",
        session_id,
        owner_id=held.owner_id,
        boundary=m.pick((None, None, *BOUNDARIES)),
        ttl_ms=m.pick(TTLS[1:]),
        exclusive=m.chance(0.3),
        holding=held,
    )
    if wider is not None:
        m.known.claims.append(wider)


@rule(5)
def claim_exactly(m: Machine) -> None:
    session_id = m.session_id()
    ids = [batch_id for owner, batch_id in m.known.batches if owner == session_id]
    if m.chance(0.7):
        page = m.call("queue.list_pending", session_id, limit=3)
        ids = [] if page is None else [batch.batch_id for batch in page]
    wanted = ids[: m.rng.randint(0, 2)] if m.chance(0.8) else m.some([*ids, "batch:nobody"], most=2)
    claimed = m.call(
        "queue.claim_exactly",
        session_id,
        wanted,
        owner_id=values.owner(m),
        ttl_ms=m.pick(TTLS[1:]),
        boundary=m.pick(BOUNDARIES),
    )
    if claimed is not None:
        m.known.claims.append(claimed)


@rule(9)
def renew_or_give_back(m: Machine) -> None:
    proof = values.proof(m, m.session_id())
    if proof is None:
        return
    if m.chance(0.5) and isinstance(proof, holdfast.WorkClaim):
        renewed = m.call("queue.renew", proof, ttl_ms=m.pick(TTLS[1:]))
        if renewed is not None:
            m.known.claims.append(renewed)
    else:
        m.call("queue.give_back", proof)


KINDS = (None, None, None, ["turn"], ["mail"], ["mail", "turn"], ["other"])


@rule(10)
def claim_next(m: Machine) -> None:
    asked = {
        "owner_id": values.owner(m),
        "kinds": m.pick(KINDS),
        "ttl_ms": m.pick(TTLS[1:]),
        "max_batches": m.pick((1, 1, 2, 50)),
        "exclusive": m.chance(0.3),
    }
    proof = values.proof(m, m.session_id()) if m.chance(0.4) else None
    if proof is None:
        claimed = m.call("queue.claim_next", **asked)
    else:
        answer = m.call("queue.complete_and_claim_next", proof, **asked)
        claimed = None if answer is None else answer[1]
    if claimed is not None:
        m.known.claims.append(claimed)


@rule(9)
def settle(m: Machine) -> None:
    proof = values.proof(m, m.session_id())
    if proof is None:
        return
    if m.chance(0.5):
        m.call("queue.complete", proof)
    else:
        retry_in_ms = m.pick((0, 1, 500, 5_000, None))
        m.call("queue.fail", proof, "broke", retry_in_ms=retry_in_ms, max_attempts=m.pick((None, 1, 2, 3)))


@rule(4)
def dead_letters(m: Machine) -> None:
    if m.chance(0.4):
        m.pages("queue.dead_letters", session_id=m.maybe(0.4, (m.session_id(),)), kind=m.maybe(0.3, ("turn", "mail")))
        return
    page = m.call("queue.dead_letters", limit=3)
    dead = [] if page is None else [(batch.session_id, batch.batch_id) for batch in page]
    chosen = m.pick([*dead, *list(m.known.batches)[-2:], ("s1", "batch:nobody")])
    m.call("queue.retry" if m.chance(0.6) else "queue.drop", *chosen)


@rule(3)
def wait_for_work(m: Machine) -> None:
    if m.chance(0.6):
        m.call("queue.wait_next", timeout_ms=0, kinds=m.pick(KINDS), exclusive=m.chance(0.3))
    else:
        session_id, batch_id = m.maybe(0.95, m.known.batches) or ("s1", "batch:nobody")
        m.call("queue.wait_settled", session_id, batch_id, timeout_ms=0)


@rule(4)
def limit(m: Machine) -> None:
    kind = m.pick(("mail", "mail", "turn"))
    chosen = m.rng.random()
    if chosen < 0.5:
        limits = {"at_once": m.pick((None, 1, 2, 3)), "per_key": m.pick((None, 1, 1, 2))}
        m.call("queue.set_limit", kind if m.chance(0.95) else "", **limits)
    elif chosen < 0.85:
        m.call("queue.remove_limit", kind)
    else:
        m.pages("queue.limits")
        m.pages("queue.depths")


@rule(3)
def pause(m: Machine) -> None:
    chosen = m.rng.random()
    if chosen < 0.15:
        m.call("queue.pause", m.pick(("mail", "turn")))
    elif chosen < 0.45:
        m.call("queue.resume", m.pick(("mail", "turn")))
    elif chosen < 0.6:
        m.on(m.handle(), "pause")
    elif chosen < 0.9:
        m.on(m.handle(), "resume")
    else:
        m.pages("queue.paused_sessions")


@rule(3)
def cancel(m: Machine) -> None:
    session_id, batch_id = m.maybe(0.95, m.known.batches) or ("s1", "batch:nobody")
    m.call("queue.cancel", session_id if m.chance(0.9) else m.session_id(), batch_id)


@rule(5)
def look(m: Machine) -> None:
    session_id = m.session_id()
    kind = m.rng.random()
    if kind < 0.3:
        m.pages("queue.list", session_id)
    elif kind < 0.6:
        m.pages("queue.list_pending", session_id)
    elif kind < 0.65:
        m.call("queue.find", session_id, m.pick(("k1", "k2", "nobody")))
    elif kind < 0.7:
        m.pages("queue.sessions")
    elif kind < 0.85 and m.known.batches:
        m.call("queue.get", *m.pick(m.known.batches))
    else:
        m.call("queue.wait", session_id, timeout_ms=0, boundary=m.pick(BOUNDARIES))


@rule(6)
def take_lease(m: Machine) -> None:
    lease = m.call("leases.claim", values.resource(m), owner_id=values.owner(m), ttl_ms=m.pick(TTLS[1:]))
    if lease is not None:
        m.known.leases.append(lease)


@rule(4)
def use_lease(m: Machine) -> None:
    lease = values.lease(m)
    if lease is None or m.chance(0.3):
        m.call("leases.holder", values.resource(m))
    elif m.chance(0.5):
        renewed = m.call("leases.renew", lease, ttl_ms=m.pick(TTLS))
        if renewed is not None:
            m.known.leases.append(renewed)
    else:
        m.call("leases.release", lease)
