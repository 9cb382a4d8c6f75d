"""`holdfast schedules`: what programs declared is listed, paused, run at once and removed, in text and in JSON."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.testing.clock import ManualClock

NOW = 1_700_000_000_000
TICK = 1_700_017_200_000  # 2023-11-15 03:00 UTC


@pytest.fixture
def declared(url: str) -> None:
    with holdfast.open_blocking(url, clock=ManualClock(NOW)) as store:
        work = holdfast.WorkDraft(session_id="reports", payloads=[{}], kind="report")
        store.schedules.put("nightly", "0 3 * * *", work=work)
        store.schedules.put("tick", "0 4 * * *", tz="Asia/Tokyo")
        store.schedules.put("weekly", "0 5 * * MON", run=holdfast.processes.Run("report"))


@pytest.mark.usefixtures("declared")
def test_schedules_are_listed_in_pages(on: Any) -> None:
    first = on("schedules", "list", "--limit", 1, "--json").json
    [nightly] = first["items"]
    assert (nightly["name"], nightly["cron"], nightly["tz"], nightly["paused"]) == (
        "nightly",
        "0 3 * * *",
        "UTC",
        False,
    )
    assert (nightly["next_tick_ms"], nightly["last_tick_ms"], nightly["work"]["kind"]) == (TICK, None, "report")
    rest = on("schedules", "list", "--after", first["next"], "--json").json
    assert ([one["name"] for one in rest["items"]], rest["next"]) == (["tick", "weekly"], None)
    lines = on("schedules", "list").out.splitlines()
    assert lines[0].split() == ["schedule", "cron", "zone", "starts", "next", "last", "failure"]
    assert "work report" in lines[1]
    assert "2023-11-15 03:00:00Z" in lines[1]
    assert "run report" in lines[3]


@pytest.mark.usefixtures("declared")
def test_a_schedule_is_paused_and_resumed(on: Any) -> None:
    assert on("schedules", "pause", "nightly").out == "paused nightly\n"
    assert on("schedules", "pause", "nightly", "--json").json["next_tick_ms"] is None
    assert "paused" in on("schedules", "list").out
    assert on("schedules", "resume", "nightly").out.startswith("nightly resumes at 20")
    assert on("schedules", "resume", "nightly", "--json").json["paused"] is False


@pytest.mark.usefixtures("declared")
def test_a_schedule_is_run_at_once(on: Any, url: str) -> None:
    firing = on("schedules", "run", "nightly", "--key", "7", "--json").json
    assert (firing["name"], firing["occurrence"]["idempotency_key"]) == ("nightly", "now:7")
    assert on("schedules", "run", "nightly", "--key", "7").out == f"fired nightly: work {firing['batch_id']}\n"
    assert on("schedules", "run", "tick").out == "fired tick: an occurrence\n"
    assert on("schedules", "run", "weekly", "--key", "7").out == "fired weekly: run schedule:weekly:now:7\n"
    with holdfast.open_blocking(url) as store:
        assert [batch.batch_id for batch in store.queue.list("reports")] == [firing["batch_id"]]


@pytest.mark.usefixtures("declared")
def test_a_schedule_is_removed_after_a_question(on: Any) -> None:
    assert on("schedules", "remove", "tick", "--yes").out == "removed tick\n"
    assert on("schedules", "remove", "weekly", "--yes", "--json").json == {"name": "weekly", "removed": True}
    assert [one["name"] for one in on("schedules", "list", "--json").json["items"]] == ["nightly"]


@pytest.mark.parametrize("command", ["pause", "resume", "run", "remove"])
def test_an_unknown_schedule_is_an_error_that_says_where_to_look(on: Any, declared: None, command: str) -> None:
    assert declared is None
    ran = on("schedules", command, "hourly", *(["--yes"] if command == "remove" else []))
    assert ran.code == 1
    assert "'hourly'" in ran.err
    assert "schedules list" in ran.err.replace("schedules.list", "schedules list")
    assert on("schedules", command, "").code in (1, 2)


@pytest.mark.usefixtures("declared")
def test_an_unknown_schedule_is_refused_with_a_command_to_continue(on: Any) -> None:
    refused = on("schedules", "run", "nope")
    assert refused.code != 0
    assert "unknown schedule 'nope': see holdfast schedules list" in refused.err
