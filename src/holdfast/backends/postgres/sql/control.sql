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

-- One reading of the server's clock, in milliseconds since the epoch.
-- name: now_ms
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint

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

-- The clock, and what kind of transaction the caller has begun.
-- name: now_ms_within
SELECT
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    current_setting('transaction_isolation'),
    current_setting('transaction_read_only')

-- Which schema of which database of which server this is; a standby that takes over keeps its server's number.
-- name: identify
SELECT
    control.system_identifier,
    (SELECT oid::bigint FROM pg_catalog.pg_database WHERE datname = current_database()),
    (SELECT oid::bigint FROM pg_catalog.pg_namespace WHERE nspname = $1::text)
FROM pg_catalog.pg_control_system() AS control

-- What is told is durable already, and nothing is lost with the telling: it does not wait for the disk.
-- name: notify
SELECT
    set_config('synchronous_commit', 'off', true),
    pg_notify($1::text, $2::text)

-- name: ping
SELECT 1
