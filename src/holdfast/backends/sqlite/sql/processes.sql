-- Processes and their events.

-- columns: process_columns
process_id, registration_hash, status, waiting, definition_hash, originator_session_id, wake_session_id,
wake_frame_id, event_count, created_at_ms, updated_at_ms, body, external_ref, wait, outcome, run_kind, run_version,
recovery, due_at_ms, claimable_at_ms, claim_fence, attempt, suspended, lost_owner, last_error

-- columns: event_columns
process_id, sequence, type, payload_hash, replay_key, terminal_state, wake, acked, occurred_at_ms, payload

-- name: find_process
SELECT {process_columns}
FROM processes
WHERE process_id = ?1

-- name: insert_process
INSERT INTO processes (
    {process_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
    ?21, ?22, ?23, ?24, ?25
)

-- SQLite writes an index again if one of its columns is set, even to the same value. The part is left out if possible.
-- name: save_process
UPDATE processes
SET
    -- part: indexed
    status = ?3,
    definition_hash = ?5,
    originator_session_id = ?6,
    wake_session_id = ?7,
    run_kind = ?16,
    run_version = ?17,
    claimable_at_ms = ?20,
    -- end part
    registration_hash = ?2,
    waiting = ?4,
    wake_frame_id = ?8,
    event_count = ?9,
    created_at_ms = ?10,
    updated_at_ms = ?11,
    body = ?12,
    external_ref = ?13,
    wait = ?14,
    outcome = ?15,
    recovery = ?18,
    due_at_ms = ?19,
    claim_fence = ?21,
    attempt = ?22,
    suspended = ?23,
    lost_owner = ?24,
    last_error = ?25
WHERE process_id = ?1

-- name: list_processes
SELECT {process_columns}
FROM processes
WHERE process_id > :after
    AND (:waiting IS NULL OR waiting = :waiting)
ORDER BY process_id
LIMIT :limit

-- name: list_processes_of_status
SELECT {process_columns}
FROM processes
WHERE status = :status
    AND process_id > :after
    AND (:waiting IS NULL OR waiting = :waiting)
ORDER BY process_id
LIMIT :limit

-- Differs: what is compared through a unary plus does not lead the planner to another index.
-- name: list_processes_of_definition
SELECT {process_columns}
FROM processes
WHERE definition_hash = :definition_hash
    AND process_id > :after
    AND (:status IS NULL OR +status = :status)
    AND (:waiting IS NULL OR waiting = :waiting)
ORDER BY process_id
LIMIT :limit

-- name: list_processes_of_originator
SELECT {process_columns}
FROM processes
WHERE originator_session_id = :originator_session_id
    AND process_id > :after
    AND (:definition_hash IS NULL OR +definition_hash = :definition_hash)
    AND (:status IS NULL OR +status = :status)
    AND (:waiting IS NULL OR waiting = :waiting)
ORDER BY process_id
LIMIT :limit

-- Differs: three look-ups by the transaction, in place of a function.
-- name: next_run_kind
SELECT run_kind, run_version
FROM processes
WHERE claimable_at_ms IS NOT NULL
    AND run_version IS NOT NULL
    AND (run_kind, run_version) > (?1, ?2)
ORDER BY run_kind, run_version
LIMIT 1

-- name: next_run_version
SELECT run_version
FROM processes
WHERE claimable_at_ms IS NOT NULL
    AND run_kind = ?1
    AND run_version > ?2
ORDER BY run_version
LIMIT 1

-- name: first_claimable
SELECT process_id, claimable_at_ms
FROM processes
WHERE claimable_at_ms IS NOT NULL
    AND run_kind = ?1
    AND run_version = ?2
    AND NOT EXISTS (SELECT 1 FROM limits WHERE kind = ?1 AND paused > 0)
ORDER BY claimable_at_ms, process_id
LIMIT 1

-- Differs: one look-up for each version by the transaction, in place of a recursive query.
-- name: oldest_due_run
SELECT process_id, claimable_at_ms
FROM processes
WHERE claimable_at_ms IS NOT NULL
    AND run_kind = ?1
    AND run_version = ?2
    AND claimable_at_ms <= ?3
ORDER BY claimable_at_ms, process_id
LIMIT 1

-- name: run_limits
SELECT
    declared.kind, declared.at_once, count(lease.resource), min(lease.expires_at_ms)
FROM json_each(?1)
CROSS JOIN limits AS declared
    ON declared.kind = json_each.value
LEFT JOIN processes AS run INDEXED BY processes_claimed
    ON run.run_kind = declared.kind
        AND run.claim_fence > 0
LEFT JOIN leases AS lease
    ON lease.kind = 'process'
        AND lease.resource = run.process_id
        AND lease.token_hash IS NOT NULL
        AND lease.expires_at_ms > ?2
WHERE declared.at_once IS NOT NULL
GROUP BY declared.kind

-- name: put_off_run
UPDATE processes
SET claimable_at_ms = ?2
WHERE process_id = ?1

-- name: list_ended_processes
SELECT {process_columns}
FROM processes
WHERE status <> 'running'
    AND (updated_at_ms, process_id) > (?1, ?2)
ORDER BY updated_at_ms, process_id
LIMIT ?3

-- name: clear_wake_targets
UPDATE processes
SET
    wake_session_id = NULL,
    wake_frame_id = NULL,
    updated_at_ms = ?2
WHERE wake_session_id = ?1

-- name: find_event
SELECT {event_columns}
FROM events
WHERE process_id = ?1
    AND sequence = ?2

-- name: find_replay
SELECT {event_columns}
FROM events
WHERE process_id = ?1
    AND replay_key = ?2

-- name: find_replays
SELECT {event_columns}
FROM events
WHERE process_id = ?1
    AND replay_key IN (SELECT value FROM json_each(?2))

-- name: insert_event
INSERT INTO events (
    {event_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10
)

-- name: list_events
SELECT {event_columns}
FROM events
WHERE process_id = :process_id
    AND sequence > :after
ORDER BY sequence
LIMIT :limit

-- name: list_events_of_type
SELECT {event_columns}
FROM events
WHERE process_id = :process_id
    AND type = :type
    AND sequence > :after
ORDER BY sequence
LIMIT :limit

-- name: list_pending_wakes
SELECT {event_columns}
FROM events INDEXED BY events_pending_wake
WHERE process_id = :process_id
    AND sequence > :after
    AND wake IS NOT NULL
    AND acked = 0
    AND (:type IS NULL OR type = :type)
ORDER BY sequence
LIMIT :limit

-- name: recent_events
SELECT {event_columns}
FROM events
WHERE process_id = ?1
ORDER BY sequence DESC
LIMIT ?2

-- name: count_events
SELECT count(*)
FROM events
WHERE process_id = ?1
    AND type = ?2
    AND sequence <= ?3

-- name: ack_wake
UPDATE events
SET acked = 1
WHERE process_id = ?1
    AND sequence = ?2
    AND wake IS NOT NULL

-- name: ended_processes
SELECT process_id
FROM processes
WHERE process_id IN (SELECT value FROM json_each(?1))
    AND status <> 'running'
    AND updated_at_ms <= ?2

-- name: count_events_of_processes
SELECT count(*)
FROM events
WHERE process_id IN (SELECT value FROM json_each(?1))

-- name: drop_events_of_processes
DELETE FROM events
WHERE process_id IN (SELECT value FROM json_each(?1))

-- name: drop_grants_of_processes
DELETE FROM grants
WHERE (session_id, frame_id, process_id) IN (
    SELECT
        granted.session_id,
        granted.frame_id,
        granted.process_id
    FROM json_each(?1) AS ended
    CROSS JOIN grants AS granted
        ON granted.process_id = ended.value
)

-- name: drop_processes
DELETE FROM processes
WHERE process_id IN (SELECT value FROM json_each(?1))
