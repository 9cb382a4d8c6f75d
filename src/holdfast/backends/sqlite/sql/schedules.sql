-- Schedules.

-- columns: schedule_columns
name, cron, tz, paused, seen_ms, due_at_ms, last_tick_ms, failure, created_at_ms, updated_at_ms, body

-- name: find_schedule
SELECT {schedule_columns}
FROM schedules
WHERE name = ?1

-- name: first_due_schedule
SELECT name, due_at_ms
FROM schedules
WHERE due_at_ms IS NOT NULL
ORDER BY due_at_ms, name
LIMIT 1

-- name: list_schedules
SELECT {schedule_columns}
FROM schedules
WHERE name > ?1
ORDER BY name
LIMIT ?2

-- name: failed_schedules
SELECT name
FROM schedules
WHERE failure IS NOT NULL
ORDER BY name
LIMIT ?1

-- name: insert_schedule
INSERT INTO schedules (
    {schedule_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11
)

-- name: save_schedule
UPDATE schedules
SET
    cron = ?2,
    tz = ?3,
    paused = ?4,
    seen_ms = ?5,
    due_at_ms = ?6,
    last_tick_ms = ?7,
    failure = ?8,
    created_at_ms = ?9,
    updated_at_ms = ?10,
    body = ?11
WHERE name = ?1
    AND seen_ms = ?12

-- name: drop_schedule
DELETE FROM schedules
WHERE name = ?1
