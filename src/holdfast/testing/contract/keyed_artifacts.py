"""Artifacts as a keyed byte store: pages by kind and prefix, puts over what was seen, and deletion by prefix."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

import holdfast
from holdfast.artifacts import Artifact
from holdfast.blocking import BlockingStore
from holdfast.columns import PAGE_BYTES
from holdfast.errors import ArtifactConflict
from holdfast.testing.contract.bench import Bench, Contract, at_once, refused

LAST = "\U0010ffff"


def _refs(page: holdfast.Page[Any]) -> list[str]:
    return [one.ref for one in page]


def _put(store: BlockingStore, kind: str, *refs: str) -> None:
    for ref in refs:
        store.artifacts.put(kind, ref, ref.encode())


class KeyedArtifactContract(Contract):
    """`store.artifacts` by kind and prefix."""

    # Pages.

    def test_a_listing_of_a_kind_has_no_other_kind(self, store: BlockingStore) -> None:
        _put(store, "report", "b", "a")
        for other in ("repor", "report\x01", "report/", "reports", "Report"):
            _put(store, other, "a", "z")
        assert _refs(store.artifacts.list(kind="report")) == ["a", "b"]
        assert _refs(store.artifacts.get_many("report")) == ["a", "b"]
        assert _refs(store.artifacts.list(kind="none")) == []
        assert store.artifacts.get_many("none") == holdfast.Page(())

    def test_a_prefix_takes_the_refs_that_begin_with_it(self, store: BlockingStore) -> None:
        years = ["2026", "2026/", "2026/a", f"2026/{LAST}", f"2026/{LAST}a", "20260", "2027/a"]
        refs = [*years, LAST, f"{LAST}b", "é/1", "é/😀"]
        _put(store, "report", *refs)
        _put(store, "other", "2026/a")
        for prefix in ("", "2026", "2026/", f"2026/{LAST}", LAST, "é/", "nothing"):
            wanted = sorted(ref for ref in refs if ref.startswith(prefix))
            assert _refs(store.artifacts.list(kind="report", prefix=prefix, limit=50)) == wanted
            assert [one.data.decode() for one in store.artifacts.get_many("report", prefix=prefix)] == wanted

    def test_pages_follow_each_other_and_end(self, store: BlockingStore) -> None:
        refs = [f"p/{number:02}" for number in range(7)]
        _put(store, "report", "o", *refs, "q")
        seen: list[str] = []
        loaded: list[str] = []
        after: str | None = None
        for size in (3, 3, 1):
            page = store.artifacts.list(kind="report", prefix="p/", after=after, limit=3)
            full = store.artifacts.get_many("report", prefix="p/", after=after, limit=3)
            assert (len(page), full.next) == (size, page.next)
            seen += _refs(page)
            loaded += _refs(full)
            after = page.next
        assert (seen, loaded, after) == (refs, refs, None)

    def test_a_cursor_from_outside_the_range_shows_the_range_alone(self, store: BlockingStore) -> None:
        _put(store, "a", "1", "2")
        _put(store, "b", "1", "2")
        before, behind = store.artifacts.list(limit=1).next, store.artifacts.list(limit=3).next
        assert _refs(store.artifacts.list(kind="b", after=before)) == ["1", "2"]
        assert _refs(store.artifacts.list(kind="a", after=behind)) == []
        assert _refs(store.artifacts.list(kind="b", after=behind)) == ["2"]

    def test_a_summary_tells_the_hash_of_the_bytes(self, store: BlockingStore) -> None:
        store.artifacts.put("report", "may", b"abc" * 1_000)
        hash = sha256(b"abc" * 1_000).hexdigest()
        [one] = store.artifacts.list()
        assert (one.size_bytes, one.hash) == (3_000, hash)
        assert list(store.artifacts.get_many("report")) == [
            Artifact("report", "may", b"abc" * 1_000, one.stored_at_ms, hash)
        ]

    def test_a_page_with_bytes_ends_early(self, store: BlockingStore) -> None:
        large = bytes(PAGE_BYTES // 2)
        for ref in ("a", "b", "c"):
            store.artifacts.put("report", ref, large)
        first = store.artifacts.get_many("report")
        assert _refs(first) == ["a", "b"]
        assert _refs(store.artifacts.get_many("report", after=first.next)) == ["c"]
        assert len(store.artifacts.list(kind="report")) == 3

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"kind": " "}, "kind"),
            ({"prefix": "a"}, "prefix"),
            ({"kind": "report", "prefix": "a\0b"}, "prefix"),
            ({"kind": "report", "prefix": None}, "prefix"),
            ({"kind": "report", "after": "x"}, "after"),
            ({"kind": "report", "limit": 0}, "limit"),
        ],
        ids=["blank-kind", "prefix-without-kind", "nul", "no-prefix", "foreign-cursor", "no-limit"],
    )
    def test_a_wrong_listing_is_refused_and_its_field_named(
        self, store: BlockingStore, bench: Bench, options: Any, field: str
    ) -> None:
        with refused(bench, holdfast.InvalidRequest) as info:
            store.artifacts.list(**options)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == field

    # Puts over what was seen.

    def test_a_put_for_an_absent_artifact_stores_it_once(self, store: BlockingStore, bench: Bench) -> None:
        assert store.artifacts.put("report", "may", b"first", expected_hash=None) == "may"
        with refused(bench, ArtifactConflict) as info:
            store.artifacts.put("report", "may", b"second", expected_hash=None)
        assert isinstance(info.value, ArtifactConflict)
        assert (info.value.kind, info.value.ref, info.value.actual) == (
            "report", "may", sha256(b"first").hexdigest()
        )  # fmt: skip
        assert store.artifacts.put("report", "may", b"first", expected_hash=None) == "may", "a retry finds its own"

    def test_a_put_replaces_only_what_was_seen(self, store: BlockingStore, bench: Bench) -> None:
        store.artifacts.put("report", "may", b"first")
        [seen] = store.artifacts.list()
        store.artifacts.put("report", "may", b"second", expected_hash=seen.hash)
        with refused(bench, ArtifactConflict):
            store.artifacts.put("report", "may", b"third", expected_hash=seen.hash)
        assert [one.data for one in store.artifacts.get_many("report")] == [b"second"]
        store.artifacts.put("report", "may", b"second", expected_hash=seen.hash)

    def test_a_put_over_an_artifact_that_is_gone_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        with refused(bench, ArtifactConflict) as info:
            store.artifacts.put("report", "may", b"new", expected_hash="0" * 64)
        assert isinstance(info.value, ArtifactConflict)
        assert info.value.actual is None
        assert store.artifacts.get("report", "may") is None

    @pytest.mark.parametrize("expected", ["", "x", "0" * 63, "A" * 64, 7, b"0" * 64], ids=repr)
    def test_a_wrong_hash_is_refused(self, store: BlockingStore, bench: Bench, expected: Any) -> None:
        with refused(bench, holdfast.InvalidRequest) as info:
            store.artifacts.put("report", "may", b"new", expected_hash=expected)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "expected_hash"

    @pytest.mark.parametrize("is_there", [False, True], ids=["absent", "seen"])
    def test_of_many_puts_over_the_same_one_wins(self, bench: Bench, is_there: bool) -> None:
        handles = [bench.open() for _ in range(4)]
        expected: str | None = None
        if is_there:
            handles[0].artifacts.put("report", "may", b"seen")
            expected = sha256(b"seen").hexdigest()
        outcomes = at_once(
            *(
                lambda handle=handle, index=index: handle.artifacts.put(
                    "report", "may", bytes([index]) * 1_000, expected_hash=expected
                )
                for index, handle in enumerate(handles)
            )
        )
        [winner] = [index for index, outcome in enumerate(outcomes) if outcome == "may"]
        assert {type(outcome) for index, outcome in enumerate(outcomes) if index != winner} == {ArtifactConflict}
        found = handles[0].artifacts.get("report", "may")
        assert found is not None
        assert found.data == bytes([winner]) * 1_000

    def test_puts_of_one_transaction_are_stored_together_or_not(self, store: BlockingStore) -> None:
        store.artifacts.put("report", "june", b"here")

        def change() -> None:
            with store.transaction() as tx:
                tx.artifacts.put("report", "may", b"1", expected_hash=None)
                tx.artifacts.delete_many("report", prefix="j")
                tx.artifacts.put("report", "june", b"2", expected_hash="0" * 64)

        with pytest.raises(ArtifactConflict):
            change()
        assert _refs(store.artifacts.list()) == ["june"]
        with store.transaction() as tx:
            tx.artifacts.put("report", "may", b"1", expected_hash=None)
            tx.artifacts.put("report", "june", b"2", expected_hash=sha256(b"here").hexdigest())
            assert [one.data for one in tx.artifacts.get_many("report")] == [b"2", b"1"]
        assert _refs(store.artifacts.list()) == ["june", "may"]

    # Deletion by prefix.

    def test_a_prefix_is_deleted_with_its_artifacts_alone(self, store: BlockingStore) -> None:
        _put(store, "report", "2026", "2026/a", "2026/b", f"2026/{LAST}", "20260", "2027/a")
        _put(store, "reports", "2026/a")
        assert store.artifacts.delete_many("report", prefix="2026/") == 3
        assert store.artifacts.delete_many("report", prefix="2026/") == 0
        assert _refs(store.artifacts.list(kind="report")) == ["2026", "20260", "2027/a"]
        assert store.artifacts.delete_many("report", prefix="") == 3
        assert [(one.kind, one.ref) for one in store.artifacts.list()] == [("reports", "2026/a")]

    def test_a_deletion_needs_a_kind_and_a_prefix(self, store: BlockingStore, bench: Bench) -> None:
        _put(store, "report", "a")
        for kind, prefix, field in (("", "a", "kind"), ("report", None, "prefix"), ("report", 1, "prefix")):
            with refused(bench, holdfast.InvalidRequest) as info:
                store.artifacts.delete_many(kind, prefix=prefix)  # type: ignore[arg-type]
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == field
