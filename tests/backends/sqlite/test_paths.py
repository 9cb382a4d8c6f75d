"""A path is read in runs of keys, and gives what its parents say, in trees of any form."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.sqlite.connection import StatementRunner
from holdfast.backends.sqlite.transaction.graph import SHORT_RUN, run_of
from holdfast.sessions import ActivePath

LAST = (1, 2, SHORT_RUN - 1, SHORT_RUN, SHORT_RUN + 1, 30, None)


def grown(session: holdfast.BlockingSession, seed: int) -> tuple[dict[str, str | None], set[str]]:
    """Commit a tree of runs that branch off at random nodes, and hide some. Return the parents and the hidden nodes."""
    drawn = random.Random(seed)
    parents: dict[str, str | None] = {}
    for run in range(12):
        parent = drawn.choice([None, *parents]) if run else None
        nodes: list[holdfast.Node] = []
        for step in range(drawn.choice((1, 2, SHORT_RUN, 3 * SHORT_RUN))):
            nodes.append(holdfast.Node(f"{run}-{step}", parent=parent, payload=[run, step]))
            parents[nodes[-1].id] = parent
            parent = nodes[-1].id
        session.commit(holdfast.Commit(graph=holdfast.Append(nodes, leaf=parent)))
    hidden = set(drawn.sample(sorted(parents), seed % 4))
    if hidden:
        session.tombstone(sorted(hidden))
    return parents, hidden


def path_to(
    leaf: str, last: int | None, parents: dict[str, str | None], hidden: set[str]
) -> list[tuple[str, str | None]]:
    """Return the ids and parents of a path, by the parents alone."""
    found: list[tuple[str, str | None]] = []
    at: str | None = leaf
    while at is not None and at not in hidden and (last is None or len(found) < last):
        found.append((at, parents[at]))
        at = parents[at]
    return found[::-1]


@pytest.mark.parametrize("seed", range(8))
def test_every_path_of_a_tree_is_that_of_its_parents(tmp_path: Path, seed: int) -> None:
    with holdfast.open_blocking(tmp_path / "tree.db") as store:
        session = store.sessions.create("tree")
        parents, hidden = grown(session, seed)
        fork = store.sessions.fork("tree", into="fork")
        for reader in (session, fork):
            for leaf in parents:
                for last in LAST:
                    view = reader.load(ActivePath(leaf=leaf, last=last))
                    assert view is not None
                    assert [(node.id, node.parent) for node in view.graph.nodes] == path_to(leaf, last, parents, hidden)


def test_a_long_conversation_is_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open_blocking(tmp_path / "chat.db") as store:
        session = store.sessions.create("chat")
        for turn in range(40):
            nodes = [holdfast.Node(payload=[turn, step]) for step in range(3)]
            session.commit(holdfast.Commit(graph=holdfast.Append(nodes)))
        asked: list[str] = []
        whole = StatementRunner.all

        def counted(runner: StatementRunner, name: str, *rest: object) -> object:
            asked.append(name)
            return whole(runner, name, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(StatementRunner, "all", counted)
        view = session.load()
        assert view is not None
        assert len(view.graph.nodes) == 120
        assert asked.count("read_run") == 1
        assert "read_path" not in asked


def test_a_row_that_is_not_the_parent_ends_a_run() -> None:
    def row(key: int, parent: int | None, mark: int = 0) -> tuple[object, ...]:
        return (key, 1, 0, f"n{key}", parent, "event", None, None, 0, b"1", mark, 1)

    # 6 is missing: its child waits for the parent's id and is read with the rest.
    assert [values[0] for values in run_of(9, 100, iter([row(9, 8), row(8, 7), row(7, 6), row(5, None)]))] == [9, 8]
    hidden = [*run_of(9, 100, iter([row(9, 8), row(8, 7, mark=1), row(7, None)]))]
    assert [(values[0], values[-1]) for values in hidden] == [(9, "n8")]
    assert [values[0] for values in run_of(9, 2, iter([row(9, 8), row(8, 7), row(7, None)]))] == [9, 8]
