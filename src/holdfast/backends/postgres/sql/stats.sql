-- Counts of the whole store. The columns are named like the fields of `records.maintenance.Stats`.

-- name: stats
SELECT
    (SELECT count(*) FROM {schema}.sessions WHERE deleted_at_ms IS NULL) AS sessions,
    (SELECT count(*) FROM {schema}.sessions WHERE deleted_at_ms IS NOT NULL) AS deleted_sessions,
    (SELECT count(*) FROM {schema}.revisions) AS revisions,
    (SELECT count(*) FROM {schema}.nodes) AS nodes,
    (SELECT count(*) FROM {schema}.blobs) AS blobs,
    (SELECT coalesce(sum(octet_length(body)), 0)::bigint FROM {schema}.blobs) AS blob_bytes,
    (
        SELECT count(*)
        FROM {schema}.batches
        WHERE settled_state IS NULL
            AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= $1::bigint)
    ) AS pending_batches,
    (
        SELECT count(*)
        FROM {schema}.batches
        WHERE settled_state IS NULL
            AND claim_expires_at_ms > $1::bigint
    ) AS claimed_batches,
    (SELECT count(*) FROM {schema}.batches WHERE settled_state IS NOT NULL) AS settled_batches,
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
            -- part: one_place
            AND NOT EXISTS (SELECT 1 FROM {schema}.processes WHERE processes.process_id = deliveries.process_id)
            -- end part
            -- part: by_family
            AND process_id NOT IN (SELECT processes.process_id FROM {schema}.processes)
            -- end part
    ) AS undelivered,
    (SELECT count(*) FROM {schema}.schedules) AS schedules,
    (SELECT count(*) FROM {schema}.artifacts) AS artifacts,
    (
        SELECT min(enqueued_at_ms)
        FROM {schema}.batches
        WHERE settled_state IS NULL
            AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= $1::bigint)
    ) AS oldest_pending_batch_at_ms

-- name: bytes_on_disk
SELECT coalesce(sum(pg_total_relation_size(class.oid)), 0)::bigint
FROM pg_catalog.pg_class AS class
JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
WHERE namespace.nspname = $1::text
    AND class.relkind = 'r'

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
    FROM {schema}.leases
    WHERE kind = 'process'
        AND token_hash IS NOT NULL
        AND expires_at_ms <= $1::bigint
) AS leases
CROSS JOIN (
    SELECT count(*) AS number, min(reserved_at_ms) AS oldest_ms
    FROM {schema}.deliveries
    WHERE state = 'reserved'
        AND NOT EXISTS (SELECT 1 FROM {schema}.processes WHERE processes.process_id = deliveries.process_id)
) AS deliveries
CROSS JOIN (
    SELECT count(*) AS number, min(greatest(available_at_ms, enqueued_at_ms, retry_at_ms)) AS oldest_ms
    FROM {schema}.batches
    WHERE settled_state IS NULL
        AND available_at_ms <= $1::bigint
        AND retry_at_ms <= $1::bigint
        AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= $1::bigint)
) AS queue

-- Differs: an index whose creation failed exists, but is never used.
-- name: find_indexes
SELECT class.relname::text
FROM pg_catalog.pg_index AS entry
JOIN pg_catalog.pg_class AS class ON class.oid = entry.indexrelid
JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
WHERE namespace.nspname = $1::text
    AND entry.indisvalid
    AND entry.indisready

-- The server's facts about itself, in the order of the fields of `records.diagnosis.PostgresFacts`. Instead of the size
-- of the log, returns whether this role may read it. The server shows the age of other roles' transactions only to
-- roles that may read all statistics.
-- name: server_facts
SELECT
    current_setting('server_version_num')::bigint,
    current_setting('fsync')::boolean,
    current_setting('full_page_writes')::boolean,
    current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'),
    current_setting('autovacuum')::boolean,
    (
        SELECT coalesce(array_agg(class.relname::text ORDER BY class.relname::text), ARRAY[]::text[])
        FROM pg_catalog.pg_class AS class
        JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
        CROSS JOIN LATERAL pg_catalog.pg_options_to_table(class.reloptions) AS option
        WHERE namespace.nspname = $1::text
            AND class.relkind = 'r'
            AND option.option_name = 'autovacuum_enabled'
            AND NOT option.option_value::boolean
    ),
    (
        SELECT coalesce(array_agg(class.relname::text ORDER BY class.relname::text), ARRAY[]::text[])
        FROM pg_catalog.pg_class AS class
        JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
        WHERE namespace.nspname = $1::text
            AND class.relrowsecurity
            AND pg_catalog.row_security_active(class.oid)
    ),
    (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('max_connections')::bigint,
    (
        SELECT greatest(age(datfrozenxid)::bigint, mxid_age(datminmxid)::bigint)
        FROM pg_catalog.pg_database
        WHERE datname = current_database()
    ),
    (
        SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start) * 1000), 0)::bigint
        FROM pg_catalog.pg_stat_activity
        WHERE datname = current_database()
            AND backend_type = 'client backend'
            AND pid <> pg_backend_pid()
    ),
    (
        SELECT coalesce(max(extract(epoch FROM clock_timestamp() - state_change) * 1000), 0)::bigint
        FROM pg_catalog.pg_stat_activity
        WHERE datname = current_database()
            AND state LIKE 'idle in transaction%'
            AND pid <> pg_backend_pid()
    ),
    pg_size_bytes(current_setting('max_wal_size')),
    has_function_privilege('pg_catalog.pg_ls_waldir()', 'EXECUTE'),
    kept.slot_name,
    coalesce(kept.bytes, 0),
    (
        SELECT last_failed_time IS NOT NULL AND last_failed_time > coalesce(last_archived_time, '-infinity')
        FROM pg_catalog.pg_stat_archiver
    ),
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM (SELECT) AS server
LEFT JOIN (
    SELECT
        slot_name::text,
        pg_wal_lsn_diff(
            CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
            restart_lsn
        )::bigint AS bytes
    FROM pg_catalog.pg_replication_slots
    WHERE restart_lsn IS NOT NULL
    ORDER BY bytes DESC
    LIMIT 1
) AS kept ON true

-- A statement of its own, because it fails for a role that may not call the function.
-- name: log_bytes
SELECT coalesce(sum(size), 0)::bigint
FROM pg_catalog.pg_ls_waldir()
