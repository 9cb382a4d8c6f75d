-- How much of everything there is: the columns are named like the fields of `records.maintenance.Stats`.

-- name: census
SELECT
    (SELECT count(*) FROM {schema}.sessions WHERE deleted_at_ms IS NULL) AS sessions,
    (SELECT count(*) FROM {schema}.sessions WHERE deleted_at_ms IS NOT NULL) AS deleted_sessions,
    (SELECT count(*) FROM {schema}.revisions) AS revisions,
    (SELECT count(*) FROM {schema}.nodes) AS nodes,
    (SELECT count(*) FROM {schema}.blobs) AS blobs,
    (SELECT coalesce(sum(octet_length(body)), 0)::bigint FROM {schema}.blobs) AS blob_bytes,
    (
        SELECT count(*)
        FROM {schema}.work
        WHERE settled_state IS NULL
            AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= $1::bigint)
    ) AS pending_work,
    (
        SELECT count(*)
        FROM {schema}.work
        WHERE settled_state IS NULL
            AND claim_expires_at_ms > $1::bigint
    ) AS claimed_work,
    (SELECT count(*) FROM {schema}.work WHERE settled_state IS NOT NULL) AS settled_work,
    (SELECT count(*) FROM {schema}.attachments) AS attachments,
    (SELECT coalesce(sum(octet_length(body)), 0)::bigint FROM {schema}.attachment_objects) AS attachment_bytes,
    (SELECT count(*) FROM {schema}.processes) AS processes,
    (SELECT count(*) FROM {schema}.processes WHERE status = 'running') AS running_processes,
    (SELECT count(*) FROM {schema}.events) AS events,
    (SELECT count(*) FROM {schema}.grants) AS grants,
    (SELECT count(*) FROM {schema}.leases WHERE token_hash IS NOT NULL AND expires_at_ms > $1::bigint) AS live_leases,
    (SELECT count(*) FROM {schema}.subscriptions) AS subscriptions,
    (SELECT count(*) FROM {schema}.occurrences) AS occurrences,
    (
        SELECT count(*)
        FROM {schema}.deliveries
        WHERE state = 'reserved'
            AND NOT EXISTS (SELECT 1 FROM {schema}.processes WHERE processes.process_id = deliveries.process_id)
    ) AS undelivered,
    (SELECT count(*) FROM {schema}.artifacts) AS artifacts,
    (
        SELECT min(enqueued_at_ms)
        FROM {schema}.work
        WHERE settled_state IS NULL
            AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= $1::bigint)
    ) AS oldest_pending_work_at_ms

-- name: bytes_on_disk
SELECT coalesce(sum(pg_total_relation_size(class.oid)), 0)::bigint
FROM pg_catalog.pg_class AS class
JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
WHERE namespace.nspname = $1::text
    AND class.relkind = 'r'
