-- What is done to a schema of our own that no store would do.

-- name: drop_schema
DROP SCHEMA IF EXISTS {schema} CASCADE

-- Not TRUNCATE, which makes new files for every index.
-- name: list_tables
SELECT format('DELETE FROM %I.%I', schemaname, tablename) AS statement
FROM pg_tables
WHERE schemaname = $1
    AND tablename <> 'settings'

-- name: count_objects
SELECT count(*)
FROM pg_class
JOIN pg_namespace
    ON pg_namespace.oid = pg_class.relnamespace
WHERE pg_namespace.nspname = $1

-- name: server_version
SELECT current_setting('server_version')

-- name: other_sessions
SELECT pid
FROM pg_stat_activity
WHERE datname = current_database()
    AND pid <> pg_backend_pid()
    AND application_name = $1

-- name: cancel_backend
SELECT pg_cancel_backend($1)

-- name: terminate_others
SELECT count(pg_terminate_backend(pid))
FROM pg_stat_activity
WHERE datname = current_database()
    AND pid <> pg_backend_pid()
    AND application_name = $1
