"""Derive the risks to a store from facts alone. Each concern says what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from holdfast.ports.limit_tables import ReadySession
from holdfast.records.diagnosis import Concern, PostgresFacts, SqliteFacts, StoreFacts, StuckItems

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
MIB: Final = 1024 * 1024

LEASE_GRACE_MS: Final = MINUTE_MS
"""An expired lease is reported after this time: the next holder needs a moment to take it over."""

DELIVERY_GRACE_MS: Final = MINUTE_MS
"""A reservation and the start of its process are two calls, with a moment between them."""

WORK_GRACE_MS: Final = 5 * MINUTE_MS
"""Work that could have been claimed for longer than this has too few workers."""

STUCK_GRACE_MS: Final = MINUTE_MS
"""Work that is stuck, for want of a worker or by a pause, is reported after this time: a deployment needs a moment."""

NOTHING: Final = StuckItems()

WHY: Final = "`holdfast why ID`"

LOG_BYTES: Final = 128 * MIB
"""Twice the size that a store truncates a write-ahead log to: a larger one could not be emptied for a long time."""

LOG_TIMES: Final = 4
"""A server's write-ahead log is reported once it exceeds its usual size by this factor."""

TRANSACTION_MS: Final = 5 * MINUTE_MS
IDLE_TRANSACTION_MS: Final = MINUTE_MS
"""Limits for transactions of other connections: while one is open, no dead row of any table can be removed."""

CONNECTIONS_PERCENT: Final = 80

TRANSACTION_IDS: Final = 1_000_000_000
LAST_TRANSACTION_IDS: Final = 1_800_000_000
"""PostgreSQL refuses to write at about 2,100 million, and begins to freeze by itself at 200 million."""

SKEW_MS: Final = 5_000

SAFE_SQLITE: Final = 3_051_003
"""Older versions, from 3.7.0 on, can damage a file if a write-ahead log restarts at an unlucky moment."""

NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs", "nfs"}
    | {"nfs4", "smb3", "smbfs", "vboxsf", "virtiofs"}
)

SUPPORT_ENDS_MS: Final = {
    14: 1_794_441_600_000,  # 2026-11-12
    15: 1_825_891_200_000,  # 2027-11-11
    16: 1_857_340_800_000,  # 2028-11-09
    17: 1_888_790_400_000,  # 2029-11-08
    18: 1_920_844_800_000,  # 2030-11-14
}
"""The date of the last release of each major version of PostgreSQL."""


def diagnose(facts: StoreFacts, stuck: StuckItems = NOTHING, *, local_ms: int, trip_ms: int) -> tuple[Concern, ...]:
    """Return every concern, dangers first. `local_ms` is this machine's clock in the middle of a trip of `trip_ms`."""
    found = [*_waiting(facts, stuck), *_stuck(facts, stuck), *_indexes(facts)]
    if isinstance(facts.engine, SqliteFacts):
        found += _sqlite(facts.engine)
    elif isinstance(facts.engine, PostgresFacts):
        found += _settings(facts.engine)
        found += _load(facts.engine)
        found += _log(facts.engine)
        found += _clocks(facts.engine, local_ms, trip_ms)
    return by_level(found)


def by_level(concerns: Sequence[Concern]) -> tuple[Concern, ...]:
    """Sort dangers first, otherwise in the order in which they were found."""
    return tuple(sorted(concerns, key=lambda concern: concern.level != "danger"))


def damaged(problem: str) -> Concern:
    """Return the concern for damaged pages that the database reports, or for rows that it could not read."""
    return Concern(
        "danger", "integrity", problem, "keep a copy of what is there, see `holdfast verify`, and restore from a backup"
    )


# Overdue items.


def of_every_kind(oldest: Sequence[ReadySession], most: int) -> list[ReadySession]:
    """Return the oldest sessions of every kind, in paused sessions and in others, then further ones; all by age.

    Without this, work that was paused long ago would hide all other work.
    """
    places = {(one.kind, one.is_paused): at for at, one in reversed(list(enumerate(oldest)))}
    chosen = sorted(range(len(oldest)), key=lambda at: (at not in places.values(), at))[:most]
    return [oldest[at] for at in sorted(chosen)]


