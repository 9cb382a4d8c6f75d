-- Schedules.

-- columns: schedule_columns
name, cron, tz, paused, seen_ms, due_at_ms, last_tick_ms, failure, created_at_ms, updated_at_ms, body

-- Differs: the clock is read behind the lock.
-- name: find_schedule
-- part: lock
WITH locked AS (
-- end part
SELECT {schedule_columns}
FROM {schema}.schedules
WHERE name = $1::text
-- part: lock
FOR UPDATE
)
SELECT
    {schedule_columns},
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM locked
-- end part

-- name: first_due_schedule
SELECT name, due_at_ms
FROM {schema}.schedules
WHERE due_at_ms IS NOT NULL
ORDER BY due_at_ms, name
LIMIT 1

-- name: list_schedules
-- page: {schedule_columns}
-- order: name
-- bytes: body up to $3
SELECT {schedule_columns}
FROM {schema}.schedules
WHERE name > $1::text
ORDER BY name
LIMIT $2::bigint

-- name: failed_schedules
SELECT name
FROM {schema}.schedules
WHERE failure IS NOT NULL
ORDER BY name
LIMIT $1::bigint

-- name: insert_schedule
INSERT INTO {schema}.schedules (
    {schedule_columns}
) VALUES (
    $1::text, $2::text, $3::text, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::text, $9::bigint, $10::bigint,
    $11::bytea
)

-- name: save_schedule
UPDATE {schema}.schedules
SET
    cron = $2::text,
    tz = $3::text,
    paused = $4::bigint,
    seen_ms = $5::bigint,
    due_at_ms = $6::bigint,
    last_tick_ms = $7::bigint,
    failure = $8::text,
    created_at_ms = $9::bigint,
    updated_at_ms = $10::bigint,
    body = $11::bytea
WHERE name = $1::text
    AND seen_ms = $12::bigint

-- name: drop_schedule
DELETE FROM {schema}.schedules
WHERE name = $1::text
