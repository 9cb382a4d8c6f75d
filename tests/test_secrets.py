"""No token, payload or password appears in a log, an error, a listing or on the command line.

A whole life runs with every logger at DEBUG. Each secret is a canary: a text that occurs nowhere else, searched for in
all output.
"""

from __future__ import annotations

import asyncio
import io
import logging
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import dsn
from holdfast.blocking import BlockingStore
from holdfast.cli import main
from holdfast.events import EventType
from holdfast.factory import open_backend
from holdfast.leases import OnProcess, OnSession
from holdfast.processes import Completed, External
from holdfast.store import Context, Store
from holdfast.testing.clock import ManualClock
from holdfast.triggers import SubscriptionDraft
from holdfast.wait import BlockingWaiting

PAYLOAD = "canary-payload-5d1f"
PASSWORD = "canary-password-9a3c"
NAMES = [f"canary-random-{number:04}-aaaaaaaaa" for number in range(200)]
"""Values that a store draws: tokens, and ids of work, which are not secret."""
TOKENS = [NAMES[number] for number in (0, 2, 3)]
"""The names that a life uses as tokens, in order: a lease's, a claim's and another lease's."""
COMMANDS = [
    ["status"], ["sessions", "list"], ["sessions", "show", "chat"], ["sessions", "history", "chat"],
    ["queue", "list"], ["processes", "list", "--status", "any"], ["processes", "show", "job"],
    ["triggers", "list"], ["triggers", "list", "--undelivered"], ["attachments", "list", "chat"],
    ["verify"], ["doctor"],
]  # fmt: skip
SHOWING = {"sessions show", "queue list", "processes list", "processes show", "triggers list"}
"""Commands whose purpose is to show what is stored."""


