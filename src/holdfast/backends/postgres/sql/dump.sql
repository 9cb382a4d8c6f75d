-- Every column of every row of every table, for tests that compare before with after.

-- name: dump_settings
SELECT
    name, value
FROM {schema}.settings
ORDER BY name

-- name: dump_sessions
SELECT {session_columns}
FROM {schema}.sessions
ORDER BY session_key

-- name: dump_revisions
SELECT {revision_columns}
FROM {schema}.revisions
ORDER BY session_key, revision

-- name: dump_nodes
SELECT
    family, {node_columns}
FROM {schema}.nodes
ORDER BY node_key

-- name: dump_usage
SELECT
    family, session_key, {usage_columns}
FROM {schema}.usage
ORDER BY session_key, source, model

-- name: dump_blobs
SELECT
    family, hash, encoding, base_hash, size, body
FROM {schema}.blobs
ORDER BY family, hash

-- name: dump_batches
SELECT {batch_columns}
FROM {schema}.batches
ORDER BY enqueue_seq

-- name: dump_ready
SELECT {ready_columns}
FROM {schema}.ready
ORDER BY session_key

-- name: dump_limits
SELECT {limit_columns}
FROM {schema}.limits
ORDER BY kind

-- name: dump_slots
SELECT {slot_columns}
FROM {schema}.slots
ORDER BY kind, limit_key, session_key, claim_id

-- name: dump_waiting_keys
SELECT
    kind, limit_key, opens_at_ms
FROM {schema}.waiting_keys
ORDER BY kind, limit_key

-- name: dump_leases
SELECT {lease_columns}
FROM {schema}.leases
ORDER BY kind, resource

-- name: dump_attachments
SELECT {attachment_columns}
FROM {schema}.attachments
ORDER BY session_key, attachment_id

-- name: dump_attachment_objects
SELECT
    family, attachment_id, hash, encoding, size, body
FROM {schema}.attachment_objects
ORDER BY family, attachment_id

-- name: dump_object_deletions
SELECT
    family, attachment_id, deleting_until_ms
FROM {schema}.object_deletions
ORDER BY family, attachment_id, deleting_until_ms

-- name: dump_processes
SELECT {process_columns}
FROM {schema}.processes
ORDER BY process_id

-- name: dump_events
SELECT {event_columns}
FROM {schema}.events
ORDER BY process_id, sequence

-- name: dump_grants
SELECT
    session_id, frame_id, process_id, descriptor
FROM {schema}.grants
ORDER BY session_id, frame_id, process_id

-- name: dump_subscriptions
SELECT {subscription_columns}
FROM {schema}.subscriptions
ORDER BY sequence

-- name: dump_occurrences
SELECT {occurrence_columns}
FROM {schema}.occurrences
ORDER BY occurrence_id

-- name: dump_deliveries
SELECT {delivery_columns}
FROM {schema}.deliveries
ORDER BY occurrence_id, subscription_sequence

-- name: dump_schedules
SELECT {schedule_columns}
FROM {schema}.schedules
ORDER BY name

-- name: dump_artifacts
SELECT {artifact_columns}
FROM {schema}.artifacts
ORDER BY kind, ref

-- name: dump_workers
SELECT {worker_columns}
FROM {schema}.workers
ORDER BY worker_id

-- name: dump_stream_blocks
SELECT {stream_columns}
FROM {schema}.stream_blocks
ORDER BY family, session_key, claim_id, block

-- name: dump_session_labels
SELECT
    family, session_key, key, value
FROM {schema}.session_labels
ORDER BY family, session_key, key
