-- Processes and their events.

-- columns: process_columns
process_id, registration_hash, status, waiting, definition_hash, originator_session_id, wake_session_id,
wake_frame_id, event_count, created_at_ms, updated_at_ms, body, external_ref, wait, outcome, run_kind, run_version,
recovery, due_at_ms, claimable_at_ms, claim_fence, attempt, suspended, lost_owner, last_error

-- columns: event_columns
process_id, sequence, type, payload_hash, replay_key, terminal_state, wake, acked, occurred_at_ms, payload

-- Differs: a transaction that may write locks the row, so that two on one process never interleave.
-- name: find_process
-- part: lock
WITH locked AS (
-- end part
SELECT {process_columns}
FROM {schema}.processes
WHERE process_id = $1::text
-- part: lock
FOR UPDATE
)
SELECT
    {process_columns},
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM locked
-- end part

-- name: insert_process
INSERT INTO {schema}.processes (
    {process_columns}
) VALUES (
    $1::text, $2::text, $3::text, $4::bigint, $5::text, $6::text, $7::text, $8::text, $9::bigint, $10::bigint,
    $11::bigint, $12::bytea, $13::bytea, $14::bytea, $15::bytea, $16::text, $17::text, $18::text, $19::bigint,
    $20::bigint, $21::bigint, $22::bigint, $23::bigint, $24::text, $25::text
)

-- name: save_process
UPDATE {schema}.processes
SET
    registration_hash = $2::text,
    status = $3::text,
    waiting = $4::bigint,
    definition_hash = $5::text,
    originator_session_id = $6::text,
    wake_session_id = $7::text,
    wake_frame_id = $8::text,
    event_count = $9::bigint,
    created_at_ms = $10::bigint,
    updated_at_ms = $11::bigint,
    body = $12::bytea,
    external_ref = $13::bytea,
    wait = $14::bytea,
    outcome = $15::bytea,
    run_kind = $16::text,
    run_version = $17::text,
    recovery = $18::text,
    due_at_ms = $19::bigint,
    claimable_at_ms = $20::bigint,
    claim_fence = $21::bigint,
    attempt = $22::bigint,
    suspended = $23::bigint,
    lost_owner = $24::text,
    last_error = $25::text
WHERE process_id = $1::text

-- name: list_processes
-- page: {process_columns}
-- order: process_id
-- bytes: body, external_ref, wait, outcome, last_error up to $4
SELECT {process_columns}
FROM {schema}.processes
WHERE process_id > $1::text
    AND ($3::bigint IS NULL OR waiting = $3::bigint)
ORDER BY process_id
LIMIT $2::bigint

-- name: list_processes_of_status
-- page: {process_columns}
-- order: process_id
-- bytes: body, external_ref, wait, outcome, last_error up to $5
SELECT {process_columns}
FROM {schema}.processes
WHERE process_id || '' > $1::text
    AND status = $4::text
    AND ($3::bigint IS NULL OR waiting = $3::bigint)
ORDER BY process_id || ''
LIMIT $2::bigint

-- name: list_processes_of_definition
-- page: {process_columns}
-- order: process_id
-- bytes: body, external_ref, wait, outcome, last_error up to $6
SELECT {process_columns}
FROM {schema}.processes
WHERE process_id > $1::text
    AND definition_hash = $5::text
    AND ($4::text IS NULL OR status = $4::text)
    AND ($3::bigint IS NULL OR waiting = $3::bigint)
ORDER BY process_id
LIMIT $2::bigint

-- name: list_processes_of_originator
-- page: {process_columns}
-- order: process_id
-- bytes: body, external_ref, wait, outcome, last_error up to $7
SELECT {process_columns}
FROM {schema}.processes
WHERE process_id > $1::text
    AND originator_session_id = $6::text
    AND ($5::text IS NULL OR definition_hash = $5::text)
    AND ($4::text IS NULL OR status = $4::text)
    AND ($3::bigint IS NULL OR waiting = $3::bigint)
ORDER BY process_id
LIMIT $2::bigint

-- name: oldest_due_runs
-- Differs: first_claimable calls a function, which a role that may only read tables has no right to. A recursive query
-- that looks up each version would not run on a cluster that spreads processes over its nodes.
SELECT DISTINCT ON (run_kind, run_version)
    process_id, claimable_at_ms
FROM {schema}.processes
WHERE claimable_at_ms <= $1::bigint
ORDER BY run_kind, run_version, claimable_at_ms, process_id

-- name: run_limits
SELECT
    declared.kind, declared.at_once, count(lease.resource), min(lease.expires_at_ms)
FROM {schema}.limits AS declared
LEFT JOIN {schema}.processes AS run
    ON run.run_kind = declared.kind
        AND run.claim_fence > 0
