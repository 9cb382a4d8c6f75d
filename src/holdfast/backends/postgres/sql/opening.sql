-- How a schema says what it is.

-- A version that a policy hides would make the schema look like another program's.
-- name: begin_opening
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL row_security = off

-- Alone in its statement: one that also reads would read a snapshot from before the lock was given.
-- name: lock_schema
SELECT pg_advisory_xact_lock($1::bigint)

-- name: find_schema
SELECT
    (SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = $1::text),
    (
        SELECT count(*)
        FROM pg_catalog.pg_class AS class
        JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
        WHERE namespace.nspname = $1::text
    ),
    (
        SELECT count(*)
        FROM pg_catalog.pg_class AS class
        JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
        WHERE namespace.nspname = $1::text
            AND class.relname = 'settings'
            AND class.relkind = 'r'
    ),
    current_setting('server_version_num')::bigint,
    current_setting('server_encoding')

-- name: create_schema
CREATE SCHEMA {schema}

-- name: find_version
SELECT value
FROM {schema}.settings
WHERE name = 'schema_version'

-- name: save_version
INSERT INTO {schema}.settings (
    name, value
) VALUES (
    'schema_version', $1::bigint
)
ON CONFLICT (name) DO UPDATE
SET value = excluded.value

-- A migration takes as long as it takes, and so does the wait for somebody else's.
-- name: unlimited
SET LOCAL row_security = off;
SET LOCAL lock_timeout = 0;
SET LOCAL statement_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL client_min_messages = warning