class Heard(logging.Handler):
    """Collects all log records, as they would be printed."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record) + repr(vars(record)))


@pytest.fixture
def received() -> Iterator[Heard]:
    handler = Heard()
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    levels = [(logger, logger.level, logger.disabled) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.disabled = False
    logging.getLogger().addHandler(handler)
    logging.getLogger("holdfast").setLevel(logging.DEBUG)
    yield handler
    logging.getLogger().removeHandler(handler)
    for logger, level, disabled in levels:
        logger.setLevel(level)
        logger.disabled = disabled


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("clean_postgres_url")).replace("postgres@", f"postgres:{PASSWORD}@")
    return {"memory": "memory:", "sqlite": str(tmp_path / "state.db")}[request.param]


def opened(url: str, clock: ManualClock) -> BlockingStore:
    """Open a store whose tokens are known beforehand."""
    backend = open_backend(url, None, clock, BlockingWaiting())
    names = iter(NAMES)
    return BlockingStore(Store(Context(backend, holdfast.Limits(), None, lambda: next(names))), backend)


def errors_of(*calls: Callable[[], object]) -> list[str]:
    """Return the full text of the refusals of these calls, causes and context included."""
    said: list[str] = []
    for call in calls:
        try:
            call()
        except holdfast.HoldfastError as error:
            said += [str(error), repr(error), repr(vars(error)), *traceback.format_exception(error)]
            # A debugger or an error report shows a context that a traceback leaves out.
            behind = error.__cause__ or error.__context__
            while behind is not None:
                said += [repr(behind), repr(vars(behind))]
                behind = behind.__cause__ or behind.__context__
        else:
            pytest.fail("was not refused")
    return said


def live(store: BlockingStore, clock: ManualClock) -> list[str]:
    """Create one of everything and provoke every refusal that involves a secret; return errors and listings as text."""
    secret = {"text": PAYLOAD}
    session = store.sessions.create("chat")
    lease = store.leases.claim(OnSession("chat"), owner_id="w", ttl_ms=1_000)
    draft = holdfast.WorkDraft(session_id="chat", payloads=[secret], source_key="key")
    store.queue.enqueue(draft)
    claim = store.queue.claim("chat", owner_id="w", lease=lease, ttl_ms=1_000)
    assert claim is not None
    node = holdfast.Node("n1", payload=secret, caused_by=secret)
    state = holdfast.Checkpoint(turn_state=secret, execution_state=PAYLOAD.encode())
    turn = holdfast.Commit(turn_id="t1", graph=holdfast.Append([node], leaf="n1"), checkpoint=state, config=secret)
    session.commit(turn)
    schema = {"type": "object", "properties": {"text": {"const": "something else"}}}
    kinds = [EventType("news"), EventType("strict", schema=schema)]
    registration = holdfast.ProcessRegistration("job", External(secret), event_types=kinds)
    store.processes.register(registration)
    process_lease = store.leases.claim(OnProcess("job"), owner_id="w", ttl_ms=1_000)
    store.events.append("job", "news", secret, replay_key="r1")
    subscription = SubscriptionDraft(source_type="cron", source_key="k", target=External(secret))
    store.triggers.subscribe(subscription)
    store.triggers.emit("cron", "k", idempotency_key="1", payload=secret)
    store.artifacts.put("kind", "ref", PAYLOAD.encode())
    session.attachments.put(PAYLOAD.encode())
    assert [str(one.token) for one in (lease, claim, process_lease)] == TOKENS
    other = {"text": PAYLOAD + " changed"}
    clock.advance(5_000)
    said = errors_of(
        lambda: store.leases.renew(lease),
        lambda: store.queue.renew(claim),
        lambda: session.commit(holdfast.Commit(completes=[claim])),
        lambda: session.commit(holdfast.Commit(lease=lease, config=secret)),
        lambda: store.processes.complete("job", Completed(secret), lease=process_lease),
        lambda: session.commit(holdfast.Commit(turn_id="t1", config=other)),
        lambda: session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("n1", payload=other)]))),
        lambda: session.commit(holdfast.Commit(expected_revision=7, config=other)),
        lambda: store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[other], source_key="key")),
        lambda: store.events.append("job", "news", other, replay_key="r1"),
        lambda: store.events.append("job", "strict", secret),
        lambda: store.processes.register(holdfast.ProcessRegistration("job", External(other))),
        lambda: store.triggers.record("cron", "k", idempotency_key="1", payload=other),
        lambda: session.add_nodes([holdfast.Node("n2", payload={"text": PAYLOAD, "bad": float("nan")})]),
        lambda: session.add_nodes([holdfast.Node("n2", payload={PAYLOAD: {1, 2}})]),
        lambda: session.add_nodes([holdfast.Node("n2", payload={PAYLOAD + "\ud800": 1})]),
    )
    shown = (lease, claim, process_lease, store, session, store.queue, store.leases.holder(OnSession("chat")))
    listings = (
        store.queue.list("chat"),
        store.processes.list(status="any"),
        store.triggers.list(),
        store.sessions.list(),
    )
    return said + [text for one in (*shown, *listings) for text in (repr(one), str(one)) if PAYLOAD not in text]


def test_nothing_secret_comes_out_of_a_whole_life(received: Heard, url: str, capfd: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    with opened(url, clock) as store:
        said = live(store, clock)
    output = capfd.readouterr()
    everything = "\n".join([*said, *received.lines, output.out, output.err])
    assert "LeaseLost" in everything
    assert [secret for secret in (*TOKENS, PASSWORD, PAYLOAD) if secret in everything] == []


def test_no_table_holds_a_token(url: str) -> None:
    clock = ManualClock()
    with opened(url, clock) as store:
        live(store, clock)
        rows = repr(store._backend.dump())
    assert [token for token in TOKENS if token in rows or token.encode().hex() in rows] == []
    assert PASSWORD not in rows


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_no_command_shows_a_token_or_a_password(url: str, received: Heard) -> None:
    clock = ManualClock()
    with opened(url, clock) as store:
        live(store, clock)
    for command in COMMANDS:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            codes = [main([*command, *form, "--url", url]) for form in ([], ["--json"])]
        assert set(codes) <= {0, 1}, err.getvalue()
        everything = "\n".join([out.getvalue(), err.getvalue(), *received.lines])
        assert [secret for secret in (*TOKENS, PASSWORD) if secret in everything] == [], command
        if " ".join(command[:2]) not in SHOWING:
            assert PAYLOAD not in everything, command


# ---------------------------------------------------------------------------- an unreachable database

UNREACHABLE = [
    f"postgresql://u:1234/{PASSWORD}@localhost:1/db",
    f"postgresql://u:12#{PASSWORD}@localhost:1/db",
    f"postgresql://u:12?{PASSWORD}@localhost:1/db",
    f"postgresql://u:12?a={PASSWORD}@localhost:1/db",
    f"postgresql://u:[{PASSWORD}@localhost:1/db",
    f"postgresql://u:pa@{PASSWORD}/x@localhost:1/db",
    f"postgresql://u:{PASSWORD}/db",
    f"postgresql://u:p\n{PASSWORD}@localhost:1/db",
    f"postgresql:/u:{PASSWORD}@localhost:1/db",
    f"postgres:u:{PASSWORD}@localhost:1/db",
    f"postgresql+asyncpg://u:{PASSWORD}@localhost:1/db",
    f"u:{PASSWORD}@localhost:1/db",
    f"//u:{PASSWORD}@localhost:1/db",
    f"host=localhost password={PASSWORD} dbname=db",
    f"connect_timeout=3 password={PASSWORD}",
    f"application_name=x PASSWORD = {PASSWORD}",
    f"PASSWORD={PASSWORD} host=localhost",
    f":{PASSWORD}@localhost:1/db",
    f"postgresql//u:{PASSWORD}@localhost:1/db",
    f"sqlite:u:{PASSWORD}@localhost/db",
    f"sqlite3:u:{PASSWORD}@localhost/db",
    f"file:u:{PASSWORD}@localhost/db",
    f"postgresql://u:{PASSWORD}@localhost:99999/db",
    f"sqlite:postgresql://u:{PASSWORD}@localhost:1/db",
    f"sqlite:db password={PASSWORD}",
    f"sqlite:///db?password={PASSWORD}",
    f"/tmp/mysql://u:{PASSWORD}@localhost/db",
    f"postgresql://localhost:1/db&password={PASSWORD}",
    f"postgresql://localhost:1/db;password={PASSWORD}",
    f"postgresql://localhost:1/db user=u password={PASSWORD}",
    f"postgresql://localhost:1/db%20password%3D{PASSWORD}",
    f"postgresql://u@localhost:1/db:{PASSWORD}",
    f"postgresql://localhost:1/u:{PASSWORD}",
    f"postgresql:///db?host=u:{PASSWORD}@localhost",
    f"postgresql:///db?host=u%3A{PASSWORD}%40localhost",
    f"postgresql:///db?host=u:{PASSWORD}",
    f"postgresql://me:{PASSWORD}@localhost:1/db",
    f"postgresql://me:{PASSWORD}@localhost:notaport/db",
    f"postgresql://me:{PASSWORD}@[::1/db",
    f"postgresql://me@localhost:1/db?password={PASSWORD}",
    f"postgresql://me@localhost:1/db?sslmode={PASSWORD}",
    f"postgresql:///db?host=/nowhere&password={PASSWORD}",
    f"postgresql://{PASSWORD}@localhost:1/db?passfile=/{PASSWORD}",
]


@pytest.mark.parametrize("url", UNREACHABLE, ids=range(len(UNREACHABLE)))
def test_no_error_repeats_a_password(url: str, received: Heard) -> None:
    said = errors_of(lambda: holdfast.open_blocking(url))

    async def tasks() -> None:
        await holdfast.open(url)

    said += errors_of(lambda: asyncio.run(tasks()))
    # A traceback shows the line of this file that opens, where the password is only a variable's name.
    assert [line for line in (*said, *received.lines) if PASSWORD in line] == []


@pytest.mark.parametrize("url", UNREACHABLE, ids=range(len(UNREACHABLE)))
def test_no_command_repeats_a_password(
    url: str, received: Heard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not even with a mistyped option or a misplaced URL, where the error quotes the arguments."""
    monkeypatch.chdir(tmp_path)
    out, err = io.StringIO(), io.StringIO()
    connecting = [
        ["status", "--url", url],
        ["status", f"--url={url}", "--json"],
        ["copy", "--from", url, "--to", "agent.db"],
        ["torture", "--url", url, "--fault", "kill-writer", "--cases", "1"],
        ["status"],
    ]
    parsing = [["status", "--ulr", url], ["status", *url.split(" ")], [url], ["tail", "--since", url, "--json"]]
    # A URL where the name of a file belongs.
    named = [
        ["sessions", "import", url, "--url", "memory:"],
        ["sessions", "import", url, "--url", "memory:", "--json"],
        ["sessions", "export", "chat", "--url", "memory:", "--output", f"{url}/x"],
        ["events", "append", "log", "note", f"@{url}", "--url", "memory:"],
        ["status", "--url", "memory:", "--attachments", url],
    ]
    if dsn.parsed(url) is not None:
        # Each of them tries for a second to connect, and all of them say the same.
        connecting = connecting[1:2]
    monkeypatch.setenv("HOLDFAST_URL", url)
    with redirect_stdout(out), redirect_stderr(err):
        codes = [main(call) for call in connecting + parsing + named]
    assert 0 not in codes
    everything = "\n".join([out.getvalue(), err.getvalue(), *received.lines])
    assert PASSWORD not in everything
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [0, 15, 18, 19])
def test_no_traceback_of_a_command_repeats_a_password(number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "status", "--debug", "--url", UNREACHABLE[number]],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert PASSWORD not in done.stdout + done.stderr


