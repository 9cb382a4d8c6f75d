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

-- The same behind a transaction pooler, where limits hold for one transaction and are set in it.
-- name: now_ms_with_limits
SELECT
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    set_config('lock_timeout', $1::text, true),
    set_config('statement_timeout', $2::text, true)

-- name: notify
SELECT pg_notify($1::text, $2::text)

-- name: ping
SELECT 1
