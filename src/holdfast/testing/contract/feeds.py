"""The feed of changed sessions: every session that changed, in the order of change, which is exact to the minute."""

from __future__ import annotations

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.testing.contract.sessions import START_MS


class FeedContract(Contract):
    """`store.sessions.list` with `changed_since_ms`."""

    def test_the_feed_of_changes_is_exact_to_the_minute_and_starts_at_the_millisecond(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        first, second = store.sessions.create("a"), store.sessions.create("b")
        clock.advance(60_000 - START_MS % 60_000)
        minute_ms = clock.now_ms()
        second.commit(holdfast.Commit())
        clock.advance(10)
        first.commit(holdfast.Commit())
        # Both changed within one minute, so they come in the order of creation.
        assert [one.session_id for one in store.sessions.list(changed_since_ms=minute_ms)] == ["a", "b"]
        assert [one.session_id for one in store.sessions.list(changed_since_ms=minute_ms + 1)] == ["a"]
        page = store.sessions.list(changed_since_ms=minute_ms, limit=1)
        assert [one.session_id for one in store.sessions.list(changed_since_ms=minute_ms, after=page.next)] == ["b"]

    def test_the_feed_of_changes_goes_in_their_order(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        minute_ms = 60_000
        for name in "abcd":
            store.sessions.create(name, owner="ada" if name in "ac" else "bob")
            clock.advance(minute_ms)
        store.sessions.handle("a").commit(holdfast.Commit())
        feed = store.sessions.list(changed_since_ms=START_MS + minute_ms, limit=3)
        rest = store.sessions.list(changed_since_ms=START_MS + minute_ms, limit=3, after=feed.next)
        assert [[one.session_id for one in page] for page in (feed, rest)] == [["b", "c", "d"], ["a"]]
        assert rest.next is None
        since = store.sessions.list(changed_since_ms=START_MS + 2 * minute_ms, owner="ada")
        assert [one.session_id for one in since] == ["c", "a"]
        assert store.sessions.list(changed_since_ms=START_MS + 4 * minute_ms + 1).items == ()
        with refused(bench, holdfast.InvalidRequest):
            store.sessions.list(after=feed.next)

    def test_an_iterated_feed_shows_everything_at_least_once_and_again_after_each_change(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        """A changed item moves to the end of a feed, so an iteration comes to it again."""
        note = holdfast.events.EventType("note", after_terminal=True)
        for name in "abcdef":
            store.sessions.create(name)
            store.processes.register(
                holdfast.ProcessRegistration(name, holdfast.processes.External(), event_types=[note])
            )
            store.processes.complete(name, holdfast.processes.Completed())
            clock.advance(60_000)
        seen: list[str] = []
        for one in holdfast.every(store.sessions.list, changed_since_ms=0, limit=2):
            seen.append(one.session_id)
            if len(seen) in {1, 4}:  # once behind the cursor, once before it
                store.sessions.handle("a" if len(seen) == 1 else "f").commit(holdfast.Commit())
                clock.advance(60_000)
        assert seen == ["a", "b", "c", "d", "e", "a", "f"]
        seen = []
        for process in holdfast.every(store.processes.ended, limit=2):
            seen.append(process.id)
            if len(seen) in {1, 4}:
                clock.advance(1)
                store.events.append("a" if len(seen) == 1 else "f", "note")
        assert seen == ["a", "b", "c", "d", "e", "a", "f"]
