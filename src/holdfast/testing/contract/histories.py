"""Histories: an accepted turn reads back with its history, whatever was erased or replaced before."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from msgspec import UNSET
from msgspec.structs import replace

import holdfast
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import NodeConflict
from holdfast.sessions import CommitReceipt, FullGraph, Graph, GraphDelta, ReplaceGraph, Unchanged
from holdfast.testing.contract.bench import Bench, Contract

PROGRAMS = int(os.environ.get("HOLDFAST_HISTORIES", "2"))
SEED = os.environ.get("HOLDFAST_SEED") or f"{random.SystemRandom().getrandbits(48):x}"
STEPS = 80
REFUSALS = (holdfast.InvalidRequest, NodeConflict, holdfast.TurnConflict)


def is_left_out(parent: object) -> bool:
    """Return whether a node leaves its parent to the store."""
    return parent is UNSET


class Seen:
    """A session as it reads: every visible node, its leaf and its path."""

    def __init__(self, session: Session) -> None:
        view = session.load(FullGraph())
        path = session.load()
        self.nodes = {} if view is None else {node.id: node for node in view.graph.nodes}
        self.leaf = None if path is None else path.graph.leaf
        self.path = [] if path is None else [node.id for node in path.graph.nodes]

    def path_to(self, node_id: str | None) -> list[str]:
        """Return the path by the parents, cut where a node is not visible."""
        path: list[str] = []
        while node_id is not None and node_id in self.nodes:
            path.append(node_id)
            node_id = self.nodes[node_id].parent
        return path[::-1]


class Program:
    """Random turns, erasures, forks and housekeeping on one database, each step through another handle."""

    def __init__(self, bench: Bench, seed: str) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - a replayable program
        self.bench = bench
        self.stores: list[BlockingStore] = [bench.open(), bench.open()]
        self.sent: dict[str, holdfast.Node] = {}
        """Every node that was ever accepted, as it was first read."""
        self.turns: dict[tuple[str, str], tuple[holdfast.Commit, CommitReceipt]] = {}
        self.sessions = ["s0"]
        self.accepted = self.refused = self.revived = 0
        self.made = 0

    def store(self) -> BlockingStore:
        """Return one of the handles."""
        return self.rng.choice(self.stores)

    def name(self, prefix: str) -> str:
        """Return a new name."""
        self.made += 1
        return f"{prefix}{self.made}"

    def known_id(self) -> str:
        """Return the id of a node that was sent to any session, or sometimes an unknown one."""
        return self.rng.choice(list(self.sent)) if self.sent and self.rng.random() < 0.95 else "nobody"

    def node(self) -> holdfast.Node:
        """Return a new node, or one that was sent before, alike or not."""
        draw = self.rng.random()
        if draw < 0.45 and self.sent:
            again = self.sent[self.rng.choice(list(self.sent)[-12:])]
            if self.rng.random() < 0.1:
                return holdfast.Node(again.id, payload="other")
            return replace(again, parent=UNSET) if self.rng.random() < 0.7 else again
        new = holdfast.Node("" if self.rng.random() < 0.4 else self.name("n"), payload=self.name("text "))
        if self.rng.random() < 0.8:
            return new
        return replace(new, parent=None if self.rng.random() < 0.2 else self.known_id())

    def delta(self) -> GraphDelta:
        """Return a delta, mostly with new nodes."""
        draw = self.rng.random()
        if draw < 0.1:
            return Unchanged(self.known_id())
        by_id = {node.id or self.name("?"): node for node in (self.node() for _ in range(self.rng.randint(1, 3)))}
        nodes = list(by_id.values())
        if draw < 0.2:
            return ReplaceGraph(Graph(nodes))
        if draw < 0.3:
            return holdfast.Append(nodes, leaf=None if self.rng.random() < 0.2 else self.known_id())
        return holdfast.Append(nodes)

    def commit(self) -> None:
        """Commit a turn, and check it if it was accepted."""
        session_id = self.rng.choice(self.sessions)
        writer, reader = (self.store().sessions.handle(session_id) for _ in range(2))
        before, rows = Seen(reader), self.bench.dump()
        turn = holdfast.Commit(turn_id=self.name("t"), graph=self.delta())
        try:
            receipt = writer.commit(turn)
        except REFUSALS:
            self.refused += 1
            assert self.bench.dump() == rows, "a refused turn left a trace"
            return
        self.accepted += 1
        after = Seen(reader)
        self.turns[session_id, turn.turn_id or ""] = (turn, receipt)
        assert receipt.leaf == after.leaf
        assert after.path == after.path_to(after.leaf)
        assert after.leaf is None or after.path[-1:] == [after.leaf], "the path does not reach its leaf"
        if isinstance(turn.graph, holdfast.Append):
            self.check_append(before, after, turn.graph)
        elif isinstance(turn.graph, ReplaceGraph):
            sent = {node.payload for node in turn.graph.graph.nodes}
            assert {node.payload for node in after.nodes.values()} == sent
            assert len(after.nodes) == len(turn.graph.graph.nodes)
        else:
            assert after.nodes == before.nodes
        self.sent |= {node_id: node for node_id, node in after.nodes.items() if node_id not in self.sent}

    def check_append(self, before: Seen, after: Seen, delta: holdfast.Append) -> None:
        """Check that every sent node is there, under a parent that is there, and that nothing else has changed."""
        assert before.nodes.items() <= after.nodes.items(), "a turn took nodes away"
        payloads = {node.payload: node.id for node in after.nodes.values()}
        ids = [node.id or payloads[node.payload] for node in delta.nodes]
        assert {*before.nodes, *ids} == after.nodes.keys()
        previous = before.leaf
        for node, node_id in zip(delta.nodes, ids, strict=True):
            stored = after.nodes[node_id]
            assert stored.payload == node.payload
            if not is_left_out(node.parent):
                assert stored.parent == node.parent
            elif node_id not in self.sent:
                assert stored.parent == previous
            self.revived += node_id in self.sent and node_id not in before.nodes
            if node_id not in before.nodes:
                assert stored.parent is None or stored.parent in after.nodes, "a node came without its history"
            previous = node_id
        if delta.leaf is UNSET and not any(node_id in self.sent for node_id in ids):
            assert after.path[-1] in ids
        if delta.leaf is UNSET and all(
            is_left_out(node.parent) and node_id not in self.sent
            for node, node_id in zip(delta.nodes, ids, strict=True)
        ):
            assert after.path == before.path + ids, "the conversation was cut"

    def replay(self) -> None:
        """Send a turn again: it gets its receipt and brings nothing back."""
        if not self.turns:
            return
        (session_id, turn_id), (turn, receipt) = self.rng.choice(list(self.turns.items()))
        rows = self.bench.dump()
        assert self.store().sessions.handle(session_id).commit(turn) == replace(receipt, replayed=True), turn_id
        assert self.bench.dump() == rows

    def tombstone(self) -> None:
        """Tombstone some nodes."""
        session = self.store().sessions.handle(self.rng.choice(self.sessions))
        seen = list(Seen(session).nodes)
        ids = self.rng.sample(seen, min(len(seen), self.rng.randint(1, 2)))
        try:
            session.tombstone(ids)
        except holdfast.InvalidRequest:
            return  # one of them belongs to the session that this one was forked from
        assert not {*ids} & Seen(session).nodes.keys()

    def add_nodes(self) -> None:
        """Add nodes outside the path: they leave it alone, and never stand without their parents."""
        session = self.store().sessions.handle(self.rng.choice(self.sessions))
        before = Seen(session)
        nodes = [replace(node, id=node.id or self.name("m")) for node in (self.node() for _ in range(2))]
        try:
            session.add_nodes(list({node.id: node for node in nodes}.values()))
        except REFUSALS:
            return
        after = Seen(session)
        assert (after.path, after.leaf) == (before.path, before.leaf)
        for node_id in after.nodes.keys() - before.nodes.keys():
            parent = after.nodes[node_id].parent
            assert parent is None or parent in after.nodes
        self.sent |= {node_id: node for node_id, node in after.nodes.items() if node_id not in self.sent}

    def fork(self) -> None:
        """Fork one more session."""
        source, into = self.rng.choice(self.sessions), self.name("f")
        if len(self.sessions) < 4:
            before = Seen(self.store().sessions.handle(source))
            try:
                self.store().sessions.fork(source, into=into)
            except (holdfast.UnknownSession, holdfast.InvalidRequest):
                return
            after = Seen(self.store().sessions.handle(into))
            assert (after.nodes, after.path) == (before.nodes, before.path)
            self.sessions.append(into)

    def delete(self) -> None:
        """Delete a session. Its forks keep what they see."""
        if len(self.sessions) < 3:
            return
        gone = self.sessions.pop(self.rng.randrange(len(self.sessions)))
        before = [Seen(self.store().sessions.handle(one)).nodes for one in self.sessions]
        self.store().sessions.delete(gone)
        self.turns = {place: turn for place, turn in self.turns.items() if place[0] != gone}
        assert [Seen(self.store().sessions.handle(one)).nodes for one in self.sessions] == before

    def housekeeping(self) -> None:
        """Run housekeeping: everything readable stays."""
        before = [(Seen(self.store().sessions.handle(one)).nodes) for one in self.sessions]
        maintenance = self.store().maintenance
        if self.rng.random() < 0.5:
            maintenance.vacuum()
        if self.rng.random() < 0.5:
            maintenance.prune(holdfast.RetentionPolicy(keep_revisions=self.rng.randint(1, 3)))
            self.turns.clear()
        if self.rng.random() < 0.5:
            maintenance.collect_garbage()
        assert [(Seen(self.store().sessions.handle(one)).nodes) for one in self.sessions] == before
        assert maintenance.verify().findings == ()

    def run(self) -> None:
        """Run one program."""
        steps: list[tuple[Callable[[], None], int]] = [
            (self.commit, 50),
            (self.tombstone, 18),
            (self.replay, 8),
            (self.add_nodes, 6),
            (self.fork, 6),
            (self.housekeeping, 8),
            (self.delete, 2),
        ]
        calls, weights = zip(*steps, strict=True)
        for _ in range(STEPS):
            self.rng.choices(calls, weights)[0]()
        assert self.stores[0].maintenance.verify().findings == ()


class HistoryContract(Contract):
    """Turns among tombstones, vacuums, forks, replaced graphs and retention."""

    @pytest.mark.parametrize("number", range(PROGRAMS))
    def test_an_accepted_turn_reads_back_with_its_history(self, bench: Bench, number: int) -> None:
        program = Program(bench, f"{SEED}-{number}")
        try:
            program.run()
        except BaseException as error:
            error.add_note(f"HOLDFAST_SEED={SEED} replays program {number}")
            raise
        assert min(program.accepted, program.refused) > 0
