"""Ids of nodes and turns are listed when their block of 64 is complete, and found before and after that alike."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.backends.sqlite.transaction.base import BLOCK
from holdfast.blocking import BlockingStore
from holdfast.errors import NodeConflict, TurnConflict
from holdfast.sessions import FullGraph, Graph, IdRange, ReplaceGraph

QUICK = holdfast.SqliteOptions(synchronous="off")


def turn(number: int, *, text: str = "") -> holdfast.Commit:
    node = holdfast.Node(f"n{number}", payload={"text": text})
    return holdfast.Commit(turn_id=f"t{number}", graph=holdfast.Append([node], leaf=node.id))


def commit_turns(store: BlockingStore, count: int) -> None:
    session = store.sessions.create("chat")
    for number in range(1, count + 1):
        session.commit(turn(number))


def listed(path: Path, table: str) -> int:
    connection = apsw.Connection(str(path))
    count: int = connection.execute(f"SELECT count(*) FROM {table}").get
    connection.close()
    return count


@pytest.mark.parametrize("turns", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_every_turn_and_node_is_known_by_its_id_at_each_side_of_a_block(tmp_path: Path, turns: int) -> None:
    path = tmp_path / "state.db"
    with holdfast.open_blocking(path, options=QUICK) as store:
        commit_turns(store, turns)
        chat = store.sessions.handle("chat")
        for number in range(1, turns + 1):
            assert chat.commit(turn(number)).replayed
            with pytest.raises(TurnConflict):
                chat.commit(turn(number, text="another"))
            with pytest.raises(NodeConflict):
                chat.add_nodes([holdfast.Node(f"n{number}", payload={"text": "another"})])
        assert store.maintenance.verify().findings == ()
    assert listed(path, "node_ids") == listed(path, "turn_ids") == turns - turns % BLOCK


def test_many_nodes_at_once_list_all_complete_blocks(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with holdfast.open_blocking(path, options=QUICK) as store:
        chat = store.sessions.create("chat")
        chat.add_nodes([holdfast.Node(f"a{number:03}") for number in range(5)])
        chat.add_nodes([holdfast.Node(f"b{number:03}") for number in range(3 * BLOCK)])
        found = chat.nodes(ids=IdRange.prefix("b"), limit=1_000)
        assert [node.id for node in found] == [f"b{number:03}" for number in range(3 * BLOCK)]
        assert store.maintenance.verify().findings == ()
    assert listed(path, "node_ids") == 3 * BLOCK


def test_a_fork_in_the_middle_of_a_block_finds_what_it_inherits_and_no_more(tmp_path: Path) -> None:
    with holdfast.open_blocking(tmp_path / "state.db", options=QUICK) as store:
        commit_turns(store, BLOCK + 5)
        chat = store.sessions.handle("chat")
        fork = store.sessions.fork("chat", into="fork")
        for number in range(BLOCK + 6, 3 * BLOCK):
            chat.commit(turn(number))
        assert fork.add_nodes([holdfast.Node(f"n{BLOCK + 6}", payload={"text": "of the fork"})]).added == 1
        with pytest.raises(NodeConflict):
            fork.add_nodes([holdfast.Node(f"n{BLOCK + 5}", payload={"text": "another"})])
        assert store.maintenance.verify().findings == ()


def test_dropped_nodes_and_revisions_are_no_longer_listed(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with holdfast.open_blocking(path, options=QUICK) as store:
        commit_turns(store, 2 * BLOCK)
        chat = store.sessions.handle("chat")
        chat.commit(holdfast.Commit(turn_id="whole", graph=ReplaceGraph(Graph([holdfast.Node("n1")]))))
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        store.maintenance.collect_garbage()
        view = chat.load(FullGraph())
        assert view is not None
        assert [node.id for node in view.graph.nodes] == ["n1"]
        assert store.maintenance.verify().findings == ()
    assert (listed(path, "node_ids"), listed(path, "turn_ids")) == (0, 0)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DELETE FROM node_ids WHERE node_id = 'n7'", "the id of node .* is not listed"),
        ("UPDATE nodes SET node_id = 'n7' WHERE node_id = 'n66'", "has the id of an earlier one"),
        ("UPDATE nodes SET node_id = 'n65' WHERE node_id = 'n66'", "has the id of an earlier one"),
        ("DELETE FROM turn_ids WHERE turn_id = 't7'", "the id of turn 't7' of session 1 is not listed"),
        ("UPDATE revisions SET turn_id = 't7' WHERE turn_id = 't66'", "turn 't.*' of session 1 was committed twice"),
        ("UPDATE revisions SET turn_id = 't65' WHERE turn_id = 't66'", "turn 't.*' of session 1 was committed twice"),
    ],
)
def test_an_id_that_is_lost_or_taken_twice_is_found(tmp_path: Path, damage: str, problem: str) -> None:
    path = tmp_path / "state.db"
    with holdfast.open_blocking(path, options=QUICK) as store:
        commit_turns(store, BLOCK + 2)
    connection = apsw.Connection(str(path))
    connection.execute(damage)
    assert connection.changes() == 1
    connection.close()
    with holdfast.open_blocking(path, options=QUICK) as store:
        problems = [finding.problem for finding in store.maintenance.verify().findings if finding.table == "database"]
    assert [found for found in problems if re.search(problem, found)] == problems != []
