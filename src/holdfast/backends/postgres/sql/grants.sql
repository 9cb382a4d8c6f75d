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
SELECT
    session_id, frame_id, granted_id, descriptor, {process_columns}
FROM (
    SELECT
        *,
        sum(
            octet_length(descriptor) + octet_length(body) + coalesce(octet_length(external_ref), 0)
            + coalesce(octet_length(wait), 0) + coalesce(octet_length(outcome), 0)
        ) OVER (
            ORDER BY granted_id ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING
        ) AS bytes_before
    FROM (
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
    ) AS page
) AS measured
WHERE coalesce(bytes_before, 0) < $6::bigint
ORDER BY granted_id

-- name: grants_of_process
SELECT
    session_id, frame_id, process_id, descriptor
FROM (
    SELECT
        *,
        sum(octet_length(descriptor)) OVER (
            ORDER BY session_id, frame_id ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING
        ) AS bytes_before
    FROM (
        SELECT
            session_id, frame_id, process_id, descriptor
        FROM {schema}.grants
        WHERE process_id = $1::text
            AND (session_id, frame_id) > ($2::text, $3::text)
        ORDER BY session_id, frame_id
        LIMIT $4::bigint
    ) AS page
) AS measured
WHERE coalesce(bytes_before, 0) < $5::bigint
ORDER BY session_id, frame_id

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
