-- Begin and end of transactions. Each of these texts is sent alone, without parameters.

-- Writers wait for row locks, and then read what was committed meanwhile. A cluster refuses to read rows of a
-- transaction that changed rows of the same node over several connections, so that it must use one for each node.
-- name: begin_write
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE
-- part: by_family
; SET LOCAL citus.multi_shard_modify_mode = 'sequential'
-- end part

-- One snapshot for the whole operation.
-- name: begin_read
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- An operation that found its work done has written nothing, and its commit would not wait for a standby. So it writes
-- a message to the log: waiting for that is waiting for all earlier commits, of any transaction.
-- name: commit
SELECT CASE WHEN pg_current_xact_id_if_assigned() IS NULL THEN pg_logical_emit_message(true, 'holdfast', '') END;
COMMIT

-- Commits a transaction that need not wait for standbys: it has only read, or has announced changes that are durable
-- already.
-- name: end_transaction
COMMIT

-- name: rollback
ROLLBACK

-- Returns the server's clock, in milliseconds since the epoch, and the fields of `server_watch.Origin`. Not every
-- service that speaks PostgreSQL's protocol reports its log position.
-- name: now_ms
SELECT
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    floor(extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint,
    (SELECT oid::bigint FROM pg_catalog.pg_database WHERE datname = current_database()),
    to_regclass('{schema}.sessions')::oid::bigint
    -- part: log
    , CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_flush_lsn()), 8) END
    , CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0')::bigint END
    -- end part

-- Returns whether this server has the head $1..$3 or a later one. The parameters are the fields of
-- `server_watch.KnownHead`. The revision may have been pruned; if it exists, it must be the same.
-- name: knows_head
SELECT
    EXISTS (
        SELECT 1
        FROM {schema}.sessions
        WHERE session_id = $1::text
            AND session_key = $2::bigint
            AND revision >= $3::bigint
    )
    AND NOT EXISTS (
        SELECT 1
        FROM {schema}.revisions
        WHERE family = $4::bigint
            AND session_key = $2::bigint
            AND revision = $3::bigint
            AND (committed_at_ms <> $5::bigint OR fingerprint <> $6::text)
    )

-- Savepoint around one operation inside a caller's transaction.
-- name: save_operation
SAVEPOINT holdfast_operation

-- name: undo_operation
ROLLBACK TO SAVEPOINT holdfast_operation;
RELEASE SAVEPOINT holdfast_operation

-- name: release_operation
RELEASE SAVEPOINT holdfast_operation

-- Ends an operation of a transaction of several, and begins the next.
-- name: next_operation
RELEASE SAVEPOINT holdfast_operation;
SAVEPOINT holdfast_operation

-- Undoes an operation of a transaction of several. The savepoint stays, for the next one.
-- name: undo_held_operation
ROLLBACK TO SAVEPOINT holdfast_operation

-- Writes a message as in commit: the caller's commit must wait for standbys even if the operation found its work done.
-- name: release_write
SELECT CASE WHEN pg_current_xact_id_if_assigned() IS NULL THEN pg_logical_emit_message(true, 'holdfast', '') END;
RELEASE SAVEPOINT holdfast_operation

-- Returns the clock, the isolation level and access mode of the caller's transaction, its server process, the values of
-- the settings $1, and one of the tables $3 in schema $2 whose rows row-level security may hide from the caller's role.
-- name: enter_transaction
SELECT
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    current_setting('transaction_isolation'),
    current_setting('transaction_read_only'),
    pg_backend_pid(),
    ARRAY(
        SELECT current_setting(asked.name, true)
        FROM unnest($1::text[]) WITH ORDINALITY AS asked (name, place)
        ORDER BY asked.place
    ),
    (
        SELECT relation.relname::text
        FROM pg_catalog.pg_class AS relation
        JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = relation.relnamespace
        WHERE namespace.nspname = $2::text
            AND relation.relname = ANY($3::text[])
            AND relation.relrowsecurity
            AND pg_catalog.row_security_active(relation.oid)
        LIMIT 1
    )

