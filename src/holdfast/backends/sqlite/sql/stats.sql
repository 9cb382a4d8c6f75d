-- Counts of the whole store. The columns are named like the fields of `records.maintenance.Stats`.
-- A count with a condition takes many steps, so that it can be stopped; one without reads all pages in a single step.

-- name: stats
SELECT
    (SELECT count(*) FROM sessions WHERE deleted_at_ms IS NULL) AS sessions,
    (SELECT count(*) FROM sessions WHERE deleted_at_ms IS NOT NULL) AS deleted_sessions,
    (SELECT count(*) FROM revisions WHERE TRUE) AS revisions,
    (SELECT count(*) FROM nodes WHERE TRUE) AS nodes,
    (SELECT count(*) FROM blobs WHERE TRUE) AS blobs,
    (SELECT coalesce(sum(length(body)), 0) FROM blobs) AS blob_bytes,
    (
        SELECT count(*)
        FROM batches
        WHERE settled_state IS NULL
            AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= :now_ms)
    ) AS pending_batches,
    (
        SELECT count(*)
        FROM batches
        WHERE settled_state IS NULL
            AND claim_expires_at_ms > :now_ms
    ) AS claimed_batches,
    (SELECT count(*) FROM batches WHERE settled_state IS NOT NULL) AS settled_batches,
    (SELECT count(*) FROM attachments WHERE TRUE) AS attachments,
    (SELECT coalesce(sum(length(body)), 0) FROM attachment_objects) AS attachment_bytes,
    (SELECT count(*) FROM processes WHERE TRUE) AS processes,
    (SELECT count(*) FROM processes WHERE status = 'running') AS running_processes,
    (SELECT count(*) FROM events WHERE TRUE) AS events,
    (SELECT count(*) FROM grants WHERE TRUE) AS grants,
    (SELECT count(*) FROM leases WHERE token_hash IS NOT NULL AND expires_at_ms > :now_ms) AS live_leases,
    (SELECT count(*) FROM subscriptions WHERE TRUE) AS subscriptions,
    (SELECT count(*) FROM occurrences WHERE TRUE) AS occurrences,
    (
        SELECT count(*)
        FROM deliveries
        WHERE state = 'reserved'
            AND NOT EXISTS (SELECT 1 FROM processes WHERE processes.process_id = deliveries.process_id)
    ) AS undelivered,
    (SELECT count(*) FROM schedules WHERE TRUE) AS schedules,
    (SELECT count(*) FROM artifacts WHERE TRUE) AS artifacts,
    (
        SELECT min(enqueued_at_ms)
        FROM batches
        WHERE settled_state IS NULL
            AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= :now_ms)
    ) AS oldest_pending_batch_at_ms

-- name: bytes_on_disk
SELECT page_count * page_size
FROM pragma_page_count
CROSS JOIN pragma_page_size

-- Counts and ages of expired leases on processes, undelivered deliveries and ready work. The columns are named like the
-- fields of `records.diagnosis.StoreFacts`.
-- name: waiting
SELECT
    leases.number AS expired_leases,
    leases.oldest_ms AS oldest_expired_lease_at_ms,
    deliveries.number AS undelivered,
    deliveries.oldest_ms AS oldest_undelivered_at_ms,
    queue.number AS ready_batches,
    queue.oldest_ms AS oldest_ready_batch_at_ms
FROM (
    SELECT count(*) AS number, min(expires_at_ms) AS oldest_ms
    FROM leases
    WHERE kind = 'process'
        AND token_hash IS NOT NULL
        AND expires_at_ms <= :now_ms
) AS leases
CROSS JOIN (
    SELECT count(*) AS number, min(reserved_at_ms) AS oldest_ms
    FROM deliveries
    WHERE state = 'reserved'
        AND NOT EXISTS (SELECT 1 FROM processes WHERE processes.process_id = deliveries.process_id)
) AS deliveries
CROSS JOIN (
    SELECT count(*) AS number, min(max(available_at_ms, enqueued_at_ms, retry_at_ms)) AS oldest_ms
    FROM batches
    WHERE settled_state IS NULL
        AND available_at_ms <= :now_ms
        AND retry_at_ms <= :now_ms
        AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= :now_ms)
) AS queue

-- name: find_indexes
SELECT name
FROM sqlite_schema
WHERE type = 'index'
