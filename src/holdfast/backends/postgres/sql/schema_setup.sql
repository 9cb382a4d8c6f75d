-- Identifies, creates and locks a schema.

-- row_security is off, because a policy that hides the version would make the schema look like another program's.
-- name: begin_opening
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL row_security = off

-- A statement of its own: one that also reads would use a snapshot from before the lock was acquired.
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
    current_setting('server_encoding'),
    -- On a cluster, only the coordinator has the sequences.
    EXISTS (
        SELECT 1
        FROM pg_catalog.pg_class AS class
        JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
        WHERE namespace.nspname = $1::text
            AND class.relname = 'enqueue_seqs'
    )

-- name: create_schema
CREATE SCHEMA {schema}

-- name: find_version
SELECT value
FROM {schema}.settings
WHERE name = 'schema_version'

-- Returns the version, and the distribution over nodes (see the files distribute_by_*.sql).
-- name: find_layout
SELECT
    version.value,
    coalesce(distribution.value, 0)
FROM {schema}.settings AS version
LEFT JOIN {schema}.settings AS distribution
    ON distribution.name = 'distribution'
WHERE version.name = 'schema_version'

-- name: save_version
INSERT INTO {schema}.settings (
    name, value
) VALUES (
    'schema_version', $1::bigint
)
ON CONFLICT (name) DO UPDATE
SET value = excluded.value

-- Removes time limits: a migration may take long, and so may the wait for another process's migration.
-- name: unlimited
SET LOCAL row_security = off;
SET LOCAL lock_timeout = 0;
SET LOCAL statement_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL client_min_messages = warning
