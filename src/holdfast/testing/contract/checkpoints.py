"""Checkpoints: the store mints every ref, a ref alone means "unchanged", and stored content comes back unchanged."""

from __future__ import annotations

import hashlib

import pytest

import holdfast
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import UnknownRef
from holdfast.sessions import AgentFrame, CheckpointManifest, Ref
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.testing.contract.graph import loaded

STATE = {"turn": 1}
STATE_REF = "json-sha256:" + hashlib.sha256(b'{"turn":1}').hexdigest()
STACK_REF = "bytes-sha256:" + hashlib.sha256(b"stack").hexdigest()

VALUES: dict[str, holdfast.Document] = {
    "null": None,
    "false": False,
    "zero": 0,
    "empty-text": "",
    "empty-list": [],
    "empty-dict": {},
    "no-bytes": b"",
    "bytes-null": b"null",
    "text-null": "null",
    "large-bytes": b"\x00\xff" * 5_000,
    "document": {"z": 1, "a": {"": ["é\u0000"]}},
    "whole-float": 1.0,
    "smallest": -(2**63),
    "largest": 2**64 - 1,
}


class CheckpointContract(Contract):
    """Checkpoints and frames of commits."""

    @pytest.fixture
    def chat(self, store: BlockingStore) -> Session:
        return store.sessions.create("chat")

    # Refs.

    def test_every_component_that_is_sent_gets_a_ref_of_its_content(self, chat: Session) -> None:
        receipt = chat.commit(
            holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=STATE, execution_state=b"stack"))
        )
        assert receipt.manifest.refs == {"turn_state": STATE_REF, "execution_state": STACK_REF}
        view = loaded(chat)
        assert (view.manifest, view.checkpoint_ref) == (receipt.manifest, receipt.checkpoint_ref)
        assert view.checkpoint == holdfast.Checkpoint(turn_state=STATE, execution_state=b"stack")

    def test_a_ref_without_a_body_keeps_the_state_over_many_turns(self, chat: Session) -> None:
        manifest = chat.commit(
            holdfast.Commit(
                checkpoint=holdfast.Checkpoint(
                    turn_state={"turn": 0}, tool_state={"generation": 9}, execution_state=b"stack"
                )
            )
        ).manifest
        for turn in range(1, 6):
            kept = holdfast.Checkpoint.keeping(manifest, turn_state={"turn": turn})
            manifest = chat.commit(holdfast.Commit(checkpoint=kept)).manifest
            assert sorted(manifest.refs) == ["execution_state", "tool_state", "turn_state"]
        assert loaded(chat).checkpoint == holdfast.Checkpoint(
            turn_state={"turn": 5}, tool_state={"generation": 9}, execution_state=b"stack"
        )

    def test_a_component_may_be_sent_by_the_ref_that_the_manifest_names(self, chat: Session) -> None:
        receipt = chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=b"stack")))
        chat.commit(
            holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=receipt.manifest.ref("execution_state")))
        )
        assert loaded(chat).checkpoint == holdfast.Checkpoint(execution_state=b"stack")

    def test_a_ref_may_move_to_another_component(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=STATE)))
        moved = holdfast.Checkpoint(tool_state=Ref(STATE_REF), others={"memory": Ref(STATE_REF)})
        chat.commit(holdfast.Commit(checkpoint=moved))
        assert loaded(chat).checkpoint == holdfast.Checkpoint(tool_state=STATE, others={"memory": STATE})

    def test_a_ref_may_name_a_body_that_comes_with_the_same_commit(self, chat: Session) -> None:
        sent = holdfast.Checkpoint(turn_state=STATE, others={"copy": Ref(STATE_REF)})
        assert chat.commit(holdfast.Commit(checkpoint=sent)).manifest.refs == {
            "turn_state": STATE_REF,
            "copy": STATE_REF,
        }
        assert loaded(chat).checkpoint == holdfast.Checkpoint(turn_state=STATE, others={"copy": STATE})

    @pytest.mark.parametrize("first", [True, False], ids=["first-commit", "later-commit"])
    def test_an_unknown_ref_refuses_the_whole_turn(self, store: BlockingStore, bench: Bench, first: bool) -> None:
        session = store.sessions.handle("chat")
        if not first:
            session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state={"other": 1})))
        turn = holdfast.Commit(
            turn_id="t",
            graph=holdfast.Append([holdfast.Node("n1")], leaf="n1"),
            usage=[holdfast.Usage("turn", "m", input_tokens=1)],
            checkpoint=holdfast.Checkpoint(turn_state={"new": 1}, tool_state=Ref(STATE_REF)),
        )
        with refused(bench, UnknownRef) as info:
            session.commit(turn)
        assert isinstance(info.value, UnknownRef)
        assert (info.value.field, info.value.ref) == ("checkpoint.tool_state", STATE_REF)

    def test_a_ref_of_another_session_is_unknown(self, store: BlockingStore, chat: Session, bench: Bench) -> None:
        store.sessions.create("other").commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=STATE)))
        with refused(bench, UnknownRef):
            chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=Ref(STATE_REF))))

    @pytest.mark.parametrize(
        "ref",
        ["", "turn_state", "0" * 64, "json-sha256:abc", "json-sha256:" + "G" * 64, "yaml-sha256:" + "0" * 64],
        ids=["empty", "word", "bare-hash", "short", "not-hex", "unknown-format"],
    )
    def test_only_values_of_receipts_are_refs(self, chat: Session, bench: Bench, ref: str) -> None:
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=Ref(ref))))
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(frames=[AgentFrame("f", execution_state_ref=ref)]))

    def test_a_ref_that_reads_bytes_as_a_document_is_unknown(self, chat: Session, bench: Bench) -> None:
        chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=b"stack")))
        forged = Ref(STACK_REF.replace("bytes", "json"))
        with refused(bench, UnknownRef):
            chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=forged)))

    # Kept and dropped components.

    def test_a_turn_without_a_checkpoint_leaves_it_as_it_is(self, chat: Session) -> None:
        first = chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=STATE)))
        second = chat.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("n1")], leaf="n1")))
        assert (second.manifest, second.checkpoint_ref) == (first.manifest, first.checkpoint_ref)
        assert loaded(chat).checkpoint == holdfast.Checkpoint(turn_state=STATE)

    def test_a_component_that_is_left_out_is_gone_and_stays_in_history(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=STATE, tool_state={"generation": 9})))
        chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state={"turn": 2})))
        chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint()))
        assert [loaded(chat, at=revision).checkpoint for revision in (1, 2, 3)] == [
            holdfast.Checkpoint(turn_state=STATE, tool_state={"generation": 9}),
            holdfast.Checkpoint(turn_state={"turn": 2}),
            holdfast.Checkpoint(),
        ]

    def test_a_component_of_an_earlier_retained_revision_can_be_kept_again(self, chat: Session) -> None:
        chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=b"stack")))
        chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint()))
        chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=Ref(STACK_REF))))
        assert loaded(chat).checkpoint == holdfast.Checkpoint(execution_state=b"stack")

    def test_no_checkpoint_was_ever_sent_is_not_an_empty_checkpoint(self, chat: Session) -> None:
        receipt = chat.commit(holdfast.Commit(turn_id="t"))
        assert (receipt.checkpoint_ref, receipt.manifest) == (None, CheckpointManifest())
        assert (loaded(chat).checkpoint, loaded(chat).checkpoint_ref) == (None, None)
        assert chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint())).checkpoint_ref is not None
        assert loaded(chat).checkpoint == holdfast.Checkpoint()

    def test_equal_checkpoints_have_equal_refs_and_others_do_not(self, chat: Session) -> None:
        refs = [
            chat.commit(holdfast.Commit(checkpoint=checkpoint)).checkpoint_ref
            for checkpoint in (
                holdfast.Checkpoint(turn_state=STATE),
                holdfast.Checkpoint(tool_state=STATE),
                holdfast.Checkpoint(turn_state=STATE),
            )
        ]
        assert refs[0] == refs[2]
        assert refs[0] != refs[1]

    # Names and kinds of components.

    @pytest.mark.parametrize("name", ["memory", "with space", "é", "a.b/c", "refs", "others", "x" * 500])
    def test_a_component_may_have_any_name(self, chat: Session, name: str) -> None:
        manifest = chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(others={name: STATE}))).manifest
        assert manifest.refs == {name: STATE_REF}
        chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint.keeping(manifest)))
        assert loaded(chat).checkpoint == holdfast.Checkpoint(others={name: STATE})

    @pytest.mark.parametrize("name", ["", " ", "a\0b", "x" * 513, "turn_state"])
    def test_a_component_without_a_usable_name_is_refused(self, chat: Session, bench: Bench, name: str) -> None:
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(others={name: STATE})))

    @pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
    def test_a_component_comes_back_as_the_kind_of_value_that_it_was(
        self, bench: Bench, chat: Session, value: holdfast.Document
    ) -> None:
        chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(plugin_state=value)))
        checkpoint = loaded(bench.open().sessions.handle("chat")).checkpoint
        assert checkpoint is not None
        assert list(checkpoint.components()) == ["plugin_state"]
        stored = checkpoint.plugin_state
        assert (type(stored), stored) == (type(value), value)

    def test_bytes_and_a_document_of_the_same_content_are_distinguished(self, chat: Session) -> None:
        both = holdfast.Checkpoint(turn_state=[1], execution_state=b"[1]")
        refs = chat.commit(holdfast.Commit(checkpoint=both)).manifest.refs
        assert refs["turn_state"] != refs["execution_state"]
        assert loaded(chat).checkpoint == both

    @pytest.mark.parametrize(
        "value",
        [float("nan"), float("inf"), {"k": (1, 2)}, {1: 2}, "\ud800", {"k": b"x"}, {1, 2}, 2**64],
        ids=["nan", "inf", "tuple", "number-key", "surrogate", "bytes-inside", "set", "beyond-64-bits"],
    )
    def test_values_that_json_cannot_hold_are_refused(
        self, chat: Session, bench: Bench, value: holdfast.Document
    ) -> None:
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=value)))

    def test_the_same_content_is_stored_once(self, store: BlockingStore, chat: Session) -> None:
        body = b"stack" * 1_000
        for turn in range(5):
            chat.commit(
                holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=body, others={f"copy{turn}": body}))
            )
        assert store.maintenance.stats().blobs == 1

    # Frames.

    def test_frames_and_their_execution_states_come_back(self, bench: Bench, chat: Session) -> None:
        frames = (
            AgentFrame("f0", status="superseded", created_at_ms=1, assignment={"model": "m"}),
            AgentFrame(
                "f1",
                previous_frame_id="f0",
                reason="handed-over",
                caused_by={"type": "turn", "turn_id": "t"},
                created_at_ms=2,
                assignment={"policy": [1]},
                turn_options={"payload": {}},
                execution_state=b"stack",
            ),
        )
        chat.commit(
            holdfast.Commit(
                frames=frames, current_frame_id="f1", checkpoint=holdfast.Checkpoint(execution_state=b"stack")
            )
        )
        view = loaded(bench.open().sessions.handle("chat"))
        assert view.current_frame_id == "f1"
        assert view.frames[0] == frames[0]
        assert (view.frames[1].reason, view.frames[1].execution_state) == ("handed-over", b"stack")
        assert view.frames[1].execution_state_ref == STACK_REF
        assert view.checkpoint == holdfast.Checkpoint(execution_state=b"stack")

    def test_a_frame_keeps_its_execution_state_by_ref(self, store: BlockingStore, chat: Session) -> None:
        chat.commit(holdfast.Commit(frames=[AgentFrame("f1", execution_state=b"stack")]))
        kept = AgentFrame("f1", reason="continue_as", execution_state_ref=STACK_REF)
        chat.commit(holdfast.Commit(frames=[kept]))
        chat.commit(holdfast.Commit(current_frame_id="f1"))
        store.maintenance.collect_garbage()
        view = loaded(chat)
        assert [(frame.reason, frame.execution_state) for frame in view.frames] == [("continue_as", b"stack")]
        assert view.current_frame_id == "f1"

    def test_a_frame_with_an_unknown_execution_state_is_refused(self, chat: Session, bench: Bench) -> None:
        with refused(bench, UnknownRef):
            chat.commit(holdfast.Commit(frames=[AgentFrame("f1", execution_state_ref=STACK_REF)]))

    def test_a_frames_execution_state_is_bytes_and_not_a_document(self, chat: Session, bench: Bench) -> None:
        chat.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=STATE)))
        with refused(bench, holdfast.HoldfastError) as info:
            chat.commit(holdfast.Commit(frames=[AgentFrame("f1", execution_state_ref=STATE_REF)]))
        assert isinstance(info.value, holdfast.InvalidRequest | UnknownRef)

    @pytest.mark.parametrize(
        "frames",
        [
            [AgentFrame("f"), AgentFrame("f")],
            [AgentFrame(" ")],
            [AgentFrame("f", status="asleep")],
            [AgentFrame("f", created_at_ms=-1)],
            [AgentFrame("f", assignment={"k": {1}})],
        ],
        ids=["twice", "blank", "status", "time", "document"],
    )
    def test_a_malformed_frame_is_refused(self, chat: Session, bench: Bench, frames: list[AgentFrame]) -> None:
        with refused(bench, holdfast.InvalidRequest):
            chat.commit(holdfast.Commit(frames=frames))

    # Hydration and limits.

    def test_a_second_connection_reads_the_state_of_the_whole_turn(self, bench: Bench, chat: Session) -> None:
        chat.commit(
            holdfast.Commit(
                config={"provider_id": "p", "model": {"id": "m"}},
                checkpoint=holdfast.Checkpoint(
                    tool_state={"generation": 9, "tools": {}}, others={"plugin_revision": 12}
                ),
                usage=[holdfast.Usage("turn", "m", input_tokens=11)],
            )
        )
        view = loaded(bench.open().sessions.handle("chat"))
        assert view.config == {"provider_id": "p", "model": {"id": "m"}}
        assert view.checkpoint == holdfast.Checkpoint(
            tool_state={"generation": 9, "tools": {}}, others={"plugin_revision": 12}
        )
        assert view.ledger == (holdfast.Usage("turn", "m", input_tokens=11),)

    @pytest.mark.parametrize("value", [b"x" * 101, "x" * 99], ids=["bytes", "document"])
    def test_a_component_beyond_the_limit_is_refused(self, bench: Bench, value: holdfast.Document) -> None:
        session = bench.open(limits=holdfast.Limits(component_bytes=100)).sessions.handle("chat")
        with refused(bench, holdfast.InvalidRequest) as info:
            session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=value)))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert (info.value.field, info.value.limit) == ("checkpoint.turn_state", 100)
        assert session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=value[1:]))).revision == 1

    def test_documents_may_nest_as_deep_as_the_limit_and_no_deeper(self, bench: Bench) -> None:
        session = bench.open(limits=holdfast.Limits(document_depth=3)).sessions.handle("chat")
        with refused(bench, holdfast.InvalidRequest):
            session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=[{"k": [[]]}])))
        session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=[{"k": []}])))
        assert loaded(session).checkpoint == holdfast.Checkpoint(turn_state=[{"k": []}])
