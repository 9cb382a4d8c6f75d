"""Commands for a whole store: `init` creates it, `migrate` upgrades it, all others here only read."""

from __future__ import annotations

import holdfast
from holdfast.cli.commands import Command, argument
from holdfast.cli.running import Call, Refused
from holdfast.cli.terminal import length, size


def init(call: Call) -> int:
    """Create the schema. Idempotent."""
    created = False
    try:
        store = call.store()
    except holdfast.errors.SchemaMissing as missing:
        if missing.found:
            raise
        store, created = call.store(migrate=True), True
    with store:
        version = store.schema_version
    if call.options.json:
        call.terminal.json({"created": created, "schema_version": version})
    else:
        call.terminal.line(f"{'created' if created else 'already there'}: schema version {version}")
    return 0


def migrate(call: Call) -> int:
    """Upgrade the schema. Idempotent."""
    before: int | None = None
    try:
        store = call.store()
    except holdfast.errors.SchemaMissing as missing:
        if not missing.found:
            raise
        before, store = missing.found, call.store(migrate=True)
    with store:
        version = store.schema_version
    if call.options.json:
        call.terminal.json({"from": version if before is None else before, "to": version})
    elif before is None:
        call.terminal.line(f"current: schema version {version}")
    else:
        call.terminal.line(f"migrated: schema version {before} to {version}")
    return 0


def status(call: Call) -> int:
    """Show counts of everything, and the age of the oldest pending batch."""
    with call.store() as store:
        stats = store.maintenance.stats()
        durability, now_ms = store.durability, store.now_ms()
    if call.options.json:
        import msgspec

        call.terminal.json({"durability": durability, **msgspec.structs.asdict(stats)})
        return 0
    oldest = stats.oldest_pending_batch_at_ms
    age = "-" if oldest is None else f"{length(now_ms - oldest)} old"
    call.terminal.fields(
        [
            ("schema version", stats.schema_version),
            ("size on disk", size(stats.bytes_on_disk)),
            ("sessions", f"{stats.sessions} ({stats.deleted_sessions} deleted)"),
            ("revisions", stats.revisions),
            ("nodes", stats.nodes),
            ("blobs", f"{stats.blobs}, {size(stats.blob_bytes)}"),
            (
                "batches",
                f"{stats.pending_batches} pending, {stats.claimed_batches} claimed, {stats.settled_batches} settled",
            ),
            ("oldest pending batch", age),
            ("attachments", f"{stats.attachments}, {size(stats.attachment_bytes)}"),
            ("processes", f"{stats.processes} ({stats.running_processes} running)"),
            ("events", stats.events),
            ("grants", stats.grants),
            ("live leases", stats.live_leases),
            ("subscriptions", stats.subscriptions),
            ("occurrences", f"{stats.occurrences} ({stats.undelivered} deliveries undelivered)"),
            ("schedules", stats.schedules),
            ("artifacts", stats.artifacts),
        ]
    )
    return 0


def schema(call: Call) -> int:
    """Print the statements that create the schema, or distribute it. Opens nothing."""
    url = call.url()
    text = holdfast.ddl(url, options=call.settings(url, migrate=False), distribute_by=call.options.distribute_by)
    if not text:
        raise Refused("a store in memory has no schema")
    if call.options.json:
        call.terminal.json({"ddl": text})
    else:
        call.terminal.text(text.rstrip())
    return 0


COMMANDS = (
    Command(
        "init",
        "create a store",
        init,
        examples=("holdfast init --url agent.db", "holdfast init --url postgresql://db/app --schema agents"),
        json="An object: `created` (false if the store was there already), `schema_version`.",
        notes="Leaves an existing store as it is. No other command makes one.",
        without=("--attachments",),
    ),
    Command(
        "migrate",
        "upgrade a store's schema to this version",
        migrate,
        examples=("holdfast migrate --url agent.db",),
        json="An object: the schema versions `from` and `to`, equal if nothing was to be done.",
    ),
    Command(
        "status",
        "show row counts and pending work",
        status,
        examples=("holdfast status --url agent.db", "holdfast status --json | jq .pending_batches"),
        json="An object: `durability`, and every field of `Stats`.",
    ),
    Command(
        "schema",
        "print the SQL that creates the schema",
        schema,
        arguments=(
            argument(
                "--distribute-by",
                choices=("schema", "family"),
                help="print the statements that spread the schema over a Citus cluster instead",
            ),
        ),
        examples=(
            "holdfast schema --url postgresql://db/app --schema agents > agents.sql",
            "holdfast schema --url postgresql://db/app --distribute-by family | psql postgresql://db/app",
        ),
        json="An object: `ddl`.",
        notes="Opens no store, so it need not exist.",
        without=("--attachments", "--lock-timeout"),
    ),
)
