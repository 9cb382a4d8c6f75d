-- Where transactions begin and end. Each text is sent alone, without parameters.

-- Writers wait for the rows that they lock, and read what was committed meanwhile.
-- name: begin_write
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE

-- One snapshot for the whole operation.
-- name: begin_read
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- An operation that found its work done has written nothing, and the server would not wait for a standby at its end. So
-- something is written then: the wait for it is a wait for all that was committed before, by whomever.
-- name: commit
SELECT CASE WHEN pg_current_xact_id_if_assigned() IS NULL THEN pg_logical_emit_message(true, 'holdfast', '') END;
COMMIT

-- Ends a transaction whose caller waits for no standby: it has only read, or told of what is durable already.
-- name: end_transaction
COMMIT

-- name: rollback
ROLLBACK

-- One reading of the server's clock, in milliseconds since the epoch, and what answers: the fields of
-- `server_watch.Origin`. Not every service that speaks PostgreSQL's protocol tells the position of its log.
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

-- Around one operation inside a transaction of a caller's.
-- name: save_operation
SAVEPOINT holdfast_operation

-- name: undo_operation
ROLLBACK TO SAVEPOINT holdfast_operation;
RELEASE SAVEPOINT holdfast_operation

-- name: release_operation
RELEASE SAVEPOINT holdfast_operation

-- As in commit: the caller's own commit has to wait also if our part of it has found its work done.
-- name: release_write
SELECT CASE WHEN pg_current_xact_id_if_assigned() IS NULL THEN pg_logical_emit_message(true, 'holdfast', '') END;
RELEASE SAVEPOINT holdfast_operation

-- The clock, what kind of transaction the caller has begun and on which server process, the settings named in $1, and a
-- table of the schema $2 of which row-level security may hide rows from the caller's role.
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

-- The settings again, and one notification for each payload, which the server delivers at the caller's commit.
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

-- Which schema of which database of which server this is; a standby that takes over keeps its server's number.
-- name: identify
SELECT
    control.system_identifier,
    (SELECT oid::bigint FROM pg_catalog.pg_database WHERE datname = current_database()),
    (SELECT oid::bigint FROM pg_catalog.pg_namespace WHERE nspname = $1::text)
FROM pg_catalog.pg_control_system() AS control

-- Only for a transaction of its own, never for a caller's: everything in it is committed without waiting for the disk.
-- The changes that it announces are durable already.
-- name: notify
SELECT
    set_config('synchronous_commit', 'off', true),
    pg_notify($1::text, $2::text)

-- A row if a pooler stands before the server: it makes up a process id of its own for each client, or keeps the settings
-- of our connections to itself. Sent alone, because behind a pooler two messages may reach two servers: the process id
-- that the client was given follows the text.
-- name: find_pooler
SELECT 1
WHERE false
    -- part: settings
    OR current_setting('row_security') <> 'off'
    OR current_setting('plan_cache_mode') <> 'force_generic_plan'
    -- end part
    OR pg_backend_pid() <>

-- A row if the driver's own names of prepared statements reach the server. This statement has one, unless the driver
-- keeps none, or a pooler gives them names of its own.
-- name: find_prepared
SELECT 1
FROM pg_catalog.pg_prepared_statements
WHERE starts_with(name, '__asyncpg_')
LIMIT 1

-- name: ping
SELECT 1
