-- Statements on a scratch schema that no store would run.

-- name: drop_schema
DROP SCHEMA IF EXISTS {schema} CASCADE

-- Not TRUNCATE, which makes new files for every index.
-- name: list_tables
SELECT format('DELETE FROM %I.%I', schemaname, tablename) AS statement
FROM pg_tables
WHERE schemaname = $1
    AND tablename <> 'settings'

-- name: scratch_schemas
SELECT nspname
FROM pg_namespace
WHERE starts_with(nspname, $1)
    AND nspname <> $2
ORDER BY nspname

-- name: server_version
SELECT current_setting('server_version')

-- name: make_tablespace
SELECT format('CREATE TABLESPACE %I LOCATION %L', $1::text, $2::text)

-- name: switch_log
SELECT pg_switch_wal()

-- name: cancel_backend
SELECT pg_cancel_backend($1)

-- Backends that work on our schema: every statement of a store names it.
-- name: working_on_scratch
SELECT pid
FROM pg_stat_activity
WHERE datname = current_database()
    AND pid <> pg_backend_pid()
    AND query LIKE '%' || $1 || '%'
    AND state = 'active'

-- Like working_on_scratch, with those that are inside a transaction between two statements.
-- name: inside_of_scratch
SELECT pid
FROM pg_stat_activity
WHERE datname = current_database()
    AND pid <> pg_backend_pid()
    AND query LIKE '%' || $1 || '%'
    AND (state = 'active' OR state LIKE 'idle in transaction%')

-- name: terminate_backend
SELECT pg_terminate_backend($1)

-- Ends each wait of a commit for its standby: by a cancellation, or with its connection.
-- name: end_replication_waits
SELECT CASE WHEN $1::boolean THEN pg_terminate_backend(pid) ELSE pg_cancel_backend(pid) END
FROM pg_stat_activity
WHERE wait_event = 'SyncRep'

-- name: hold_session
SELECT session_key
FROM {schema}.sessions
WHERE session_id = $1
FOR UPDATE

-- name: hold_queue
SELECT queue.session_key
FROM {schema}.sessions AS session
JOIN {schema}.ready AS queue
    ON queue.family = session.family
        AND queue.session_key = session.session_key
WHERE session.session_id = $1
FOR UPDATE OF queue

-- name: blocked_backends
SELECT count(*)
FROM pg_stat_activity
WHERE datname = current_database()
    AND pg_backend_pid() = ANY(pg_blocking_pids(pid))

-- name: clock_passed
SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint > $1::bigint

-- An application with rows of its own beside a store, on either database.
-- name: make_orders
CREATE TABLE IF NOT EXISTS {schema}.orders (number bigint PRIMARY KEY)

-- name: insert_order
INSERT INTO {schema}.orders (number) VALUES ($1)

-- name: list_orders
SELECT number
FROM {schema}.orders
ORDER BY number

-- name: begin
BEGIN

-- name: begin_immediate
BEGIN IMMEDIATE

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: save_part
SAVEPOINT part

-- name: undo_part
ROLLBACK TO SAVEPOINT part
