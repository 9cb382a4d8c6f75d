"""An interrupt while a store in memory commits leaves the whole commit or none of it."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import rows as r


def interrupt_once(table: Any, *, after: bool) -> None:
    right = table.commit

    def commit() -> None:
        table.commit = right
        if after:
            right()
        raise KeyboardInterrupt

    table.commit = commit


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_in_memory_that_was_interrupted_half_way_is_finished(after: bool) -> None:
    with holdfast.open_blocking("memory:") as store:
        session = store.sessions.create("chat")
        backend: Any = store._backend
        interrupt_once(backend._tables.all()["nodes"], after=after)
        with pytest.raises(KeyboardInterrupt):
            session.commit(holdfast.Commit(turn_id="one", graph=holdfast.Append([holdfast.Node("n")], leaf="n")))
        view = session.load()
        assert view is not None
        assert (view.revision, [node.id for node in view.graph.nodes]) == (1, ["n"])
        assert store.maintenance.verify().findings == ()


def test_writes_that_an_interrupted_operation_staged_are_dropped() -> None:
    with holdfast.open_blocking("memory:") as store:
        backend: Any = store._backend
        table = backend._tables.all()["artifacts"]
        right = table.roll_back

        def interrupted() -> None:
            table.roll_back = right
            raise KeyboardInterrupt

        async def stage(transaction: Any) -> None:
            await transaction.save_artifact(r.ArtifactRow("k", "ref", "h", "raw", 1, transaction.now_ms, b"x"))
            table.roll_back = interrupted
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            backend.drive(backend.write(stage))
        store.sessions.create("chat").commit(holdfast.Commit())
        assert store.artifacts.list().items == ()
