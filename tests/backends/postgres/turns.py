"""Draws turns part by part: most parts are plain, a few are odd, and only an odd one may be refused.

One statement must accept a plain turn; it may decline an odd one.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
from tests.backends.postgres.twins import LAST_MS, OTHER_TOKEN, Twins

import holdfast
from holdfast.leases import Lease, OnSession, Token
from holdfast.sessions import CheckpointManifest, CommitReceipt, Graph, Ref, ReplaceGraph, Unchanged
from holdfast.store import Store

TTL_MS = 10_000
STARTS = ("empty", "one turn", "one turn", "two turns", "fork", "no leaf", "beside")
PARTS = ("revision", "turn", "graph", "contents", "usage", "claim", "attachments", "enqueues", "lease", "memory")
UNKNOWN_REF = "json-sha256:" + "0" * 64


def first_turn(**others: Any) -> holdfast.Commit:
    return holdfast.Commit(
        turn_id="t1",
        fingerprint="f1",
        graph=holdfast.Append([holdfast.Node("n1", payload=1), holdfast.Node("n2", parent="n1")], leaf="n2"),
        checkpoint=holdfast.Checkpoint(turn_state={"t": 1}, execution_state=b"one"),
        config={"v": 1},
        usage=[holdfast.Usage("turn", "m1", input_tokens=5)],
        **others,
    )


class DrawnTurn:
    """A session with a past, and a turn that is about to be committed to it."""

    def __init__(self, twins: Twins, rng: random.Random, number: int) -> None:
        self.twins, self.rng = twins, rng
        self.session_id, self.other_id = f"s{number}", f"o{number}"
        self.start = twins.deal(rng, STARTS)
        self.odd = {twins.deal(rng, PARTS) for _ in range(twins.deal(rng, (0, 0, 0, 1, 1, 1, 2)))}
        self.history = [self.start]
        self.leaf: str | None = None
        self.revision = 0
        self.manifest = CheckpointManifest()
        twins.align()
        self._begin()
        self.given: dict[str, Any] = {}
        for part in PARTS:
            chosen = getattr(self, f"_{'odd' if part in self.odd else 'plain'}_{part}")()
            self.history.append(f"{part}: {chosen}")

    def __repr__(self) -> str:
        return f"{self.session_id}: {'; '.join(self.history)}"

    def commit(self) -> holdfast.Commit:
        return holdfast.Commit(**self.given)

    def pick(self, *names: str) -> str:
        return self.twins.deal(self.rng, names)

    def _turn(self, commit: holdfast.Commit, session_id: str | None = None) -> CommitReceipt:
        name = session_id or self.session_id
        return self.twins.do(lambda store: store.sessions.handle(name).commit(commit))

    def _begin(self) -> None:
        do, name = self.twins.do, self.session_id
        if self.start == "empty":
            self.twins.loop.drive(_create(self.twins.stores, name))
            return
        first = self._turn(first_turn(), f"base-{name}" if self.start == "fork" else None)
        self.revision, self.leaf, self.manifest = 1, "n2", first.manifest
        if self.start == "fork":
            self.twins.loop.drive(_fork(self.twins.stores, f"base-{name}", name))
        elif self.start == "two turns":
            nodes = holdfast.Append([holdfast.Node("n3", parent="n2")], leaf="n3")
            second = self._turn(holdfast.Commit(graph=nodes, checkpoint=holdfast.Checkpoint(turn_state={"t": 2})))
            self.revision, self.leaf, self.manifest = 2, "n3", second.manifest
        elif self.start == "no leaf":
            self._turn(holdfast.Commit(graph=Unchanged(leaf=None)))
            self.revision, self.leaf = 2, None
        elif self.start == "beside":
            do(lambda store: store.sessions.handle(name).add_nodes([holdfast.Node("x1", parent="n1")]))

    # Each part, plain or odd. Each function returns its choice.

    def _plain_revision(self) -> str:
        chosen = self.pick("any", "current")
        self.given["expected_revision"] = None if chosen == "any" else self.revision
        return chosen

    def _odd_revision(self) -> str:
        self.given["expected_revision"] = self.revision + self.rng.choice((-1, 1)) if self.revision else 1
        return "another"

    def _plain_turn(self) -> str:
        chosen = self.pick("none", "new")
        self.given["turn_id"] = None if chosen == "none" else "t9"
        return chosen

    def _odd_turn(self) -> str:
        chosen = self.pick("replay", "conflict")
        self.given |= {"turn_id": "t1", "fingerprint": "f1" if chosen == "replay" else "f2"}
        return chosen

    def _plain_graph(self) -> str:
        chosen = self.pick("unchanged", "new leaf", "new leaf", "nodes beside", "nothing named", "no leaf", "roots")
        parent = None if chosen == "roots" else self.leaf
        nodes = [holdfast.Node("a", parent=parent, payload={"n": 1}), holdfast.Node("b", parent="a", created_at_ms=7)]
        match chosen:
            case "unchanged":
                delta: Any = Unchanged()
            case "no leaf":
                delta = Unchanged(leaf=None)
            case "nodes beside":
                delta = holdfast.Append(nodes, leaf=self.leaf)
            case "nothing named":
                delta = holdfast.Append([holdfast.Node("a", payload={"n": 1}), holdfast.Node("b", created_at_ms=7)])
            case _:
                delta = holdfast.Append(nodes, leaf="b")
        self.given["graph"] = delta
        return chosen

    def _odd_graph(self) -> str:
        node, append = holdfast.Node, holdfast.Append
        chosen = self.pick(*ODD_GRAPHS, "the leaf was hidden", "the leaf was vacuumed")
        if chosen.startswith("the leaf was"):
            # A fork's leaf belongs to its source.
            place = f"base-{self.session_id}" if self.start == "fork" else self.session_id
            self.twins.do(lambda store: store.sessions.handle(place).tombstone(["n2", "n3"]))
            if chosen.endswith("vacuumed"):
                self.twins.do(lambda store: store.maintenance.vacuum(place))
            nodes = self.rng.choice(([node("a", parent=self.leaf)], [node("a")], [node("n2"), node("n3"), node("a")]))
            self.given["graph"] = append(nodes, leaf="a")
        else:
            self.given["graph"] = ODD_GRAPHS[chosen]
        return chosen

    def _plain_contents(self) -> str:
        chosen = self.pick("none", "new", "kept", "kept in part", "same config")
        match chosen:
            case "new":
                self.given |= {"checkpoint": holdfast.Checkpoint(turn_state={"t": 3}), "config": {"v": 2}}
            case "kept":
                self.given["checkpoint"] = holdfast.Checkpoint.keeping(self.manifest)
            case "kept in part":
                self.given["checkpoint"] = holdfast.Checkpoint.keeping(self.manifest, turn_state={"t": 4})
            case "same config":
                self.given["config"] = {"v": 1}
            case _:
                pass
        return chosen

    def _odd_contents(self) -> str:
        chosen = self.pick("unknown", "of an earlier turn", "collected")
        if chosen == "unknown":
            self.given["checkpoint"] = holdfast.Checkpoint(turn_state=Ref(UNKNOWN_REF))
            return chosen
        # After two turns the first one's state is stored, but the head does not need it.
        if chosen == "collected":
            self.twins.do(lambda store: store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1)))
            self.twins.do(lambda store: store.maintenance.collect_garbage())
        earlier = self.twins.do(lambda store: store.sessions.handle(f"past-{self.session_id}").commit(first_turn()))
        self.given["checkpoint"] = holdfast.Checkpoint.keeping(earlier.manifest)
        return chosen

    def _plain_usage(self) -> str:
        chosen = self.pick("none", "more", "new", "twice")
        tokens = {
            "none": [],
            "more": [holdfast.Usage("turn", "m1", input_tokens=3, reasoning_tokens=1)],
            "new": [holdfast.Usage("turn", "m2", output_tokens=LAST_MS)],
            "twice": [holdfast.Usage("turn", "m1", input_tokens=1), holdfast.Usage("turn", "m1", input_tokens=2)],
        }
        self.given["usage"] = tokens[chosen]
        return chosen

    def _odd_usage(self) -> str:
        chosen = self.pick("too much", "just enough")
        most = LAST_MS - (4 if chosen == "too much" else 5)
        self.given["usage"] = [holdfast.Usage("turn", "m1", input_tokens=most)]
        return chosen

    def _claimed(self) -> holdfast.WorkClaim:
        for key in self.rng.choice(((None, None), ("k1", None), ("k1", "k2"))):
            wanted = holdfast.WorkDraft(
                session_id=self.session_id, payloads=[1], source_key=key, merge_key="payload_default"
            )
            self.twins.do(lambda store, wanted=wanted: store.queue.enqueue(wanted))
        claim = self.twins.do(lambda store: store.queue.claim(self.session_id, owner_id="w1", ttl_ms=TTL_MS))
        assert claim is not None
        return claim

    def _plain_claim(self) -> str:
        chosen = self.pick("none", "none", "whole", "renewed")
        if chosen != "none":
            claim = self._claimed()
            if chosen == "renewed":
                claim = self.twins.do(lambda store: store.queue.renew(claim, ttl_ms=2 * TTL_MS))
            self.given["completes"] = [claim]
        return chosen

    def _odd_claim(self) -> str:
        chosen = self.pick("token", "fence", "fewer", "expired", "taken over", "given back", "completed", "unknown")
        claim = self._claimed()
        proof = claim.completion()
        match chosen:
            case "token":
                proof = msgspec.structs.replace(proof, token=Token(OTHER_TOKEN))
            case "fence":
                proof = msgspec.structs.replace(proof, fence=proof.fence + 1)
            case "fewer":
                proof = msgspec.structs.replace(proof, batch_ids=proof.batch_ids[:1])
            case "unknown":
                proof = msgspec.structs.replace(proof, claim_id="claim:0:1")
            case "given back":
                self.twins.do(lambda store: store.queue.give_back(claim))
            case "completed":
                self._turn(holdfast.Commit(completes=[claim]))
                self.revision += 1
            case _:
                self.twins.clock.advance(TTL_MS)
                if chosen == "taken over":
                    self.twins.do(lambda store: store.queue.claim(self.session_id, owner_id="w2"))
        self.given["completes"] = [proof]
        return chosen

    def _plain_attachments(self) -> str:
        chosen = self.pick("none", "none", "one", "one again")
        if chosen != "none":
            put = self.twins.do(lambda store: store.sessions.handle(self.session_id).attachments.put(b"picture"))
            if chosen == "one again":
                self._turn(holdfast.Commit(attachments=[put.id]))
                self.revision += 1
                if self.given["expected_revision"] is not None and "revision" not in self.odd:
                    self.given["expected_revision"] = self.revision
            self.given["attachments"] = [put.id]
        return chosen

    def _odd_attachments(self) -> str:
        chosen = self.pick("unknown", "of another session")
        if chosen == "unknown":
            self.given["attachments"] = ["attachment:nobody"]
        else:
            put = self.twins.do(lambda store: store.sessions.handle(self.other_id).attachments.put(b"picture"))
            self.given["attachments"] = [put.id]
        return chosen

    def _plain_enqueues(self) -> str:
        chosen = self.pick("none", "none", "own", "with a key", "for another", "one key twice")
        draft = holdfast.WorkDraft
        match chosen:
            case "own":
                drafts = [draft(payloads=[1]), draft(payloads=[2], slot="exclusive", available_at_ms=LAST_MS)]
            case "with a key":
                drafts = [draft(payloads=[1], source_key="e1"), draft(payloads=[1])]
            case "for another":
                self.twins.loop.drive(_create(self.twins.stores, self.other_id))
                drafts = [draft(payloads=[1]), draft(payloads=[2], session_id=self.other_id, source_key="e1")]
            case "one key twice":
                drafts = [draft(payloads=[1], source_key="e1"), draft(payloads=[1], source_key="e1")]
            case _:
                drafts = []
        self.given["enqueues"] = drafts
        return chosen

    def _odd_enqueues(self) -> str:
        chosen = self.pick("used alike", "used otherwise", "for a new one", "for a deleted one", "for one made anew")
        draft, other = holdfast.WorkDraft, self.other_id
        if chosen.startswith("used"):
            said = 1 if chosen == "used alike" else 2
            self.twins.do(
                lambda store: store.queue.enqueue(
                    draft(session_id=self.session_id, payloads=[said], source_key="e1", available_at_ms=LAST_MS)
                )
            )
            self.given["enqueues"] = [draft(payloads=[1], source_key="e1")]
            return chosen
        if chosen != "for a new one":
            self.twins.loop.drive(_create(self.twins.stores, other))
            # Cached as alive by both stores, and deleted since.
            self._turn(holdfast.Commit(), other)
            self.twins.do(lambda store: store.sessions.delete(other))
        if chosen == "for one made anew":
            self.twins.loop.drive(_create(self.twins.stores, other))
        self.given["enqueues"] = [draft(payloads=[1], session_id=other, source_key="e1")]
        return chosen

    def _lease(self) -> Lease:
        on = OnSession(self.session_id)
        return self.twins.do(lambda store: store.leases.claim(on, owner_id="w1", ttl_ms=TTL_MS))

    def _plain_lease(self) -> str:
        chosen = self.pick("none", "none", "held", "renewed")
        if chosen != "none":
            lease = self._lease()
            if chosen == "renewed":
                lease = self.twins.do(lambda store: store.leases.renew(lease, ttl_ms=2 * TTL_MS))
            self.given["lease"] = lease
        return chosen

    def _odd_lease(self) -> str:
        chosen = self.pick("token", "fence", "released", "expired", "taken over")
        lease = self._lease()
        match chosen:
            case "token":
                lease = msgspec.structs.replace(lease, token=Token(OTHER_TOKEN))
            case "fence":
                lease = msgspec.structs.replace(lease, fence=lease.fence + 1)
            case "released":
                self.twins.do(lambda store: store.leases.release(lease))
            case _:
                self.twins.clock.advance(TTL_MS)
                if chosen == "taken over":
                    on = OnSession(self.session_id)
                    self.twins.do(lambda store: store.leases.claim(on, owner_id="w2"))
        self.given["lease"] = lease
        return chosen

    def _plain_memory(self) -> str:
        return "kept"

    def _odd_memory(self) -> str:
        self.twins.fast.forget()
        return "lost"


ODD_GRAPHS: dict[str, Any] = {
    "an older parent": holdfast.Append([holdfast.Node("a", parent="n1")], leaf="a"),
    "an unknown parent": holdfast.Append([holdfast.Node("a", parent="ghost")], leaf="a"),
    "a node again": holdfast.Append([holdfast.Node("n1", payload=1), holdfast.Node("a", parent="n1")]),
    "a child before its parent": holdfast.Append([holdfast.Node("b", parent="a"), holdfast.Node("a", parent="n1")]),
    "a node otherwise": holdfast.Append([holdfast.Node("n1", payload=2)]),
    "a node beside again": holdfast.Append([holdfast.Node("x1", parent="n1")]),
    "an older leaf": Unchanged(leaf="n1"),
    "the same leaf": Unchanged(leaf="n2"),
    "an unknown leaf": Unchanged(leaf="ghost"),
    "another graph": ReplaceGraph(Graph([holdfast.Node("n1", payload=9)], leaf="n1")),
    "a longer graph": ReplaceGraph(
        Graph([holdfast.Node("n1", payload=1), holdfast.Node("n2", parent="n1"), holdfast.Node("a")], leaf="a")
    ),
}


async def _create(stores: list[Store], session_id: str) -> None:
    for store in stores:
        await store.sessions.create(session_id)


async def _fork(stores: list[Store], source: str, into: str) -> None:
    for store in stores:
        await store.sessions.fork(source, into=into)
