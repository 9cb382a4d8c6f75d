-- Where transactions begin and end. Each text is sent alone, without parameters.

-- Writers wait for the rows that they lock, and read what was committed meanwhile.
-- name: begin_write
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE

-- One snapshot for the whole operation.
-- name: begin_read
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: commit
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
