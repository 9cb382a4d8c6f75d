"""Artifacts: a put artifact comes back under its kind and ref, and a ref that names its content must match it."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.maintenance import GarbageReport
from holdfast.processes import Completed
from holdfast.rules.artifacts import result_ref
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, at_once, refused

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


class ArtifactContract(Contract):
    """`store.artifacts`."""

    def test_an_artifact_comes_back_through_any_handle(self, store: BlockingStore, bench: Bench) -> None:
        assert store.artifacts.put("module", "main", b"code\x00\xff") == "main"
        assert bench.open().artifacts.get("module", "main") == holdfast.artifacts.Artifact(
            "module", "main", b"code\x00\xff", 1_700_000_000_000, sha256(b"code\x00\xff").hexdigest()
        )

    def test_an_artifact_that_was_never_put_yields_none(self, store: BlockingStore) -> None:
        store.artifacts.put("module", "main", b"code")
        assert store.artifacts.get("module", "Main") is None
        assert store.artifacts.get("Module", "main") is None

    def test_kinds_are_namespaces(self, store: BlockingStore) -> None:
        store.artifacts.put("module", "main", b"code")
        store.artifacts.put("environment", "main", b"{}")
        assert store.artifacts.delete("module", "main") is True
        assert store.artifacts.get("module", "main") is None
        kept = store.artifacts.get("environment", "main")
        assert kept is not None
        assert kept.data == b"{}"

    def test_a_kind_and_a_ref_that_run_together_alike_stay_apart(self, store: BlockingStore) -> None:
        store.artifacts.put("a", "b/c", b"1")
        store.artifacts.put("a/b", "c", b"2")
        found = [store.artifacts.get("a", "b/c"), store.artifacts.get("a/b", "c")]
        assert [artifact.data for artifact in found if artifact is not None] == [b"1", b"2"]

    def test_a_later_put_replaces_the_earlier_one(self, store: BlockingStore, clock: ManualClock) -> None:
        store.artifacts.put("module", "main", b"old" * 1_000)
        clock.advance(5)
        store.artifacts.put("module", "main", b"new")
        assert store.artifacts.get("module", "main") == holdfast.artifacts.Artifact(
            "module", "main", b"new", 1_700_000_000_005, sha256(b"new").hexdigest()
        )
        assert store.maintenance.stats().artifacts == 1

    def test_content_gets_the_ref_that_its_hash_gives_it(self, store: BlockingStore) -> None:
        ref = store.artifacts.put_content("module", b"abc")
        assert ref == f"module:sha256:{ABC}"
        assert store.artifacts.put_content("module", b"abc") == ref
        assert store.artifacts.put("module", ref, b"abc") == ref
        assert store.maintenance.stats().artifacts == 1
        other = store.artifacts.put_content("environment", b"abc")
        assert other == f"environment:sha256:{ABC}"
        found = store.artifacts.get("environment", other)
        assert found is not None
        assert found.data == b"abc"

    @pytest.mark.parametrize("ref", [f"module:sha256:{ABC}", f"module:sha256:{ABC.upper()}", "module:sha256:"])
    def test_a_content_ref_with_other_bytes_is_refused(self, store: BlockingStore, bench: Bench, ref: str) -> None:
        store.artifacts.put_content("module", b"abc")
        with refused(bench, holdfast.InvalidRequest) as info:
            store.artifacts.put("module", ref, b"abd")
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "ref"

    def test_deleting_says_whether_there_was_anything(self, store: BlockingStore) -> None:
        store.artifacts.put("module", "main", b"code")
        assert store.artifacts.delete("module", "main") is True
        assert store.artifacts.delete("module", "main") is False
        assert store.artifacts.get("module", "main") is None

    @pytest.mark.parametrize("size", [0, 1, 255, 256, 100_000])
    def test_bytes_of_any_size_come_back_unchanged(self, store: BlockingStore, size: int) -> None:
        data = bytes(index * 7 % 251 for index in range(size))
        found = store.artifacts.get("module", store.artifacts.put_content("module", data))
        assert found is not None
        assert found.data == data

    @pytest.mark.parametrize(
        ("kind", "ref", "data", "field"),
        [
            (" ", "main", b"x", "kind"),
            ("module", "", b"x", "ref"),
            ("module", "a\0b", b"x", "ref"),
            ("module", "main", "text", "data"),
            ("module", "main", b"four", "data"),
        ],
        ids=["blank-kind", "empty-ref", "nul-in-ref", "text", "over-the-limit"],
    )
    def test_a_wrong_artifact_is_refused_and_its_field_named(
        self, bench: Bench, kind: str, ref: str, data: Any, field: str
    ) -> None:
        small = bench.open(limits=holdfast.Limits(artifact_bytes=3))
        small.artifacts.put("module", "main", b"abc")
        with refused(bench, holdfast.InvalidRequest) as info:
            small.artifacts.put(kind, ref, data)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == field

    # Checks that a store is opened with.

    def test_a_check_judges_the_artifacts_of_its_kind(self, bench: Bench) -> None:
        seen: list[tuple[str, bytes]] = []

        def of_even_length(ref: str, data: bytes) -> str | None:
            seen.append((ref, data))
            return f"{len(data)} bytes are odd" if len(data) % 2 else None

        store = bench.open(artifact_checks={"module": of_even_length})
        store.artifacts.put("module", "main", b"even")
        minted = store.artifacts.put_content("module", b"12")
        store.artifacts.put("environment", "main", b"odd")
        assert seen == [("main", b"even"), (minted, b"12")]
        for ref in ("main", None):
            with refused(bench, holdfast.InvalidRequest) as info:
                if ref is None:
                    store.artifacts.put_content("module", b"odd")
                else:
                    store.artifacts.put("module", ref, b"odd")
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == "data"
            assert "module artifact" in str(info.value)
            assert str(info.value).endswith("was refused by its check: 3 bytes are odd")
        assert seen[2] == ("main", b"odd")
        bench.open().artifacts.put("module", "other", b"odd")
        assert store.artifacts.get("module", "other") is not None, "what is stored is not checked again"
        assert store.artifacts.delete("module", "other") is True

    def test_a_check_that_raises_refuses_and_is_the_cause(self, bench: Bench) -> None:
        problem = ValueError("line 3 " + "x" * 100_000)

        def parse(ref: str, data: bytes) -> None:
            raise problem

        store = bench.open(artifact_checks={"module": parse})
        with refused(bench, holdfast.InvalidRequest) as info:
            store.artifacts.put("module", "main", b"code")
        assert "'main' was refused by its check: ValueError: line 3 xxx" in str(info.value)
        assert (info.value.__cause__, len(str(info.value)) < 2_000) == (problem, True)

    @pytest.mark.parametrize("answer", [True, False, "", " ", b"no", 0, []], ids=repr)
    def test_a_check_that_answers_anything_else_stores_nothing(self, bench: Bench, answer: Any) -> None:
        store = bench.open(artifact_checks={"module": lambda _ref, _data: answer})
        with refused(bench, holdfast.InvalidRequest) as info:
            store.artifacts.put("module", "main", b"code")
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "artifact_checks['module']"

    def test_a_refused_put_is_refused_before_its_check_is_asked(self, bench: Bench) -> None:
        store = bench.open(
            limits=holdfast.Limits(artifact_bytes=3), artifact_checks={"module": lambda ref, data: pytest.fail(ref)}
        )
        for ref, data in (("main", b"four"), (f"module:sha256:{ABC}", b"abd"), ("", b"x")):
            with refused(bench, holdfast.InvalidRequest):
                store.artifacts.put("module", ref, data)

    def test_a_check_holds_no_writer_up_and_may_ask_the_store(self, bench: Bench) -> None:
        other = bench.open()
        other.artifacts.put("schema", "main", b"code")

        def as_the_schema_says(ref: str, data: bytes) -> str | None:
            # A write by another handle would block if the check ran inside a write transaction.
            other.artifacts.put("log", ref, data)
            schema = store.artifacts.get("schema", ref)
            return None if schema is not None and schema.data == data else "is not what the schema says"

        store = bench.open(artifact_checks={"module": as_the_schema_says})
        assert store.artifacts.put("module", "main", b"code") == "main"
        with pytest.raises(holdfast.InvalidRequest):
            store.artifacts.put("module", "main", b"other")
        kept, logged = store.artifacts.get("module", "main"), store.artifacts.get("log", "main")
        assert kept is not None
        assert logged is not None
        assert (kept.data, logged.data) == (b"code", b"other")

    def test_of_many_puts_at_once_one_is_there_whole(self, bench: Bench) -> None:
        handles = [bench.open() for _ in range(4)]
        outcomes = at_once(
            *(
                lambda handle=handle, index=index: handle.artifacts.put("module", "main", bytes([index]) * 1_000)
                for index, handle in enumerate(handles)
            )
        )
        assert outcomes == ["main"] * 4
        found = handles[0].artifacts.get("module", "main")
        assert found is not None
        assert found.data in [bytes([index]) * 1_000 for index in range(4)]

    def test_housekeeping_never_touches_artifacts_of_a_runtime(self, store: BlockingStore, clock: ManualClock) -> None:
        store.artifacts.put("module", "main", b"code" * 1_000)
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(config={"module": "main"}))
        session.commit(holdfast.Commit(config={"module": "other"}))
        clock.advance(1_000)
        store.maintenance.prune(
            holdfast.RetentionPolicy(
                keep_revisions=1,
                settled_batches_older_than_ms=0,
                terminal_processes_older_than_ms=0,
                occurrences_older_than_ms=0,
            )
        )
        store.maintenance.collect_garbage()
        store.sessions.delete("chat")
        found = store.artifacts.get("module", "main")
        assert found is not None
        assert found.data == b"code" * 1_000
        report = store.maintenance.verify()
        assert (report.checked_artifacts, report.findings) == (1, ())

    def test_the_results_of_a_run_are_garbage_once_the_run_is_gone(self, bench: Bench, clock: ManualClock) -> None:
        store = bench.open(limits=holdfast.Limits(artifact_bytes=4_000))
        ended = holdfast.RetentionPolicy(terminal_processes_older_than_ms=0)

        def put(run_id: str) -> list[str]:
            process = store.processes.get(run_id)
            assert process is not None
            refs: list[str] = []
            for part in (b"a" * 4_000, b"b"):
                ref = result_ref(run_id, process.created_at_ms, part, store.limits)
                assert ref is not None
                refs.append(store.artifacts.put("run-result", ref, part))
            return refs

        store.artifacts.put("run-result", "of-a-user", b"not ours")
        store.artifacts.put("zoo", f"{clock.now_ms()}/gone/{'0' * 32}", b"another kind")
        for run_id in ("goes/on", "ends"):
            store.processes.start("research", id=run_id)
            put(run_id)
        assert len(store.artifacts.list()) == 6
        store.processes.complete("ends", Completed())
        assert store.maintenance.collect_garbage() == GarbageReport(0, 0, 0, 0), "the run can still be asked"
        clock.advance(1)
        assert store.maintenance.prune(ended).processes == 1
        store.processes.start("research", id="ends")
        kept = put("ends")
        assert store.maintenance.collect_garbage() == GarbageReport(0, 0, 0, 4_001, 0, 2)
        assert store.maintenance.collect_garbage() == GarbageReport(0, 0, 0, 0)
        left = [one.ref for one in store.artifacts.list()]
        assert len(left) == 6
        assert set(kept) <= set(left), "those of the later run of that name"