-- Returns the settings again, and queues one notification per payload, which the server delivers at the caller's
-- commit.
-- name: leave_transaction
SELECT
    ARRAY(
        SELECT current_setting(asked.name, true)
        FROM unnest($1::text[]) WITH ORDINALITY AS asked (name, place)
        ORDER BY asked.place
    ),
    (
        SELECT count(*)
        FROM unnest($3::text[]) AS payload
        CROSS JOIN LATERAL pg_notify($2::text, payload)
    )

-- Identifies the schema, its database and its server. A standby that takes over keeps the system identifier.
-- name: identify
SELECT
    control.system_identifier,
    (SELECT oid::bigint FROM pg_catalog.pg_database WHERE datname = current_database()),
    (SELECT oid::bigint FROM pg_catalog.pg_namespace WHERE nspname = $1::text)
FROM pg_catalog.pg_control_system() AS control

-- Returns the position of this transaction. Writes a message as in commit, so that there is a commit for a standby to
-- replay.
-- name: position
SELECT
    CASE WHEN pg_current_xact_id_if_assigned() IS NULL THEN pg_logical_emit_message(true, 'holdfast', '') END,
    {schema}.position_v1()

-- Returns whether the server is a standby, its timeline, and the status of the transaction $1. A later snapshot shows
-- the transaction if the status is 'committed', or 'ended' (so long ago that its status was forgotten). On a standby,
-- pg_current_snapshot() lists no running transactions, so only the status counts. A transaction that is newer than all
-- that have ended is running if it holds its lock; otherwise its number was not assigned yet. A standby knows its
-- timeline from the last restart point, or from the server that sends its log.
-- name: find_standing
SELECT
    pg_is_in_recovery()
    -- part: timeline
    , CASE
        WHEN pg_is_in_recovery() THEN greatest(
            (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()),
            (SELECT min_recovery_end_timeline FROM pg_catalog.pg_control_recovery()),
            (SELECT received_tli FROM pg_catalog.pg_stat_wal_receiver)
        )::bigint
        ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
    END
    -- end part
    -- part: transaction
    , CASE
        WHEN $1::text::xid8 < pg_snapshot_xmax(pg_current_snapshot())
            THEN coalesce(pg_xact_status($1::text::xid8), 'ended')
        WHEN NOT pg_is_in_recovery() AND EXISTS (
            SELECT 1
            FROM pg_catalog.pg_locks
            WHERE locktype = 'transactionid'
                AND transactionid = $1::text::xid8::xid
        ) THEN 'in progress'
        ELSE 'ahead'
    END
    -- end part

-- Only in a transaction of its own, never in that of a caller: it commits without waiting for the disk. The changes
-- that it announces are durable already.
-- name: notify
SELECT
    set_config('synchronous_commit', 'off', true),
    pg_notify($1::text, $2::text)

-- Returns a row if there is a pooler before the server: it gives each client a process id of its own, or does not pass
-- on the settings of the connection. Sent as one message, because a pooler may send two to two servers; so the client's
-- process id is appended to this text.
-- name: find_pooler
SELECT 1
WHERE false
    -- part: settings
    OR current_setting('row_security') <> 'off'
    OR current_setting('enable_bitmapscan') <> 'off'
    -- end part
    OR pg_backend_pid() <>

-- Returns a row if the driver's own names of prepared statements reach the server. This statement has such a name,
-- unless the driver prepares none, or a pooler renames them.
-- name: find_prepared
SELECT 1
FROM pg_catalog.pg_prepared_statements
WHERE starts_with(name, '__asyncpg_')
LIMIT 1

-- On a cluster, a generic plan cannot send a statement to the node that a parameter determines.
-- name: plan_each_time
SET plan_cache_mode = auto

-- name: ping
SELECT 1