def test_a_path_with_a_password_is_refused_and_makes_no_file(tmp_path: Path) -> None:
    paths = [tmp_path / f"x password={PASSWORD}", tmp_path / f"postgresql:/u:{PASSWORD}@h"]
    said = errors_of(
        *(lambda path=path: holdfast.open_blocking(path) for path in paths),
        *(lambda path=path: holdfast.open_blocking("memory:", attachments=path) for path in paths),
    )
    assert [line for line in said if PASSWORD in line] == []
    assert list(tmp_path.iterdir()) == []


def test_the_options_do_not_show_the_passwords_of_their_urls() -> None:
    options = holdfast.PostgresOptions(listen_url=f"postgresql://u:{PASSWORD}@h/db", max_connections=3)
    assert repr(options).startswith("PostgresOptions(schema='holdfast', max_connections=3")
    assert "listen_url='…'" in repr(options)
    assert "listen_url=None" in repr(holdfast.PostgresOptions())
    options = holdfast.PostgresOptions(read_url=f"postgresql://u:{PASSWORD}@h/db")
    assert "listen_url=None, read_url='…'" in repr(options)


def test_an_ambiguous_url_is_refused_before_anything_is_connected_to() -> None:
    with pytest.raises(holdfast.InvalidRequest, match="written as %40 %2F") as caught:
        holdfast.open_blocking("postgresql://u:1234/x@localhost/db")
    assert caught.value.field == "url"
    with pytest.raises(holdfast.InvalidRequest, match=r"options\.listen_url: is not a valid URL"):
        holdfast.open_blocking(
            "postgresql://h/db", options=holdfast.PostgresOptions(listen_url="postgresql://u:1/x@h/d")
        )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://u@localhost:99999/db", "port 99999"),
        ("postgresql://u@localhost:0/db", "port 0"),
        ("postgresql://u@a:1,b:65536/db", "port 65536"),
        (f"postgresql://u@a:{'9' * 5000}/db", "port 999"),
        ("postgresql:///db?host=localhost:99999", "port 99999"),
        ("postgresql:///db?host=localhost&port=99999", "port 99999"),
        ("postgresql:///db?host=localhost&port=hush", "its port"),
        # Perhaps a user and a password, with the host forgotten.
        ("postgresql://u:99999/db", "its port"),
    ],
    ids=lambda text: text[:60],
)
def test_a_port_that_cannot_be_is_refused_by_name(url: str, said: str) -> None:
    for field, call in (
        ("url", lambda: holdfast.open_blocking(url)),
        ("url", lambda: asyncio.run(awaited(url))),
        ("url", lambda: holdfast.ddl(url)),
        (
            "options.listen_url",
            lambda: holdfast.open_blocking("postgresql://h/db", options=holdfast.PostgresOptions(listen_url=url)),
        ),
    ):
        with pytest.raises(holdfast.InvalidRequest, match="is not from 1 to 65535") as caught:
            call()
        assert caught.value.field == field
        assert caught.value.problem.startswith(said)