def _stuck(facts: StoreFacts, stuck: StuckItems) -> Iterator[Concern]:
    held = (*stuck.claimed_by_dead, *stuck.run_by_dead)
    if held:
        yield Concern(
            "warning",
            "dead-workers",
            f"{_count(len(stuck.dead_workers), 'worker')} that stopped reporting held work: {_list(held)}",
            f"others take it over when the claims end; {WHY} names the command that ends one now",
            held,
        )
    if stuck.dead_letters:
        yield Concern(
            "warning",
            "dead-letters",
            f"work failed at its last attempt in {_list(stuck.dead_letters)}",
            "see `holdfast queue dead`: retry or drop it",
            stuck.dead_letters,
        )
    if stuck.failed_deliveries:
        yield Concern(
            "warning",
            "failed-deliveries",
            f"a trigger fired, and these processes could not be started: {_list(stuck.failed_deliveries)}",
            f"{WHY} shows the error: fix the subscription, and start each with `holdfast triggers redeliver`",
            stuck.failed_deliveries,
        )
    if stuck.failed_schedules:
        yield Concern(
            "warning",
            "failed-ticks",
            f"the last tick of these schedules started nothing: {_list(stuck.failed_schedules)}",
            f"{WHY} shows the error: mend its cause, and fire each with `holdfast schedules run`",
            stuck.failed_schedules,
        )
    if stuck.over_time_limit:
        yield Concern(
            "warning",
            "over-time-limit",
            f"handlers are over their time limit, and cannot be stopped: {_list(stuck.over_time_limit)}",
            f"{WHY} names the process to end: then another worker takes the work over",
            stuck.over_time_limit,
        )
    yield from _due(facts, stuck)


def _due(facts: StoreFacts, stuck: StuckItems) -> Iterator[Concern]:
    is_stuck = _older(facts, stuck.stuck_run_since_ms, STUCK_GRACE_MS)
    if is_stuck or _older(facts, stuck.due_since_ms, WORK_GRACE_MS):
        yield Concern(
            "warning",
            "unclaimed-runs",
            f"runs are due that no worker has claimed, the oldest for {_age(facts, stuck.due_since_ms)}; of each kind"
            + _explained(stuck.due_runs),
            f"{WHY} says why: start workers for those kinds, or resume them",
            tuple(id for id, _ in stuck.due_runs),
        )
    if stuck.due_schedule is not None and _older(facts, stuck.due_schedule_at_ms, STUCK_GRACE_MS):
        yield Concern(
            "warning",
            "overdue-ticks",
            f"schedule {stuck.due_schedule!r} has been due for {_age(facts, stuck.due_schedule_at_ms)}, and no worker "
            "has fired it",
            "start a worker; to fire schedules, it needs holdfast[schedules]",
            (stuck.due_schedule,),
        )


def _list(ids: Sequence[str]) -> str:
    return ", ".join(map(repr, ids))


def _waiting(facts: StoreFacts, stuck: StuckItems) -> Iterator[Concern]:
    left = stuck.expired_leases
    if _older(facts, facts.oldest_expired_lease_at_ms, LEASE_GRACE_MS):
        yield Concern(
            "warning",
            "expired-leases",
            f"{_count(facts.expired_leases, 'lease on a process', 'leases on processes')} ended without being "
            f"released, the oldest {_age(facts, facts.oldest_expired_lease_at_ms)} ago" + _explained(left),
            f"their holders stopped or hang: check those workers; {WHY} shows the work that waits for each",
            tuple(dict.fromkeys(id for id, _ in left)),
        )
    if _older(facts, facts.oldest_undelivered_at_ms, DELIVERY_GRACE_MS):
        yield Concern(
            "warning",
            "undelivered",
            f"{_count(facts.undelivered, 'delivery', 'deliveries')} reserved whose process was never started, the "
            f"oldest {_age(facts, facts.oldest_undelivered_at_ms)} ago",
            "run a worker, or start each with `holdfast triggers redeliver`: starting twice is harmless",
            stuck.undelivered,
        )
    is_stuck = _older(facts, stuck.stuck_since_ms, STUCK_GRACE_MS)
    if is_stuck or _older(facts, facts.oldest_ready_batch_at_ms, WORK_GRACE_MS):
        yield Concern(
            "warning",
            "old-work",
            f"{_count(facts.ready_batches, 'batch', 'batches')} of unclaimed work, the oldest ready for "
            f"{_age(facts, facts.oldest_ready_batch_at_ms)}" + _explained(stuck.ready_sessions),
            f"{WHY} says why: start workers for those kinds, or cancel the work",
            tuple(id for id, _ in stuck.ready_sessions),
        )


