-- Every column of every row of every table, for tests that compare before with after.

-- name: dump_settings
SELECT
    name, value
FROM settings
ORDER BY name

-- name: dump_sessions
SELECT {session_columns}
FROM sessions
ORDER BY session_key

-- name: dump_revisions
SELECT
    revision_key >> 32, revision_key & 4294967295, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id,
    checkpoint_ref, refs, body, committed_at_ms
FROM revisions
ORDER BY revision_key

-- name: dump_turn_ids
SELECT
    session_key, turn_id, revision_key
FROM turn_ids
ORDER BY session_key, turn_id

-- name: dump_node_ids
SELECT
    session_key, epoch, node_id, node_key
FROM node_ids
ORDER BY session_key, epoch, node_id

-- name: dump_nodes
SELECT {node_columns}
FROM nodes
ORDER BY node_key

-- name: dump_usage
SELECT
    session_key, usage_source, usage_model, usage_input_tokens, usage_output_tokens, usage_cached_input_tokens,
    usage_reasoning_tokens, usage_place
FROM sessions
WHERE coalesce(
        usage_source, usage_model, usage_input_tokens, usage_output_tokens, usage_cached_input_tokens,
        usage_reasoning_tokens, usage_place
    ) IS NOT NULL
UNION ALL
SELECT
    session_key, {usage_columns}
FROM usage
ORDER BY 1, 2, 3

-- name: dump_blobs
SELECT
    family, hash, encoding, base_hash, size, body
FROM blobs
ORDER BY family, hash

-- name: dump_batches
SELECT {batch_columns}
FROM batches
ORDER BY enqueue_seq

-- name: dump_ready
SELECT {ready_columns}
FROM ready
ORDER BY session_key

-- name: dump_limits
SELECT {limit_columns}
FROM limits
ORDER BY kind

-- name: dump_slots
SELECT {slot_columns}
FROM slots
ORDER BY kind, limit_key, session_key, claim_id

-- name: dump_waiting_keys
SELECT
    kind, limit_key, opens_at_ms
FROM waiting_keys
ORDER BY kind, limit_key

-- name: dump_leases
SELECT {lease_columns}
FROM leases
ORDER BY kind, resource

-- name: dump_attachments
SELECT {attachment_columns}
FROM attachments
ORDER BY session_key, attachment_id

-- name: dump_attachment_objects
SELECT
    family, attachment_id, hash, encoding, size, body
FROM attachment_objects
ORDER BY family, attachment_id

-- name: dump_object_deletions
SELECT
    family, attachment_id, deleting_until_ms
FROM object_deletions
ORDER BY family, attachment_id, deleting_until_ms

-- name: dump_processes
SELECT {process_columns}
FROM processes
ORDER BY process_id

-- name: dump_events
SELECT {event_columns}
FROM events
ORDER BY process_id, sequence

-- name: dump_grants
SELECT
    session_id, frame_id, process_id, descriptor
FROM grants
ORDER BY session_id, frame_id, process_id

-- name: dump_subscriptions
SELECT {subscription_columns}
FROM subscriptions
ORDER BY sequence

-- name: dump_occurrences
SELECT {occurrence_columns}
FROM occurrences
ORDER BY occurrence_id

-- name: dump_deliveries
SELECT {delivery_columns}
FROM deliveries
ORDER BY occurrence_id, subscription_sequence

-- name: dump_schedules
SELECT {schedule_columns}
FROM schedules
ORDER BY name

-- name: dump_artifacts
SELECT {artifact_columns}
FROM artifacts
ORDER BY kind, ref

-- name: dump_workers
SELECT {worker_columns}
FROM workers
ORDER BY worker_id

-- name: dump_stream_blocks
SELECT {stream_columns}
FROM stream_blocks
ORDER BY family, session_key, claim_id, block

-- name: dump_session_labels
SELECT
    family, session_key, key, value
FROM session_labels
ORDER BY family, session_key, key