async def awaited(url: str) -> holdfast.Store:
    return await holdfast.open(url)


def test_a_wrong_variable_of_the_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for port in ("99999", "hush"):
        monkeypatch.setenv("PGPORT", port)
        with pytest.raises(holdfast.InvalidRequest, match="environment variable such as PGPORT") as caught:
            holdfast.open_blocking("postgresql://127.0.0.1/db")
        assert port not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("postgresql://u:p%40@db-1.example:5432/app", "db-1.example:5432/app"),
        ("postgresql://u:p@w@db/app", "db/app"),
        ("postgres://a_b:1,[::1]:2/app?sslmode=require", "a_b:1,[::1]:2/app"),
        ("postgresql:///app?host=/run/pg", "/run/pg/app"),
        ("postgresql://%2Frun%2Fpg/app", "%2Frun%2Fpg/app"),
        ("postgresql://", "localhost"),
        ("postgresql://db/app?user=me@corp", "PostgreSQL"),
        ("postgresql://u:1/x@h/app", "PostgreSQL"),
    ],
)
def test_a_message_names_the_place_of_a_url_that_parses(url: str, label: str) -> None:
    assert dsn.label_of(url) == label
    assert (dsn.parsed(url) is None) == (url == "postgresql://u:1/x@h/app")


# ---------------------------------------------------------------------------- damage


