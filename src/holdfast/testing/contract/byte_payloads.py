"""Payloads of bytes: they come back as bytes, differ from any text, and move with their session."""

from __future__ import annotations

import base64
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.sessions import FullGraph, Graph, IdRange, ReplaceGraph
from holdfast.testing.contract.bench import Bench, Contract, refused

SIZES = (0, 1, 255, 256, 4_096, 300_000)
MIXED = bytes(range(256)) + b"{}null\x00\x01" * 40


def _sample(size: int) -> bytes:
    return bytes(index * 7 % 251 for index in range(size))


def _append(payload: Any, **fields: Any) -> holdfast.Commit:
    return holdfast.Commit(graph=holdfast.Append([holdfast.Node("n1", payload=payload)]), **fields)


class BytePayloadContract(Contract):
    """`Node(payload=b"...")`."""

    @pytest.mark.parametrize("size", SIZES)
    def test_bytes_come_back_through_every_reading(self, store: BlockingStore, bench: Bench, size: int) -> None:
        data = _sample(size)
        store.sessions.create("chat").commit(_append(data))
        session = bench.open().sessions.handle("chat")
        views = [session.load(), session.load(FullGraph()), session.load(at=1), session.load(at="n1")]
        readings: list[Any] = [view.graph.nodes[0].payload for view in views if view is not None]
        node = session.load_node("n1")
        assert node is not None
        readings += [node.payload, session.nodes()[0].payload, session.nodes(ids=IdRange.prefix("n"))[0].payload]
        readings += session.messages()
        assert readings == [data] * 8
        assert {type(one) for one in readings} == {bytes}
        assert store.maintenance.verify().findings == ()

    @pytest.mark.parametrize("data", [b"null", b"{}", b"\x00", b"\x01", b"\x01\x28\xb5\x2f\xfd", b"\xff" * 300, MIXED])
    def test_bytes_that_look_like_a_stored_form_come_back(self, store: BlockingStore, data: bytes) -> None:
        session = store.sessions.create("chat")
        session.add_nodes([holdfast.Node("n1", payload=data), holdfast.Node("n2", payload=bytearray(data))])
        assert [node.payload for node in session.nodes()] == [data, data]

    def test_text_takes_less_room_than_its_bytes(self, store: BlockingStore, bench: Bench) -> None:
        def stored() -> int:
            return sum(len(value) for row in bench.dump()["nodes"] for value in row if isinstance(value, bytes))

        session = store.sessions.create("chat")
        session.add_nodes([holdfast.Node("n1", payload=b"a line of a log, and another one\n" * 12)])
        text = stored()
        assert text < 12 * 32 / 2
        session.add_nodes([holdfast.Node("n2", payload=bytes(100_000))])
        assert 100_000 < stored() - text < 100_100, "a page of nodes is bounded by what is stored"

    def test_a_turn_with_bytes_is_found_again_by_its_id(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.create("chat")
        session.commit(_append(MIXED, turn_id="t1"))
        assert session.commit(_append(memoryview(MIXED), turn_id="t1")).replayed
        for other in (MIXED + b"\x00", base64.b64encode(MIXED).decode(), None):
            with refused(bench, holdfast.TurnConflict):
                session.commit(_append(other, turn_id="t1"))

    @pytest.mark.parametrize("other", [b"no", "eWVz", "yes", None, [], b""], ids=repr)
    def test_a_node_with_bytes_equals_no_other(self, store: BlockingStore, bench: Bench, other: Any) -> None:
        session = store.sessions.create("chat")
        assert session.add_nodes([holdfast.Node("n1", payload=b"yes")]).added == 1
        assert session.add_nodes([holdfast.Node("n1", payload=b"yes")]).added == 0
        with refused(bench, holdfast.errors.NodeConflict):
            session.add_nodes([holdfast.Node("n1", payload=other)])
        assert session.add_nodes([holdfast.Node("n1", payload=other)], on_conflict="keep").kept == 1

    def test_bytes_stand_in_a_turn_a_fork_and_a_replaced_graph(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        session.append(b"\x00hi", "hello")
        with session.turn("t1") as turn:
            turn.add(b"\xff")
            assert turn.messages == [b"\x00hi", "hello", b"\xff"]
        fork = store.sessions.fork("chat", into="fork")
        assert fork.messages() == [b"\x00hi", "hello", b"\xff"]
        whole = holdfast.Node("a", payload=b"\x01")
        fork.commit(holdfast.Commit(graph=ReplaceGraph(Graph([whole]))))
        fork.commit(holdfast.Commit(graph=ReplaceGraph(Graph([whole, holdfast.Node("b", payload=b"2")]))))
        assert fork.messages() == [b"\x01", b"2"]
        assert store.maintenance.verify().findings == ()

    def test_bytes_of_a_tombstoned_node_are_erased(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.create("chat")
        session.add_nodes([holdfast.Node("n1", payload=b"\x00secret")])
        session.tombstone(["n1"])
        assert store.maintenance.vacuum().removed_nodes == 1
        assert b"secret" not in repr(bench.dump()).encode()
        assert store.maintenance.verify().findings == ()

    @pytest.mark.parametrize(
        ("payload", "limit"),
        [({"a": b"x"}, None), ([b"x"], None), (bytes(1_001), 1_000), (memoryview(bytes(1_001)), 1_000)],
        ids=["in-an-object", "in-a-list", "over-the-limit", "view-over-the-limit"],
    )
    def test_bytes_that_cannot_be_stored_are_refused(self, bench: Bench, payload: Any, limit: int | None) -> None:
        store = bench.open(limits=holdfast.Limits(document_bytes=1_000))
        session = store.sessions.create("chat")
        with refused(bench, holdfast.InvalidRequest) as info:
            session.commit(_append(payload))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, info.value.limit) == ("graph.nodes[0].payload", limit)
        assert session.commit(_append(bytes(1_000))).revision == 1
