"""Two imports into one session never mix: one is refused, and the other arrives unchanged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.transfer.files import exported, opened, read

import holdfast
from holdfast import transfer
from holdfast.errors import ImportRefused
from holdfast.leases import Lease, OnSession
from holdfast.sessions import SessionMeta
from holdfast.transfer import restoring
from holdfast.transfer.bundle import Bundle


@functools.cache
def bundle_of(tag: str) -> bytes:
    """Return a bundle of session `chat`: its metadata, nodes, checkpoint and work name their origin."""
    with holdfast.open_blocking("memory:") as store:
        session = store.sessions.create("chat", owner=tag)
        nodes = [holdfast.Node(f"{tag}{n}", parent=f"{tag}{n - 1}" if n else None, payload=n) for n in range(5)]
        session.commit(
            holdfast.Commit(
                turn_id="turn-1",
                graph=holdfast.Append(nodes, leaf=f"{tag}4"),
                checkpoint=holdfast.Checkpoint(turn_state={"of": tag}),
            )
        )
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[tag], source_key=f"work of {tag}"))
        return exported(store)


def is_as_in(store: holdfast.BlockingStore, data: bytes) -> bool:
    """Report whether the session equals the bundle's."""
    (_, here), (_, there) = opened(exported(store)), opened(data)
    return here == there


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdfast.BlockingStore]:
    url = {"memory": "memory:", "sqlite": str(tmp_path / "target.db")}.get(request.param)
    with holdfast.open_blocking(url or request.getfixturevalue("clean_postgres_url")) as store:
        yield store


def at_each_line(act: Callable[[int], None]) -> Callable[[int], None]:
    """Hook into an import: something else happens after each line."""
    lines = iter(range(10**6))
    return lambda _: act(next(lines))


def test_payloads_of_bytes_move_with_their_session(target: holdfast.BlockingStore) -> None:
    payloads = [b"", b"\x00\xff", b"line\n" * 100, "AP8=", None]
    with holdfast.open_blocking("memory:") as store:
        session = store.sessions.create("chat")
        session.append(*payloads)
        data = exported(store)
    assert transfer.restore(target, read(data)).outcome == "imported"
    assert target.sessions.handle("chat").messages() == payloads
    assert is_as_in(target, data)


def test_an_import_into_a_session_that_is_being_imported_is_refused(target: holdfast.BlockingStore) -> None:
    first, second = bundle_of("a"), bundle_of("b")
    turn_lines = sum(line["line"] != "batch" for line in opened(first)[1])

    def another(line: int) -> None:
        says = "was begun here, and not by this file" if line + 1 < turn_lines else "is there already"
        with pytest.raises(ImportRefused, match=says):
            transfer.restore(target, read(second))

    assert transfer.restore(target, read(first), step=at_each_line(another)).outcome == "imported"
    assert is_as_in(target, first)
    assert target.leases.holder(OnSession("chat")) is None
    assert target.maintenance.verify().findings == ()


