"""Deltas: a large state that changes a little takes little room, and every kept revision comes back whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

import holdfast
from holdfast.blocking import BlockingStore, Session
from holdfast.sessions import AgentFrame, CommitReceipt
from holdfast.testing.contract.bench import Bench, Contract, at_once
from holdfast.testing.contract.graph import loaded

SIZE = 80_000
HEAD_ONLY = holdfast.RetentionPolicy(keep_revisions=1)


def noise(seed: str, size: int = SIZE) -> bytes:
    """Return incompressible bytes."""
    return hashlib.shake_128(seed.encode()).digest(size)


def changed(number: int, seed: str = "state") -> bytes:
    """Return the state after this many changes, each of a hundred bytes at another place."""
    state = bytearray(noise(seed))
    for each in range(1, number + 1):
        at = each * 7_919 % (SIZE - 100)
        state[at : at + 100] = noise(f"change {each}", 100)
    return bytes(state)


def commit(session: Session, state: bytes, **others: object) -> CommitReceipt:
    """Commit a turn with this execution state."""
    return session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=state), **others))  # type: ignore[arg-type]


def state_of(session: Session, at: int | None = None) -> object:
    """Return the execution state of a revision."""
    view = session.load(at=at)
    assert view is not None
    assert view.checkpoint is not None
    return view.checkpoint.execution_state


class DeltaContract(Contract):
    """Contents of 4 KiB and more."""

    @pytest.fixture
    def chat(self, store: BlockingStore) -> Session:
        return store.sessions.create("chat")

    # Stored size, and reading back.

    def test_a_large_state_that_changes_a_little_takes_little_and_every_revision_comes_back(
        self, store: BlockingStore, chat: Session
    ) -> None:
        for number in range(12):
            receipt = commit(chat, changed(number))
            assert receipt.manifest.refs["execution_state"] == (
                "bytes-sha256:" + hashlib.sha256(changed(number)).hexdigest()
            )
        stats = store.maintenance.stats()
        assert stats.blobs == 12
        # One whole state, and 1, 2, … 11 changes of a hundred bytes, each with the overhead of a frame and its offsets.
        assert SIZE < stats.blob_bytes < SIZE + 66 * 120 + 11 * 100
        assert [state_of(chat, at) for at in range(1, 13)] == [changed(number) for number in range(12)]
        assert state_of(chat) == changed(11)
        assert store.maintenance.verify().findings == ()

    def test_a_document_a_config_and_the_state_of_a_frame_are_stored_alike(
        self, store: BlockingStore, chat: Session
    ) -> None:
        def turn(number: int) -> holdfast.Commit:
            text = changed(number).hex()
            return holdfast.Commit(
                config={"text": "config" + text},
                checkpoint=holdfast.Checkpoint(turn_state={"text": text}),
                frames=[AgentFrame("f", execution_state=b"frame" + changed(number))],
            )

        chat.commit(turn(1))
        first = store.maintenance.stats().blob_bytes
        chat.commit(turn(2))
        assert store.maintenance.stats().blob_bytes - first < 5_000
        view = loaded(chat)
        assert view.config == {"text": "config" + changed(2).hex()}
        assert view.checkpoint == holdfast.Checkpoint(turn_state={"text": changed(2).hex()})
        assert [frame.execution_state for frame in view.frames] == [b"frame" + changed(2)]

    def test_components_of_one_checkpoint_each_continue_with_their_own_past(
        self, store: BlockingStore, chat: Session
    ) -> None:
        for number in range(3):
            others: dict[str, holdfast.Document] = {"a": changed(number, "a"), "b": changed(number, "b")}
            chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(others=others)))
        assert store.maintenance.stats().blob_bytes < 2 * SIZE + 4_000
        assert loaded(chat).checkpoint == holdfast.Checkpoint(others={"a": changed(2, "a"), "b": changed(2, "b")})

    def test_a_state_that_is_new_altogether_is_stored_whole(self, store: BlockingStore, chat: Session) -> None:
        commit(chat, noise("one"))
        commit(chat, noise("two"))
        assert store.maintenance.stats().blob_bytes == 2 * SIZE
        assert (state_of(chat, 1), state_of(chat)) == (noise("one"), noise("two"))

    def test_a_state_below_the_bound_is_stored_whole(self, store: BlockingStore, chat: Session) -> None:
        small = noise("small", 4 * 1024 - 1)
        commit(chat, small)
        commit(chat, b"!" + small[1:])
        assert store.maintenance.stats().blob_bytes == 2 * len(small)

    def test_a_state_that_grew_over_the_bound_or_shrank_below_it_comes_back(self, chat: Session) -> None:
        sizes = (1, 4_000, 4_096, 200_000, 4_095, 80_000, 0)
        for size in sizes:
            commit(chat, noise("grows", size))
        assert [state_of(chat, at) for at in range(1, 8)] == [noise("grows", size) for size in sizes]

    def test_a_small_state_that_grows_with_each_turn_takes_little_more_than_it_holds(
        self, store: BlockingStore, chat: Session
    ) -> None:
        turns = 60
        for turn in range(1, turns + 1):
            commit(chat, noise("chat", 400 * turn))
        # Stored whole, the states would take 30 times as much as the last one.
        assert store.maintenance.stats().blob_bytes < 8 * 400 * turns
        assert [state_of(chat, at) for at in (1, 30, 60)] == [noise("chat", 400 * turn) for turn in (1, 30, 60)]
        assert store.maintenance.verify().findings == ()

    def test_a_state_that_goes_back_and_forth_comes_back(self, store: BlockingStore, chat: Session) -> None:
        order = (0, 1, 0, 2, 1, 2, 2, 0)
        for number in order:
            commit(chat, changed(number))
        assert store.maintenance.stats().blobs == 3
        assert [state_of(chat, at) for at in range(1, 9)] == [changed(number) for number in order]

    def test_a_state_is_kept_by_its_ref_and_changed_later(self, store: BlockingStore, chat: Session) -> None:
        commit(chat, changed(0))
        kept = commit(chat, changed(1)).manifest.ref("execution_state")
        chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=kept)))
        commit(chat, changed(2))
        assert [state_of(chat, at) for at in (1, 2, 3, 4)] == [changed(0), changed(1), changed(1), changed(2)]
        assert store.maintenance.stats().blob_bytes < SIZE + 1_000

    def test_a_turn_with_a_large_state_is_replayed(self, chat: Session) -> None:
        commit(chat, changed(0), turn_id="t1")
        first = commit(chat, changed(1), turn_id="t2")
        again = commit(chat, changed(1), turn_id="t2")
        assert (again.revision, again.replayed, again.manifest) == (2, True, first.manifest)

    def test_a_store_that_never_saw_the_state_continues_where_another_one_stopped(self, bench: Bench) -> None:
        for number in range(6):
            store = bench.open()
            commit(store.sessions.handle("chat"), changed(number))
        store = bench.open()
        assert store.maintenance.stats().blob_bytes < SIZE + 15 * 120 + 5 * 100
        session = store.sessions.handle("chat")
        assert [state_of(session, at) for at in range(1, 7)] == [changed(number) for number in range(6)]

    def test_the_same_state_is_whole_in_one_family_and_a_delta_in_another(
        self, store: BlockingStore, chat: Session
    ) -> None:
        commit(chat, changed(0))
        as_delta = commit(chat, changed(1))
        mail = store.sessions.create("mail")
        whole = commit(mail, changed(1))
        assert as_delta.manifest == whole.manifest
        assert (state_of(chat), state_of(mail)) == (changed(1), changed(1))
        assert 2 * SIZE < store.maintenance.stats().blob_bytes < 2 * SIZE + 500
        assert store.maintenance.verify().findings == ()

    # Removal.

    def test_a_key_frame_stays_while_a_delta_needs_it_and_goes_with_the_last_one(
        self, store: BlockingStore, chat: Session
    ) -> None:
        for number in range(3):
            commit(chat, changed(number))
        store.maintenance.prune(HEAD_ONLY)
        report = store.maintenance.collect_garbage()
        assert (report.roots, report.retained_blobs, report.deleted_blobs) == (1, 2, 1)
        assert state_of(chat) == changed(2)
        assert store.maintenance.verify().findings == ()
        # The next delta uses the same key frame, which no revision names now.
        commit(chat, changed(3))
        store.maintenance.prune(HEAD_ONLY)
        assert store.maintenance.collect_garbage().deleted_blobs == 1
        assert state_of(chat) == changed(3)
        commit(chat, b"small")
        store.maintenance.prune(HEAD_ONLY)
        report = store.maintenance.collect_garbage()
        assert (report.retained_blobs, report.deleted_blobs) == (1, 2)
        assert store.maintenance.stats().blob_bytes == len(b"small")
        assert store.maintenance.verify().findings == ()

    def test_a_key_frame_that_was_collected_is_not_used_again(self, store: BlockingStore, chat: Session) -> None:
        commit(chat, changed(0))
        commit(chat, changed(1))
        commit(chat, b"small")
        store.maintenance.prune(HEAD_ONLY)
        assert store.maintenance.collect_garbage().deleted_blobs == 2
        # The same states come again, after their contents were collected.
        commit(chat, changed(1))
        commit(chat, changed(2))
        assert (state_of(chat, 4), state_of(chat)) == (changed(1), changed(2))
        assert store.maintenance.verify().findings == ()

    def test_another_store_collects_the_key_frame_that_a_store_remembers(self, bench: Bench) -> None:
        writer, other = bench.open(), bench.open()
        chat = writer.sessions.create("chat")
        commit(chat, changed(0))
        commit(chat, changed(1))
        theirs = other.sessions.handle("chat")
        commit(theirs, noise("new altogether"))
        other.maintenance.prune(HEAD_ONLY)
        assert other.maintenance.collect_garbage().deleted_blobs == 2
        commit(theirs, changed(1))
        commit(chat, changed(2))
        assert (state_of(chat, 4), state_of(theirs)) == (changed(1), changed(2))
        assert other.maintenance.verify().findings == ()

    def test_a_fork_continues_with_the_key_frame_of_its_source_and_keeps_it(
        self, store: BlockingStore, chat: Session
    ) -> None:
        for number in range(3):
            commit(chat, changed(number))
        fork = store.sessions.fork("chat", at=2, into="fork")
        commit(fork, changed(3))
        assert store.maintenance.stats().blob_bytes < SIZE + 1_500
        store.sessions.delete("chat")
        store.maintenance.collect_garbage()
        assert (state_of(fork, 1), state_of(fork)) == (changed(1), changed(3))
        assert store.maintenance.verify().findings == ()
        commit(fork, changed(4))
        store.sessions.delete("fork")
        assert store.maintenance.stats().blobs == 0

    def test_a_vacuum_and_a_deletion_leave_the_large_states_of_others(
        self, store: BlockingStore, chat: Session
    ) -> None:
        mail = store.sessions.create("mail")
        for number in range(2):
            commit(chat, changed(number))
            commit(mail, changed(number))
        store.maintenance.vacuum()
        store.sessions.delete("mail")
        assert [state_of(chat, at) for at in (1, 2)] == [changed(0), changed(1)]
        assert store.maintenance.stats().blobs == 2

    def test_collecting_beside_turns_that_continue_with_key_frames_takes_none_that_they_need(
        self, bench: Bench
    ) -> None:
        writer, cleaner = bench.open(), bench.open()
        session = writer.sessions.create("chat")

        def write() -> object:
            for number in range(12):
                # Every fourth state is unrelated, so that key frames become garbage and are needed again.
                commit(session, changed(number % 3) if number % 4 else noise("between"))
            return "committed"

        def clean() -> object:
            for _ in range(12):
                cleaner.maintenance.prune(HEAD_ONLY)
                cleaner.maintenance.collect_garbage()
            return "cleaned"

        calls: list[Callable[[], object]] = [write, clean]
        assert at_once(*calls) == ["committed", "cleaned"]
        assert state_of(session) == changed(2)
        assert writer.maintenance.verify().findings == ()