def _explained(items: Sequence[tuple[str, str]]) -> str:
    return ": " + ", ".join(f"{id!r} ({cause})" for id, cause in items) if items else ""


def _older(facts: StoreFacts, since_ms: int | None, grace_ms: int) -> bool:
    return since_ms is not None and facts.now_ms - since_ms > grace_ms


def _age(facts: StoreFacts, since_ms: int | None) -> str:
    return _length(facts.now_ms - (since_ms or 0))


def _indexes(facts: StoreFacts) -> Iterator[Concern]:
    if facts.missing_indexes:
        yield Concern(
            "danger",
            "missing-index",
            f"these indexes are missing or invalid: {', '.join(facts.missing_indexes)}",
            "make them again from `holdfast schema`: without them calls are slow, and keys are not unique",
        )


# SQLite.


def _sqlite(engine: SqliteFacts) -> Iterator[Concern]:
    if engine.synchronous in ("off", "normal"):
        yield Concern(
            "danger",
            "synchronous",
            f"this store was opened with synchronous={engine.synchronous}: a power cut loses acknowledged commits"
            + (", and can damage the file" if engine.synchronous == "off" else ""),
            "open it with SqliteOptions(synchronous='full'), which is the default",
        )
    if engine.journal_mode not in ("wal", "memory"):
        yield Concern(
            "danger",
            "journal-mode",
            f"the file is in journal mode {engine.journal_mode}, not in write-ahead logging",
            "another program changed it: close every program that has the file open, and open the store again",
        )
    if engine.log_bytes > LOG_BYTES:
        yield Concern(
            "warning",
            "log-growth",
            f"the write-ahead log has grown to {engine.log_bytes // MIB} MiB",
            "a long read prevents its checkpoint: end long reads, also in other programs",
        )
    if engine.file_system in NETWORK_FILE_SYSTEMS:
        yield Concern(
            "danger",
            "network-file-system",
            f"the file is on {engine.file_system}, where locks and shared memory do not work between machines",
            "move it to a local disk, or use PostgreSQL",
        )
    if engine.version < SAFE_SQLITE:
        yield Concern(
            "danger",
            "old-sqlite",
            f"SQLite {_sqlite_version(engine.version)} has a known defect that can damage a file with several writers",
            "install a newer apsw, which brings its SQLite along",
        )


def _sqlite_version(version: int) -> str:
    return f"{version // 1_000_000}.{version // 1_000 % 1_000}.{version % 1_000}"


# PostgreSQL.


def _settings(engine: PostgresFacts) -> Iterator[Concern]:
    if not engine.fsync:
        yield Concern(
            "danger",
            "fsync",
            "fsync is off: a crash of the machine loses acknowledged commits and can damage every table",
            "set fsync = on and reload the server",
        )
    if not engine.full_page_writes:
        yield Concern(
            "danger",
            "full-page-writes",
            "full_page_writes is off: a crash of the machine can leave half-written pages",
            "set full_page_writes = on and reload the server",
        )
    if engine.synchronous_commit == "off":
        yield Concern(
            "danger",
            "synchronous-commit",
            "synchronous_commit is off: a crash of the server loses the last acknowledged commits",
            "set synchronous_commit = on for the role, the database or the server",
        )
    elif engine.synchronous_commit == "local" and engine.standby_names:
        yield Concern(
            "danger",
            "synchronous-commit",
            "synchronous_commit is local: commits do not wait for the standbys that are configured",
            "set synchronous_commit = on, or a failover loses acknowledged commits",
        )
    if engine.hidden_tables:
        yield Concern(
            "danger",
            "row-security",
            f"row-level security of {', '.join(engine.hidden_tables)} applies to this role: calls that need them are "
            "refused",
            "run ALTER TABLE … DISABLE ROW LEVEL SECURITY on each, or ALTER ROLE … BYPASSRLS",
        )
    if not engine.autovacuum:
        yield Concern(
            "warning",
            "autovacuum",
            "autovacuum is off: tables grow without end, and old transaction ids are not recycled",
            "set autovacuum = on and reload the server",
        )
    if engine.tables_without_autovacuum:
        yield Concern(
            "warning",
            "autovacuum",
            f"autovacuum is off for {', '.join(engine.tables_without_autovacuum)}",
            "run ALTER TABLE … RESET (autovacuum_enabled) on each",
        )


