"""A path that one statement reads in runs of keys is the path that parents make, in every shape of a graph."""

from __future__ import annotations

import random
from typing import Any

import pytest

import holdfast
from holdfast.backends.postgres import prefetch
from holdfast.sessions import ActivePath

LIMITS = (None, 0, 1, 2, 3, 5, 8, 13, 1_000)


class Model:
    """Parents by node, and hidden nodes."""

    def __init__(self) -> None:
        self.parents: dict[str, str | None] = {}
        self.hidden: set[str] = set()

    def path(self, leaf: str | None) -> list[str]:
        """Return the ids from the oldest node to the leaf. A hidden node ends the path."""
        found: list[str] = []
        while leaf is not None and leaf not in self.hidden:
            found.insert(0, leaf)
            leaf = self.parents[leaf]
        return found


@pytest.mark.parametrize("seed", range(6))
def test_a_path_of_any_graph_is_the_one_that_parents_make(
    clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(prefetch, "PATH_NODES", rng.choice((4, 12, 5_000)))
    with holdfast.open_blocking(clean_postgres_url) as store, holdfast.open_blocking(clean_postgres_url) as other:
        name, model = "chat", Model()
        session = store.sessions.create(name)
        leaf: str | None = None
        own = set[str]()
        for step in range(30):
            known = [one for one in model.parents if one not in model.hidden]
            added = [f"n{step}-{index}" for index in range(rng.randint(1, 4))]
            first = leaf if rng.random() < 0.6 or not known else rng.choice([*known, None])
            parents = dict(zip(added, [first, *added], strict=False))
            nodes = [holdfast.Node(one, parent=parents[one], payload={"step": step}) for one in added]
            model.parents |= parents
            own.update(added)
            if rng.random() < 0.3 and known:
                session.add_nodes(nodes)
            else:
                leaf = rng.choice([added[-1], rng.choice([*known, *added])])
                session.commit(holdfast.Commit(graph=holdfast.Append(nodes, leaf=leaf)))
            aside = [one for one in known if one in own and one not in model.path(leaf)]
            if rng.random() < 0.3 and aside:
                gone = rng.choice(aside)
                model.hidden.add(gone)
                session.tombstone([gone])
            if rng.random() < 0.15:
                # A fork continues with keys of its own, and its path leads back into the keys of its origin.
                name, origin = f"fork-{step}", name
                session = store.sessions.fork(origin, into=name)
                model.parents = {one: model.parents[one] for one in model.path(leaf)}
                own.clear()
            for last in rng.sample(LIMITS, 4):
                view = other.sessions.handle(name).load(ActivePath(last=last))
                assert view is not None
                whole = model.path(leaf)
                found = [node.id for node in view.graph.nodes]
                assert found == (whole if last is None else whole[len(whole) - min(last, len(whole)) :])
                assert [node.parent for node in view.graph.nodes] == [model.parents[one] for one in found]


def test_a_path_beyond_the_bytes_of_one_statement_is_read_whole(
    clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.columns.PAGE_BYTES", 3_000)
    with holdfast.open_blocking(clean_postgres_url) as store:
        session = store.sessions.create("chat")
        text = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=900))
        for number in range(12):
            session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(payload={"text": text, "n": number})])))
            for last in (None, 1, 2, 3, 4, 5):
                view: Any = session.load(ActivePath(last=last))
                first = 0 if last is None else max(0, number + 1 - last)
                assert [node.payload["n"] for node in view.graph.nodes] == list(range(first, number + 1))


@pytest.mark.parametrize("lost", range(4))
def test_a_lost_node_is_damage_wherever_it_stood(clean_postgres_url: str, postgres_database: Any, lost: int) -> None:
    with holdfast.open_blocking(clean_postgres_url) as store:
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(f"n{index}") for index in range(4)])))
        postgres_database.administrator.run(f"DELETE FROM holdfast.nodes WHERE node_id = 'n{lost}'")
        for last in (None, 1, 2, 4):
            if last is None or last >= 4 - lost or lost == 3:
                with pytest.raises(holdfast.Corrupt) as found:
                    session.load(ActivePath(last=last))
                assert found.value.table == "nodes" or lost == 3


@pytest.mark.parametrize("hidden", range(5))
def test_a_path_begins_after_a_hidden_node_and_names_it_as_parent(clean_postgres_url: str, hidden: int) -> None:
    with holdfast.open_blocking(clean_postgres_url) as store:
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node(f"n{index}") for index in range(6)])))
        session.tombstone([f"n{hidden}"])
        for last in (None, 1, 2, 3, 5, 6, 7):
            view = session.load(ActivePath(last=last))
            assert view is not None
            first = max(hidden + 1, 0 if last is None else 6 - last)
            expected = [(f"n{index}", f"n{index - 1}") for index in range(first, 6)]
            assert [(node.id, node.parent) for node in view.graph.nodes] == expected
