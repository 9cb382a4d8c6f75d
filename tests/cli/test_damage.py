"""A command that reads damaged rows names them, and never shows or exports a part as if it were everything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

Damage = Callable[[str], None]

TURNED = """
UPDATE {schema}nodes SET parent_key = (SELECT max(node_key) FROM {schema}nodes WHERE node_id = 'n2')
WHERE node_id = 'n1'
"""


@pytest.fixture
def damage(url: str, request: pytest.FixtureRequest) -> Damage:
    """Run a statement directly on the store's database."""

    def run(statement: str) -> None:
        if url.startswith("postgresql"):
            request.getfixturevalue("postgres_database").administrator.run(statement.format(schema="holdfast."))
            return
        connection = apsw.Connection(url)
        connection.execute(statement.format(schema=""))
        connection.close()

    return run


def test_nodes_in_a_circle_are_neither_drawn_nor_exported(on: Any, filled: Any, damage: Damage, tmp_path: Path) -> None:
    damage(TURNED)
    for command in (
        ("sessions", "graph", "chat"),
        ("sessions", "graph", "chat", "--json"),
        ("sessions", "export", "chat", "-o", tmp_path / "chat.jsonl"),
        ("sessions", "show", "chat"),
    ):
        said = on(*command)
        assert said.code == 5, command
        assert "nodes" in said.err
        assert "not older than itself" in said.err
    assert not (tmp_path / "chat.jsonl").exists()
    said = on("verify")
    assert said.code == 1
    assert "its parent does not come before it" in said.out
