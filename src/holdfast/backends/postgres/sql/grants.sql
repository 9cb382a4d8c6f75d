-- Handles on processes.

-- name: find_grant
SELECT
    session_id, frame_id, process_id, descriptor
FROM {schema}.grants
WHERE session_id = $1::text
    AND frame_id = $2::text
    AND process_id = $3::text
-- part: lock
FOR UPDATE
-- end part

-- name: save_grant
INSERT INTO {schema}.grants (
    session_id, frame_id, process_id, descriptor
) VALUES (
    $1::text, $2::text, $3::text, $4::bytea
)
ON CONFLICT (session_id, frame_id, process_id) DO UPDATE
SET descriptor = excluded.descriptor

-- name: drop_grant
DELETE FROM {schema}.grants
WHERE session_id = $1::text
    AND frame_id = $2::text
    AND process_id = $3::text

-- name: list_grants
-- page: session_id, frame_id, granted_id, descriptor, {process_columns}
-- order: granted_id
-- bytes: descriptor, body, external_ref, wait, outcome, last_error up to $6
SELECT
    granted.session_id, granted.frame_id, granted.process_id AS granted_id, granted.descriptor,
    {process.process_columns}
FROM {schema}.grants AS granted
JOIN {schema}.processes AS process
    ON process.process_id = granted.process_id
WHERE granted.session_id = $1::text
    AND granted.frame_id = $2::text
    AND granted.process_id > $3::text
    AND (NOT $4::boolean OR process.status = 'running')
ORDER BY granted.process_id
LIMIT $5::bigint

-- name: grants_of_process
-- page: session_id, frame_id, process_id, descriptor
-- order: session_id, frame_id
-- bytes: descriptor up to $5
SELECT
    session_id, frame_id, process_id, descriptor
FROM {schema}.grants
WHERE process_id = $1::text
    AND (session_id, frame_id) > ($2::text, $3::text)
ORDER BY session_id, frame_id
LIMIT $4::bigint

-- name: count_grants
SELECT
    process.process_id,
    process.status,
    (
        SELECT count(*)
        FROM {schema}.grants AS other
        WHERE other.process_id = process.process_id
            AND other.session_id <> $1::text
    )
FROM (
    SELECT DISTINCT process_id
    FROM {schema}.grants
    WHERE session_id = $1::text
) AS granted
JOIN {schema}.processes AS process
    ON process.process_id = granted.process_id
ORDER BY process.process_id

-- name: drop_session_grants
DELETE FROM {schema}.grants
WHERE session_id = $1::text