def test_an_import_is_refused_while_another_one_holds_the_session(
    target: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other import has read its facts for the last time, and has written nothing yet."""
    first, second = bundle_of("a"), bundle_of("b")
    read_facts = restoring._facts
    calls: list[str] = []

    def facts(store: holdfast.BlockingStore, session_id: str, bundle: Bundle) -> restoring.Facts:
        found = read_facts(store, session_id, bundle)
        calls.append(session_id)
        if len(calls) == 3:
            with pytest.raises(ImportRefused, match="is being imported or used elsewhere: wait"):
                transfer.restore(target, read(second))
        return found

    monkeypatch.setattr(restoring, "_facts", facts)
    assert transfer.restore(target, read(first)).outcome == "imported"
    assert len(calls) == 5
    assert is_as_in(target, first)


@pytest.mark.parametrize("quicker", ["whole", "killed"])
def test_an_import_is_judged_anew_if_another_one_was_quicker(
    target: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch, quicker: str
) -> None:
    """The other import happens after this one was judged, before it has written anything."""
    judge = restoring._rehearse
    first, second = bundle_of("a"), bundle_of("b")

    class Killed(BaseException): ...

    def kill(line: int) -> None:
        if line == 2:
            raise Killed

    def judged(to: restoring.Target, bundle: Bundle) -> None:
        judge(to, bundle)
        monkeypatch.setattr(restoring, "_rehearse", judge)
        if quicker == "whole":
            transfer.restore(target, read(first))
            return
        with pytest.raises(Killed):
            transfer.restore(target, read(first), step=at_each_line(kill))

    monkeypatch.setattr(restoring, "_rehearse", judged)
    says = "is there already" if quicker == "whole" else "was begun here, and not by this file"
    with pytest.raises(ImportRefused, match=says):
        transfer.restore(target, read(second))
    assert transfer.restore(target, read(first)).outcome == ("already_there" if quicker == "whole" else "imported")
    assert is_as_in(target, first)


def test_the_same_import_twice_at_once_is_one_import(target: holdfast.BlockingStore) -> None:
    data = bundle_of("a")
    outcomes: list[str] = []

    def again(_: int) -> None:
        outcomes.append(transfer.restore(target, read(data)).outcome)

    assert transfer.restore(target, read(data), step=at_each_line(again)).outcome == "imported"
    assert outcomes == ["imported", *["already_there"] * (len(outcomes) - 1)]
    assert is_as_in(target, data)
    assert target.leases.holder(OnSession("chat")) is None


def test_an_import_whose_lease_was_taken_over_is_refused(target: holdfast.BlockingStore) -> None:
    data, place = bundle_of("a"), OnSession("chat")
    others: list[Lease] = []

    def take_over(line: int) -> None:
        holder = target.leases.holder(place)
        if line == 1 and holder is not None:
            target.leases.release(target.leases.claim(place, owner_id=holder.owner_id, ttl_ms=60_000))
            others.append(target.leases.claim(place, owner_id="another", ttl_ms=60_000))

    with pytest.raises(ImportRefused, match="was taken over during the import: import it again"):
        transfer.restore(target, read(data), step=at_each_line(take_over))
    assert target.sessions.handle("chat").history().items == ()
    target.leases.release(others[0])
    assert transfer.restore(target, read(data)).outcome == "imported"
    assert is_as_in(target, data)


def test_an_import_that_was_killed_continues_at_once_and_keeps_others_out(
    target: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = bundle_of("a"), bundle_of("b")

    def kill(line: int) -> None:
        if line == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(restoring.Held, "__exit__", lambda *_: None)  # a killed process releases nothing
    with pytest.raises(KeyboardInterrupt):
        transfer.restore(target, read(first), step=at_each_line(kill))
    monkeypatch.undo()
    before = target._backend.dump()
    with pytest.raises(ImportRefused):
        transfer.restore(target, read(second))
    assert target._backend.dump() == before
    assert transfer.restore(target, read(first)).outcome == "imported"
    assert is_as_in(target, first)


@pytest.mark.parametrize("change", ["nodes", "meta", "turn"])
def test_an_import_into_a_session_that_is_written_to_is_refused(target: holdfast.BlockingStore, change: str) -> None:
    """The other writer ignores leases."""
    session = target.sessions.handle("chat")

    def write(line: int) -> None:
        if line == 1:
            {
                "nodes": lambda: session.add_nodes([holdfast.Node("other", parent=None)]),
                "meta": lambda: session.save_meta(SessionMeta("chat", "other", created_at_ms=1)),
                "turn": lambda: session.commit(holdfast.Commit(turn_id="other")),
            }[change]()

    with pytest.raises((ImportRefused, holdfast.Conflict)) as info:
        transfer.restore(target, read(bundle_of("a")), step=at_each_line(write))
    assert "chat" in str(info.value)
    turns = [entry.turn_id for entry in session.history()]
    assert turns == (["other"] if change == "turn" else [])


def test_a_lease_is_renewed_as_long_as_an_import_takes(
    target: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "RENEW_EVERY_S", 0.0)
    ends: list[int] = []

    def look(_: int) -> None:
        holder = target.leases.holder(OnSession("chat"))
        ends.append(0 if holder is None else holder.expires_at_ms)

    renewed: list[Any] = []
    right = restoring.Held.keep

    def keep(held: restoring.Held) -> None:
        right(held)
        renewed.append(held.lease.expires_at_ms)

    monkeypatch.setattr(restoring.Held, "keep", keep)
    assert transfer.restore(target, read(bundle_of("a")), step=at_each_line(look)).outcome == "imported"
    assert len(renewed) == len(ends)
    assert 0 not in ends
    assert ends == sorted(ends)
