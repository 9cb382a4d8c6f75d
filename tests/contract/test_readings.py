"""The contract of reads with a position on our own backends, and its completeness."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import holdfast
from holdfast.testing.contract.readings import READS, WRITES, ReadingContract

BESIDE = {"store.close", "store.reading", "sessions.unbound"}
"""Calls that have cases of their own."""


class TestReadings(ReadingContract):
    pass


def test_the_contract_names_every_public_call() -> None:
    with holdfast.open_blocking("memory:") as store:
        session = store.sessions.handle("chat")
        facets = {name: getattr(store, name) for name in vars(store) if not name.startswith("_")}
        facets |= {"store": store, "session": session, "session.attachments": session.attachments}
        calls = {
            f"{facet}.{name}"
            for facet, value in facets.items()
            for name, found in inspect.getmembers(value, callable)
            if not name.startswith("_") and not inspect.isclass(found)
        }
    named = {name.split()[0] for name in (*READS, *WRITES)}
    assert calls - BESIDE == {name if "." in name else f"store.{name}" for name in named}


@pytest.mark.parametrize("url", ["memory:", "{folder}/store.db"], ids=["memory", "sqlite"])
def test_a_replica_is_an_option_of_postgresql_alone(url: str, tmp_path: Path) -> None:
    options = holdfast.PostgresOptions(read_url="postgresql://replica.example.net/agents")
    with pytest.raises(holdfast.InvalidRequest) as refused:
        holdfast.open_blocking(url.format(folder=tmp_path), options=options)
    assert refused.value.field == "options"
    assert list(tmp_path.iterdir()) == []
