"""Labels of sessions, and listings by label, by id prefix and by newest change."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.records.sessions import Child, SessionMeta, SessionSummary
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused

MINUTE_MS = 60_000
ODD = ["a\uffffb", "a\U0001f600", "a b", "a'%_", "\U0010ffff", "\U0010ffff\U0010ffffx", "é"]


def ids(listed: Any) -> list[str]:
    """Return the ids of listed sessions."""
    return [one.session_id for one in listed]


def matching(sessions: list[SessionSummary], filters: dict[str, Any]) -> list[str]:
    """Return the ids that a listing must have, by a plain scan: an oracle."""
    found = [
        one
        for one in sessions
        if filters.get("owner") in {None, one.owner}
        and filters.get("parent") in {None, one.parent_session_id}
        and one.session_id.startswith(filters.get("prefix") or "")
        and all(one.labels.get(key) == value for key, value in filters.get("labels", {}).items())
        and one.changed_at_ms >= (filters.get("changed_since_ms") or 0)
    ]
    if filters.get("newest_first"):
        places = {one.session_id: place for place, one in enumerate(found)}
        found.sort(key=lambda one: (one.changed_at_ms // MINUTE_MS, places[one.session_id]), reverse=True)
    elif filters.get("changed_since_ms") is not None:
        found = sorted(found, key=lambda one: one.changed_at_ms // MINUTE_MS)
    elif filters.get("prefix") is not None:
        found = sorted(found, key=lambda one: one.session_id)
    return [one.session_id for one in found]


class LabelContract(Contract):
    """`session.set_labels`, `meta().labels`, and `store.sessions.list` with `labels`, `prefix` and `newest_first`."""

    def test_labels_given_at_creation_are_in_the_metadata_and_in_listings(self, store: BlockingStore) -> None:
        given = {"user": "u1", "empty": "", "é \U0001f600": "a=b:c"}
        session = store.sessions.create("chat", labels=given)
        store.sessions.create("bare")
        meta = session.meta()
        assert meta is not None
        assert meta.labels == given
        assert [one.labels for one in store.sessions.list()] == [given, {}]
        again = store.sessions.create("chat", labels={"user": "u2"})
        assert again.meta() == meta, "existing metadata is never overwritten"

    def test_the_caller_may_change_its_dict_afterwards(self, store: BlockingStore) -> None:
        given = {"user": "u1"}
        session = store.sessions.create("chat", labels=given)
        given["user"] = "u2"
        stored = session.set_labels({})
        stored["user"] = "u3"
        assert session.set_labels({}) == {"user": "u1"}

    def test_one_call_sets_and_removes_labels_and_leaves_the_others(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat", name="A name", labels={"a": "1", "b": "2", "c": "3"})
        assert session.set_labels({"a": None, "b": "two", "d": "4", "never": None}) == {"b": "two", "c": "3", "d": "4"}
        meta = session.meta()
        assert meta is not None
        assert (meta.name, meta.labels) == ("A name", {"b": "two", "c": "3", "d": "4"})
        assert list(meta.labels) == sorted(meta.labels)
        assert ids(store.sessions.list(labels={"a": "1"})) == []
        assert ids(store.sessions.list(labels={"b": "two"})) == ["chat"]

    def test_a_change_of_labels_is_a_change_of_the_session_unless_nothing_changes(
        self, store: BlockingStore, clock: ManualClock, bench: Bench
    ) -> None:
        session = store.sessions.create("chat", labels={"a": "1"})
        clock.advance(MINUTE_MS)
        before = bench.dump()
        session.set_labels({"a": "1", "b": None})
        assert bench.dump() == before
        session.set_labels({"a": "2"})
        [listed] = store.sessions.list(changed_since_ms=clock.now_ms())
        assert listed.labels == {"a": "2"}
        assert listed.revision == 0

    def test_labels_need_a_session(self, store: BlockingStore, bench: Bench) -> None:
        with refused(bench, holdfast.UnknownSession):
            store.sessions.handle("never").set_labels({"a": "1"})
        session = store.sessions.create("chat", labels={"a": "1"})
        store.sessions.delete("chat")
        with refused(bench, holdfast.SessionDeleted):
            session.set_labels({"a": "2"})

    def test_a_session_without_metadata_gets_some_with_its_first_label(self, store: BlockingStore) -> None:
        session = store.sessions.handle("chat")
        session.commit(holdfast.Commit())
        assert session.meta() is None
        session.set_labels({"a": "1"})
        meta = session.meta()
        assert meta is not None
        assert (meta.name, meta.labels) == ("chat", {"a": "1"})

    def test_saved_metadata_replaces_the_labels(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat", labels={"a": "1", "b": "2"})
        meta = session.meta()
        assert meta is not None
        session.save_meta(msgspec.structs.replace(meta, labels={"b": "two", "c": "3"}))
        assert session.set_labels({}) == {"b": "two", "c": "3"}
        session.save_meta(SessionMeta("chat", "bare", 0))
        assert session.set_labels({}) == {}

    def test_a_fork_has_the_labels_that_it_is_given_and_none_of_its_source(self, store: BlockingStore) -> None:
        store.sessions.create("chat", labels={"a": "1"}).commit(holdfast.Commit())
        assert store.sessions.fork("chat", into="bare").set_labels({}) == {}
        assert store.sessions.fork("chat", into="named", labels={"b": "2"}).set_labels({}) == {"b": "2"}
        assert ids(store.sessions.list(labels={"a": "1"})) == ["chat"]

    def test_deletion_erases_labels(self, store: BlockingStore, bench: Bench) -> None:
        store.sessions.create("chat", labels={"a": "1"}).commit(holdfast.Commit())
        store.sessions.fork("chat", into="fork", labels={"a": "1"})
        store.sessions.delete("chat")
        assert len(bench.dump()["session_labels"]) == 1
        assert ids(store.sessions.list(labels={"a": "1"})) == ["fork"]
        assert store.sessions.create("chat").set_labels({}) == {}
        store.sessions.delete("fork")
        assert bench.dump()["session_labels"] == []

    @pytest.mark.parametrize(
        ("labels", "problem"),
        [
            ({"": "x"}, "blank"),
            ({"k" * 65: "x"}, "65 bytes"),
            ({"k": "é" * 129}, "258 bytes"),
            ({f"k{number}": "" for number in range(17)}, "17 items"),
            ({"a=b": "x"}, "must not contain"),
            ({"a:b": "x"}, "must not contain"),
            ({"k": "a\0b"}, "NUL"),
            ({"k": 1}, "must be text"),
            ({1: "k"}, "must be text"),
            ({"k": "\ud800"}, "surrogate"),
            (["k"], "must be a dict"),
        ],
    )
    def test_labels_beyond_the_limits_are_refused_and_nothing_is_written(
        self, store: BlockingStore, bench: Bench, labels: Any, problem: str
    ) -> None:
        session = store.sessions.create("chat")
        for call in (
            lambda: store.sessions.create("new", labels=labels),
            lambda: store.sessions.fork("chat", into="new", labels=labels),
            lambda: store.sessions.list(labels=labels),
            lambda: session.set_labels(labels),
            lambda: session.save_meta(SessionMeta("chat", "n", 0, labels=labels)),
        ):
            with refused(bench, holdfast.InvalidRequest) as caught:
                call()
            assert isinstance(caught.value, holdfast.InvalidRequest)
            assert "labels" in caught.value.field
            assert problem in str(caught.value)

    def test_a_session_has_no_more_labels_than_the_limit_however_they_come(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        session = store.sessions.create("chat", labels={f"k{number}": "v" for number in range(16)})
        with refused(bench, holdfast.InvalidRequest) as caught:
            session.set_labels({"more": "v"})
        assert isinstance(caught.value, holdfast.InvalidRequest)
        assert caught.value.limit == 16
        assert len(session.set_labels({"more": "v", "k0": None})) == 16
        narrow = bench.open(limits=holdfast.Limits(labels=2)).sessions.handle("chat")
        assert len(narrow.set_labels({"k1": "w", "k2": None})) == 15, "fewer are fine under a lower limit"

    def test_a_prefix_lists_ids_in_their_order(self, store: BlockingStore, bench: Bench) -> None:
        names = ["b", "user/2", "user/10", "user", "user0", "a", *ODD]
        for name in names:
            store.sessions.create(name)
        for prefix in ["", "user", "user/", "nothing", "a", "\U0010ffff", "a\uffff", "é", *ODD]:
            expected = sorted(name for name in names if name.startswith(prefix))
            assert ids(store.sessions.list(prefix=prefix)) == expected
            assert ids(holdfast.every(store.sessions.list, prefix=prefix, limit=2)) == expected
        page = store.sessions.list(prefix="user", limit=1)
        with refused(bench, holdfast.InvalidRequest):
            store.sessions.list(after=page.next)

    def test_newest_changes_come_first_and_a_changed_session_moves_to_the_front(
        self, store: BlockingStore, clock: ManualClock, bench: Bench
    ) -> None:
        for name in "abcde":
            store.sessions.create(name)
            clock.advance(MINUTE_MS)
        assert ids(holdfast.every(store.sessions.list, newest_first=True, limit=2)) == ["e", "d", "c", "b", "a"]
        page = store.sessions.list(newest_first=True, limit=2)
        store.sessions.handle("b").commit(holdfast.Commit())
        assert ids(store.sessions.list(newest_first=True, after=page.next)) == ["c", "a"]
        assert ids(store.sessions.list(newest_first=True, limit=2)) == ["b", "e"]
        with refused(bench, holdfast.InvalidRequest):
            store.sessions.list(changed_since_ms=0, after=page.next)

    def test_all_filters_combine_in_every_order(self, store: BlockingStore, clock: ManualClock) -> None:
        names = [f"{'xy'[number % 2]}{number:02}" for number in range(24)]
        for number, name in enumerate(names):
            labels = {"user": f"u{number % 3}", "app": "one"} | ({"rare": "yes"} if number % 8 == 0 else {})
            relation = Child("x00") if number % 4 == 1 else holdfast.sessions.Root()
            owner = "ada" if number % 5 else "bob"
            store.sessions.create(name, owner=owner, relation=relation, labels=labels if number % 7 else {})
            clock.advance(20_000)
        for name in ("y03", "x10", "x16"):
            store.sessions.handle(name).commit(holdfast.Commit())
            clock.advance(20_000)
        store.sessions.delete("x06")
        known = list(holdfast.every(store.sessions.list))
        middle_ms = known[12].changed_at_ms
        choices: list[list[dict[str, Any]]] = [
            [{}, {"owner": "ada"}],
            [{}, {"parent": "x00"}],
            [{}, {"prefix": "x"}, {"prefix": "y1"}],
            [
                {},
                {"labels": {"user": "u1"}},
                {"labels": {"app": "one", "user": "u0"}},
                {"labels": {"app": "one", "rare": "yes"}},
                {"labels": {"app": "one", "rare": "no"}},
            ],
            [{}, {"changed_since_ms": middle_ms}],
            [{}, {"newest_first": True}],
        ]
        for parts in product(*choices):
            filters = {key: value for part in parts for key, value in part.items()}
            expected = matching(known, filters)
            assert ids(store.sessions.list(limit=100, **filters)) == expected, filters
            assert ids(holdfast.every(store.sessions.list, limit=3, **filters)) == expected, filters

    def test_labels_are_verified_and_survive_a_second_store(self, store: BlockingStore, bench: Bench) -> None:
        store.sessions.create("chat", labels={"a": "1"})
        other = bench.open()
        assert other.sessions.handle("chat").set_labels({"b": "2"}) == {"a": "1", "b": "2"}
        assert store.sessions.handle("chat").set_labels({}) == {"a": "1", "b": "2"}
        assert store.maintenance.verify().findings == ()

    def test_labels_change_inside_a_transaction_with_other_sessions(self, store: BlockingStore) -> None:
        store.sessions.create("chat", labels={"a": "1"})

        def undone() -> None:
            with store.transaction() as tx:
                tx.sessions.handle("chat").set_labels({"a": "2"})
                tx.sessions.create("new", labels={"a": "2"})
                assert ids(tx.sessions.list(labels={"a": "2"})) == ["chat", "new"]
                raise RuntimeError("undo")

        with pytest.raises(RuntimeError, match="undo"):
            undone()
        assert ids(store.sessions.list(labels={"a": "1"})) == ["chat"]
