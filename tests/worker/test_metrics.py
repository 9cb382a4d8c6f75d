"""The numbers that a worker serves, and the dashboard that shows them."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import metrics
from holdfast.activity import Pace
from holdfast.cli import main
from holdfast.worker import metrics_server
from holdfast.worker.metrics_server import OUTCOMES, metrics_served

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "examples" / "grafana" / "holdfast.json"
NAME = re.compile(r"\bholdfast_[a-z_]+")


def scraped(port: int, path: str = "/metrics", **headers: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["content-type"] == metrics.MEDIA_TYPE
        text: str = answer.read().decode()
        return text


def worker_of(url: str) -> holdfast.Worker:
    worker = holdfast.Worker(url, concurrency=3)

    @worker.job("mail", retry=holdfast.Retry(1))
    def send(job: Any) -> None:
        if job.payload == "bad":
            raise ValueError(job.payload)

    return worker


def test_a_worker_serves_its_counts_and_the_depths_of_queues(
    url: str, store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "is_due", lambda *_: True)
    worker = worker_of(url)
    chat = store.sessions.create("chat")
    for payload in ("good", "good", "bad"):
        chat.enqueue(payload, kind="mail")
    chat.enqueue("hi", kind='a "kind"\n')
    with metrics_served(worker, "127.0.0.1", 0) as port:
        before = scraped(port).splitlines()
        worker.run(until_idle=True)
        lines = scraped(port).splitlines()
    assert 'holdfast_queue_batches{kind="mail",state="ready"} 3.0' in before
    assert lines[-1] == "# EOF"
    assert 'holdfast_worker_calls_total{outcome="done"} 2.0' in lines
    assert 'holdfast_worker_calls_total{outcome="dead"} 1.0' in lines
    assert 'holdfast_queue_batches{kind="mail",state="dead"} 1.0' in lines
    assert 'holdfast_queue_batches{kind="a \\"kind\\"\\n",state="ready"} 1.0' in lines
    assert "holdfast_worker_concurrency 3" in lines
    assert "holdfast_worker_running 0" in lines
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_scrapers_share_one_reading_of_the_depths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = str(tmp_path / "a.db")
    monkeypatch.setattr(metrics_server, "DEPTHS_EVERY_S", 3600.0)
    with metrics_served(worker_of(url), "127.0.0.1", 0) as port, holdfast.open_blocking(url) as store:
        before = scraped(port)
        store.sessions.create("chat").enqueue("hi", kind="mail")
        assert scraped(port) == before
        monkeypatch.setattr(Pace, "is_due", lambda *_: True)
        assert 'kind="mail",state="ready"} 1.0' in scraped(port)


@pytest.mark.parametrize(("path", "host", "status"), [("/metrics", "evil.example", 403), ("/secret", "localhost", 404)])
def test_other_names_and_paths_are_refused(tmp_path: Path, path: str, host: str, status: int) -> None:
    with metrics_served(worker_of(str(tmp_path / "a.db")), "127.0.0.1", 0) as port:
        with pytest.raises(urllib.error.HTTPError) as caught:
            scraped(port, path, Host=host)
        with caught.value:
            assert caught.value.code == status


def test_a_worker_that_was_given_an_open_store_serves_its_own_counts(tmp_path: Path) -> None:
    async def serve() -> str:
        async with holdfast.open(tmp_path / "a.db") as store:
            with metrics_served(holdfast.Worker(store), "127.0.0.1", 0) as port:
                return await asyncio.to_thread(scraped, port)

    said = asyncio.run(serve())
    assert "holdfast_worker_calls_total" in said
    assert "holdfast_queue_batches" not in said


def test_a_port_that_is_taken_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = tmp_path / "a.db"
    (tmp_path / "some_app.py").write_text(
        f"import holdfast\nworker = holdfast.Worker({str(url)!r})\nworker.job('mail')(lambda job: None)\n"
    )
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["worker", "some_app:worker", "--until-idle", "--metrics-port", port]) == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err
    assert main(["worker", "some_app:worker", "--until-idle", "--metrics-port", "0"]) == 0
    assert "metrics at http://127.0.0.1:" in capsys.readouterr().err


# The dashboard.


def served_names() -> set[str]:
    async def of_store() -> list[metrics.Family]:
        async with holdfast.open("memory:") as store:
            return await metrics.of_store(store)

    counts = dict.fromkeys(OUTCOMES, 0)
    families = [*asyncio.run(of_store()), *metrics.of_worker(counts, running=0, concurrency=1)]
    return {f"{one.name}_total" if one.kind == "counter" else one.name for one in families}


def test_every_metric_that_the_dashboard_names_is_served() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for query in queries for name in NAME.findall(query)}
    assert len(queries) >= 8
    assert named <= served_names()
    assert {"holdfast_worker_calls_total", "holdfast_queue_batches", "holdfast_queue_oldest_ready_seconds"} <= named


def test_the_dashboard_names_states_and_outcomes_that_exist() -> None:
    text = DASHBOARD.read_text()
    labels = set(re.findall(r'(?:state|outcome)=~?\\"([a-z|]+)\\"', text))
    words = {word for one in labels for word in one.split("|")}
    assert words
    assert words <= {*OUTCOMES, *metrics.STATES}
