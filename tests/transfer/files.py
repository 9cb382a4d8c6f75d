"""Helpers to change bundles: take one apart, and seal it again with matching hashes."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from typing import Any

import msgspec

import holdfast
from holdfast import transfer

KINDS = ("meta", "attachment", "node", "component", "frame", "head", "batch")
Lines = list[dict[str, Any]]


def exported(store: holdfast.BlockingStore, session_id: str = "chat") -> bytes:
    file = io.BytesIO()
    transfer.export(store, session_id, file)
    return file.getvalue()


def opened(data: bytes) -> tuple[dict[str, Any], Lines]:
    first, *lines = [json.loads(line) for line in data.splitlines()]
    return first["manifest"], lines


def sealed(manifest: dict[str, Any], lines: Lines, *, version: int = 1, **facts: Any) -> bytes:
    """Build a bundle whose counts and hashes match its lines, as a deliberate forger could."""
    body = [msgspec.json.encode(line) + b"\n" for line in lines]
    counts = dict.fromkeys(KINDS, 0) | Counter(line["line"] for line in lines)
    turn = [data for data, line in zip(body, lines, strict=True) if line["line"] not in {"attachment", "batch"}]
    manifest = manifest | {
        "counts": counts,
        "sha256": hashlib.sha256(b"".join(body)).hexdigest(),
        "turn_sha256": hashlib.sha256(b"".join(turn)).hexdigest(),
    }
    said = msgspec.json.encode(manifest | facts)
    first = {"format": "holdfast-session", "version": version, "sha256": hashlib.sha256(said).hexdigest()}
    return msgspec.json.encode({**first, "manifest": msgspec.Raw(said)}) + b"\n" + b"".join(body)


def read(data: bytes, limits: transfer.BundleLimits | None = None) -> transfer.Bundle:
    return transfer.Bundle(io.BytesIO(data), limits or transfer.BundleLimits())


def fill(store: holdfast.BlockingStore) -> None:
    """Create one session with a line of every kind."""
    chat = store.sessions.create("chat", name="Firsté", owner="ada")
    ref = chat.attachments.put(b"abc", media_type="text/plain")
    chat.commit(
        holdfast.Commit(
            turn_id="turn-1",
            graph=holdfast.Append(
                [holdfast.Node("n1", parent=None, payload={"a": 1}), holdfast.Node("n2", parent="n1")], leaf="n2"
            ),
            checkpoint=holdfast.Checkpoint(turn_state={"n": 1}, execution_state=b"\x00\xff"),
            config={"mode": "fast"},
            frames=[holdfast.sessions.AgentFrame("f1", execution_state=b"stack")],
            current_frame_id="f1",
            usage=[holdfast.Usage("turn", "some-model", input_tokens=3)],
            attachments=[ref.id],
        )
    )
    chat.attachments.record_intent("far", uri="s3://bucket/far", byte_count=5)
    store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1], source_key="first"))
    store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[2], source_key="last"))