def _load(engine: PostgresFacts) -> Iterator[Concern]:
    if engine.transaction_ids_used > TRANSACTION_IDS:
        last = engine.transaction_ids_used > LAST_TRANSACTION_IDS
        yield Concern(
            "danger" if last else "warning",
            "transaction-ids",
            f"{engine.transaction_ids_used // 1_000_000} million transaction ids are in use of about 2,100 million: "
            "then the server refuses to write",
            "run VACUUM FREEZE on the database, and find out why autovacuum does not",
        )
    if engine.longest_idle_transaction_ms > IDLE_TRANSACTION_MS:
        yield Concern(
            "warning",
            "idle-transaction",
            f"a client has kept a transaction open and idle for {_length(engine.longest_idle_transaction_ms)}",
            "find it in pg_stat_activity (state 'idle in transaction'), and let its program commit or roll back",
        )
    if engine.longest_transaction_ms > TRANSACTION_MS:
        yield Concern(
            "warning",
            "long-transaction",
            f"a transaction has been open for {_length(engine.longest_transaction_ms)}: no dead row can be removed",
            "find it in pg_stat_activity by its xact_start, and make it shorter",
        )
    if engine.connections * 100 >= engine.max_connections * CONNECTIONS_PERCENT:
        yield Concern(
            "warning",
            "connections",
            f"{engine.connections} of {engine.max_connections} connections are in use",
            "lower max_connections of the stores, put a pooler in front, or raise the server's limit",
        )


def _log(engine: PostgresFacts) -> Iterator[Concern]:
    most_bytes = engine.usual_log_bytes * LOG_TIMES
    if engine.slot_bytes > most_bytes:
        yield Concern(
            "warning",
            "log-growth",
            f"the replication slot {engine.slot!r} keeps {engine.slot_bytes // MIB} MiB of the write-ahead log: when "
            "the disk is full, the server stops",
            "let its reader catch up, drop it with pg_drop_replication_slot, or set max_slot_wal_keep_size",
        )
    elif engine.log_bytes is not None and engine.log_bytes > most_bytes:
        yield Concern(
            "warning",
            "log-growth",
            f"the write-ahead log has grown to {engine.log_bytes // MIB} MiB, and {engine.usual_log_bytes // MIB} are "
            "usual: when the disk is full, the server stops",
            "it is not recycled: check pg_stat_archiver, wal_keep_size and checkpoints",
        )
    if engine.archiving_failed:
        yield Concern(
            "warning",
            "archiving",
            "the last attempt to archive the write-ahead log failed: until one succeeds, the log grows",
            "see pg_stat_archiver and the server's log, and fix archive_command or archive_library",
        )


def _clocks(engine: PostgresFacts, local_ms: int, trip_ms: int) -> Iterator[Concern]:
    ahead_ms = local_ms - engine.server_ms
    if abs(ahead_ms) - trip_ms // 2 > SKEW_MS:
        yield Concern(
            "warning",
            "clock-skew",
            f"this machine's clock is {_length(abs(ahead_ms))} {'ahead of' if ahead_ms > 0 else 'behind'} the server's",
            "leases go by the server's clock, but times that you compute here are off: synchronise both",
        )
    major = engine.version // 10_000
    if local_ms > SUPPORT_ENDS_MS.get(major, local_ms) or major < min(SUPPORT_ENDS_MS):
        yield Concern(
            "warning",
            "old-server",
            f"PostgreSQL {major} gets no more fixes",
            f"upgrade the server, best to {max(SUPPORT_ENDS_MS)}",
        )


# Texts.


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _length(of_ms: int) -> str:
    seconds = of_ms // 1_000
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"