LEFT JOIN {schema}.leases AS lease
    ON lease.kind = 'process'
        AND lease.resource = run.process_id
        AND lease.token_hash IS NOT NULL
        AND lease.expires_at_ms > $2::bigint
WHERE declared.at_once IS NOT NULL
    AND ($1::text[] IS NULL OR declared.kind = ANY($1::text[]))
GROUP BY declared.kind, declared.at_once

-- name: put_off_run
UPDATE {schema}.processes
SET claimable_at_ms = $2::bigint
WHERE process_id = $1::text

-- name: list_ended_processes
-- page: {process_columns}
-- order: updated_at_ms, process_id
-- bytes: body, external_ref, wait, outcome, last_error up to $4
SELECT {process_columns}
FROM {schema}.processes
WHERE ended_at_ms IS NOT NULL
    AND (ended_at_ms, process_id) > ($1::bigint, $2::text)
ORDER BY ended_at_ms, process_id
LIMIT $3::bigint

-- name: clear_wake_targets
UPDATE {schema}.processes
SET
    wake_session_id = NULL,
    wake_frame_id = NULL,
    updated_at_ms = $2::bigint
WHERE wake_session_id = $1::text

-- name: insert_event
INSERT INTO {schema}.events (
    {event_columns}
) VALUES (
    $1::text, $2::bigint, $3::text, $4::text, $5::text, $6::text, $7::bytea, $8::bigint, $9::bigint, $10::bytea
)

-- name: insert_events
INSERT INTO {schema}.events (
    {event_columns}
)
SELECT {event_columns}
FROM unnest(
    $1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::bigint[], $9::bigint[],
    $10::bytea[]
) AS event (
    {event_columns}
)

-- name: find_event
SELECT {event_columns}
FROM {schema}.events
WHERE process_id = $1::text
    AND sequence = $2::bigint

-- name: find_replay
SELECT {event_columns}
FROM {schema}.events
WHERE process_id || '' = $1::text
    AND replay_key = $2::text

-- name: find_replays
SELECT {event_columns}
FROM {schema}.events
WHERE process_id || '' = $1::text
    AND replay_key = ANY($2::text[])

-- name: list_events
-- page: {event_columns}
-- order: sequence
-- bytes: payload, wake up to $4
SELECT {event_columns}
FROM {schema}.events
WHERE process_id = $1::text
    AND sequence > $2::bigint
ORDER BY sequence
LIMIT $3::bigint

-- name: list_events_of_type
-- page: {event_columns}
-- order: sequence
-- bytes: payload, wake up to $5
SELECT {event_columns}
FROM {schema}.events
WHERE process_id || '' = $1::text
    AND type = $4::text
    AND sequence > $2::bigint
ORDER BY sequence
LIMIT $3::bigint

-- name: list_pending_wakes
-- page: {event_columns}
-- order: sequence
-- bytes: payload, wake up to $5
SELECT {event_columns}
FROM {schema}.events
WHERE process_id || '' = $1::text
    AND sequence > $2::bigint
    AND wake IS NOT NULL
    AND acked = 0
    AND ($4::text IS NULL OR type = $4::text)
ORDER BY sequence
LIMIT $3::bigint

-- name: recent_events
-- page: {event_columns}
-- order: sequence DESC
-- bytes: payload, wake up to $3
SELECT {event_columns}
FROM {schema}.events
WHERE process_id = $1::text
ORDER BY sequence DESC
LIMIT $2::bigint

-- name: count_events
SELECT count(*)
FROM {schema}.events
WHERE process_id || '' = $1::text
    AND type = $2::text
    AND sequence <= $3::bigint

-- name: ack_wake
UPDATE {schema}.events
SET acked = 1
WHERE process_id = $1::text
    AND sequence = $2::bigint
    AND wake IS NOT NULL

-- name: ended_processes
SELECT process_id
FROM {schema}.processes
WHERE process_id = ANY($1::text[])
    AND ended_at_ms <= $2::bigint
ORDER BY process_id

-- name: lock_ended_processes
SELECT process_id
FROM {schema}.processes
WHERE process_id = ANY($1::text[])
    AND ended_at_ms <= $2::bigint
ORDER BY process_id
FOR UPDATE

-- name: count_events_of_processes
SELECT count(*)
FROM {schema}.events
WHERE process_id = ANY($1::text[])

-- name: drop_events_of_processes
DELETE FROM {schema}.events
WHERE process_id = ANY($1::text[])

-- name: drop_grants_of_processes
DELETE FROM {schema}.grants
WHERE process_id = ANY($1::text[])

-- name: drop_processes
DELETE FROM {schema}.processes
WHERE process_id = ANY($1::text[])
