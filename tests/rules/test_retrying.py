"""Retries of runs: bounds and rare forms of a log, beside the contract's cases."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.processes import Failed
from holdfast.rules import retrying


def failed(store: holdfast.BlockingStore, run_id: str, *steps: Any) -> str:
    """Start a run with these events of type `step`, and let it fail."""
    store.processes.start("research", id=run_id)
    for step in steps:
        store.events.append(run_id, "step", step)
    store.processes.complete(run_id, Failed("no answer"))
    return run_id


def test_the_runs_that_one_call_retries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "MOST_RUNS", 2)
    with holdfast.open_blocking("memory:") as store:
        failed(store, "a")
        failed(store, "p", {"name": "~started:a", "value": "a"})
        failed(store, "q", {"name": "~started:b", "value": "b"}, {"name": "~started:c", "value": "c"})
        failed(store, "b")
        failed(store, "c")
        assert store.processes.retry("p").created
        with pytest.raises(holdfast.InvalidRequest, match="more than 2 runs below it") as caught:
            store.processes.retry("q")
        assert caught.value.limit == 2
        assert store.processes.get("q~2") is None


def test_a_long_log_is_copied_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.operations.retrying.PAGE", 3)
    with holdfast.open_blocking("memory:") as store:
        failed(store, "r1", *({"name": f"s{number}", "value": number} for number in range(10)))
        store.processes.retry("r1")
        copied: list[Any] = [event.payload for event in store.events.after("r1~2")]
        assert [step["value"] for step in copied] == [*range(10), "r1"]


def test_a_step_of_another_form_is_copied_as_it_is() -> None:
    with holdfast.open_blocking("memory:") as store:
        failed(store, "r1", [1, 2], "text")
        store.processes.retry("r1")
        assert [event.payload for event in store.events.after("r1~2").items[:2]] == [[1, 2], "text"]


def test_a_result_of_a_run_with_a_long_id_is_named_after_its_content() -> None:
    with holdfast.open_blocking("memory:") as store:
        run_id = "r" * (store.limits.id_bytes - 2)
        made = store.processes.start("research", id=run_id).process
        short = f"{made.created_at_ms}/r/{'0' * 32}"
        store.artifacts.put("run-result", short, b"[1]")
        store.events.append(run_id, "step", {"name": "s", "spilled": [short]})
        store.processes.complete(run_id, Failed("no answer"))
        retried = store.processes.retry(run_id)
        payload: Any = store.events.after(retried.id).items[0].payload
        assert payload["spilled"][0].startswith("run-result:sha256:")
