-- Handles on processes.

-- name: find_grant
SELECT
    session_id, frame_id, process_id, descriptor
FROM grants
WHERE session_id = ?1
    AND frame_id = ?2
    AND process_id = ?3

-- name: save_grant
INSERT INTO grants (
    session_id, frame_id, process_id, descriptor
) VALUES (
    ?1, ?2, ?3, ?4
)
ON CONFLICT (session_id, frame_id, process_id) DO UPDATE
SET descriptor = excluded.descriptor

-- name: drop_grant
DELETE FROM grants
WHERE session_id = ?1
    AND frame_id = ?2
    AND process_id = ?3

-- Differs: CROSS JOIN keeps the given order, so that the listing is read along the grants.
-- name: list_grants
SELECT
    granted.session_id, granted.frame_id, granted.process_id, granted.descriptor,
    {process.process_columns}
FROM grants AS granted
CROSS JOIN processes AS process
    ON process.process_id = granted.process_id
WHERE granted.session_id = :session_id
    AND granted.frame_id = :frame_id
    AND granted.process_id > :after
    AND (:running_only = 0 OR process.status = 'running')
ORDER BY granted.process_id
LIMIT :limit

-- name: grants_of_process
SELECT
    session_id, frame_id, process_id, descriptor
FROM grants
WHERE process_id = ?1
    AND (session_id, frame_id) > (?2, ?3)
ORDER BY session_id, frame_id
LIMIT ?4

-- name: count_grants
SELECT
    process.process_id,
    process.status,
    (
        SELECT count(*)
        FROM grants AS other
        WHERE other.process_id = process.process_id
            AND other.session_id <> ?1
    )
FROM (
    SELECT DISTINCT process_id
    FROM grants
    WHERE session_id = ?1
) AS granted
CROSS JOIN processes AS process
    ON process.process_id = granted.process_id
ORDER BY process.process_id

-- name: drop_session_grants
DELETE FROM grants
WHERE session_id = ?1