def test_the_report_of_damage_does_not_repeat_what_is_damaged(tmp_path: Path, received: Heard) -> None:
    import apsw

    path, clock = tmp_path / "state.db", ManualClock()
    with opened(str(path), clock) as store:
        live(store, clock)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE nodes SET payload = CAST(payload || X'00' AS BLOB)")
    connection.execute("UPDATE batches SET payloads = substr(payloads, 2)")
    connection.execute("UPDATE events SET payload = CAST(payload || payload AS BLOB)")
    connection.execute("UPDATE occurrences SET payload = CAST(payload || '}' AS BLOB)")
    connection.execute("UPDATE processes SET body = substr(body, 1, length(body) - 1)")
    connection.close()
    said: list[str] = []
    with holdfast.open_blocking(path, clock=clock) as store:
        findings = store.maintenance.verify().findings
        said += errors_of(
            store.sessions.handle("chat").load,
            lambda: store.queue.list("chat"),
            lambda: store.events.after("job"),
            lambda: store.processes.get("job"),
        )
    assert len(findings) >= 5
    everything = "\n".join([*said, repr(findings), *received.lines])
    assert PAYLOAD not in everything


def test_a_row_that_the_server_refuses_is_not_shown(clean_postgres_url: str, postgres_database: Any) -> None:
    administrator = postgres_database.administrator
    with holdfast.open_blocking(clean_postgres_url) as store:
        session = store.sessions.create("chat")
        # A constraint that no row satisfies: the server's error includes the whole row.
        administrator.run("ALTER TABLE holdfast.nodes ADD COLUMN extra bigint NOT NULL")
        administrator.run("ALTER TABLE holdfast.artifacts ADD CONSTRAINT none CHECK (kind = 'x')")
        try:
            said = errors_of(
                lambda: session.add_nodes([holdfast.Node("n1", payload=PAYLOAD)]),
                lambda: session.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("n1", payload=PAYLOAD)]))),
                lambda: store.artifacts.put("kind", PAYLOAD, PAYLOAD.encode()),
            )
        finally:
            administrator.run("ALTER TABLE holdfast.nodes DROP COLUMN extra")
            administrator.run("ALTER TABLE holdfast.artifacts DROP CONSTRAINT none")
    everything = "\n".join(said)
    assert "Corrupt" in everything
    assert [form for form in (PAYLOAD, PAYLOAD.encode().hex()) if form in everything] == []
