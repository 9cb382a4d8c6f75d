"""Views of several revisions in one read."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import InvalidRequest, SessionDeleted, UnknownRef
from holdfast.sessions import ActivePath, Graph, GraphDelta, ReplaceGraph, SessionView, Unchanged
from holdfast.testing.contract.bench import Bench, Contract

NAMES = (6, "t1", "b", 2, "t1", 4, 5, 1)
"""Revisions by number, by turn and by node, some of them twice."""
UNCHANGED = Unchanged()


def turn(number: int, graph: GraphDelta = UNCHANGED) -> holdfast.Commit:
    """Return a turn with usage and a state that is large enough for a delta."""
    state = holdfast.Checkpoint(turn_state={"n": number, "same": "x" * 5_000}, others={"odd": number % 2})
    used = holdfast.Usage(f"s{number % 2}", "m", number)
    return holdfast.Commit(turn_id=f"t{number}", checkpoint=state, config={"n": number}, usage=[used], graph=graph)


def one_by_one(session: Session, last: int | None) -> list[SessionView | None]:
    """Return the same views by as many loads."""
    return [session.load(ActivePath(last=last), at=name) for name in NAMES]


class ViewContract(Contract):
    """`session.load_many`."""

    @pytest.fixture
    def chat(self, store: BlockingStore) -> Session:
        chat = store.sessions.create("chat")
        node = holdfast.Node
        chat.commit(turn(1, holdfast.Append([node("a"), node("b"), node("c")])))
        chat.commit(turn(2, holdfast.Append([node("d")])))
        chat.commit(turn(3, holdfast.Append([node("e", parent="a"), node("f")])))
        chat.commit(turn(4, Unchanged("b")))
        chat.commit(turn(5, holdfast.Append([node("g", parent="d")])))
        chat.commit(turn(6))
        return chat

    @pytest.mark.parametrize("last", [None, 2, 0])
    def test_several_views_are_those_of_as_many_loads(self, chat: Session, last: int | None) -> None:
        chat.commit(turn(7))
        assert chat.load_many(NAMES, last=last) == one_by_one(chat, last)

    def test_a_hidden_node_cuts_each_path_that_reaches_it(self, chat: Session) -> None:
        chat.commit(turn(7, ReplaceGraph(Graph([holdfast.Node("y", parent=None), holdfast.Node("x")]))))
        chat.tombstone(["y"])
        assert chat.load_many([7, 5], last=None) == [chat.load(at=7), chat.load(at=5)]
        chat.tombstone(["x"])
        assert chat.load_many([7, "t7"]) == [chat.load(at=7)] * 2

    def test_a_fork_shows_views_that_begin_in_its_source(self, store: BlockingStore, chat: Session) -> None:
        fork = store.sessions.fork("chat", at=5, into="fork")
        fork.commit(turn(8, holdfast.Append([holdfast.Node("h")])))
        assert fork.load_many([2, 1]) == [fork.load(at=2), fork.load(at=1)]
        with pytest.raises(UnknownRef, match="the session that this was forked from"):
            fork.load_many([1, "a"])

    def test_a_session_without_usage_has_views_without_ledgers(self, store: BlockingStore) -> None:
        bare = store.sessions.create("bare")
        for number in range(3):
            bare.commit(holdfast.Commit(turn_id=f"t{number}"))
        assert [(view.revision, view.ledger) for view in bare.load_many([3, 1])] == [(3, ()), (1, ())]

    @pytest.mark.parametrize("name", [9, "nothing"])
    def test_one_that_does_not_exist_is_the_error_of_a_load(self, chat: Session, name: int | str) -> None:
        with pytest.raises(UnknownRef) as alone:
            chat.load(at=name)
        with pytest.raises(UnknownRef) as among:
            chat.load_many([1, name])
        assert str(among.value) == str(alone.value)

    def test_one_that_was_pruned_is_unknown(self, store: BlockingStore, chat: Session) -> None:
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=3))
        assert [view.revision for view in chat.load_many(["t6", 4])] == [6, 4]
        for name in (3, "t3", "c"):
            with pytest.raises(UnknownRef):
                chat.load_many([6, name])

    def test_nothing_of_nothing_is_nothing(self, store: BlockingStore, chat: Session) -> None:
        absent = store.sessions.handle("absent")
        assert (chat.load_many([]), absent.load_many([])) == ([], [])
        with pytest.raises(UnknownRef, match="the session has no revisions"):
            absent.load_many([1])
        store.sessions.delete("chat")
        with pytest.raises(SessionDeleted):
            store.sessions.handle("chat").load_many([1])

    def test_count_and_contents_are_bounded_together(self, bench: Bench, chat: Session) -> None:
        few = bench.open(limits=holdfast.Limits(page=2)).sessions.handle("chat")
        assert len(few.load_many([1, 2])) == 2
        with pytest.raises(InvalidRequest) as info:
            few.load_many([1, 2, 3])
        assert info.value.limit == 2
        small = bench.open(limits=holdfast.Limits(load_bytes=25_000)).sessions.handle("chat")
        assert len(small.load_many([1, 2, 3])) == 3
        with pytest.raises(InvalidRequest) as info:
            small.load_many([1, 2, 3, 4, 5, 6])
        assert (info.value.field, info.value.limit) == ("limits.load_bytes", 25_000)
