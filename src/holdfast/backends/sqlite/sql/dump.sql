-- Every column of every row of every table, for tests that compare before with after.

-- name: dump_settings
SELECT
    name, value
FROM settings
ORDER BY name

-- name: dump_sessions
SELECT
    session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms,
    deleted_at_ms, created_at_ms, name, owner, model, cwd, parent_session_id, caused_by
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
SELECT
    node_key, session_key, epoch, node_id, parent_key, kind, frame_id, caused_by, created_at_ms, payload, mark,
    revision
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
    session_key, source, model, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, place
FROM usage
ORDER BY 1, 2, 3

-- name: dump_blobs
SELECT
    family, hash, encoding, base_hash, size, body
FROM blobs
ORDER BY family, hash

-- name: dump_batches
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, kind, priority,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, settled_revision, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive, claim_size, attempts,
    retry_at_ms, last_error, limit_key, claim_slot
FROM batches
ORDER BY enqueue_seq

-- name: dump_ready
SELECT
    session_key, family, level, kind, priority, served, due_at_ms, claimed_upto, waits_for, paused
FROM ready
ORDER BY session_key

-- name: dump_limits
SELECT
    kind, at_once, per_key, paused, declared_at_ms, opens_at_ms
FROM limits
ORDER BY kind

-- name: dump_slots
SELECT
    kind, limit_key, session_key, claim_id, expires_at_ms
FROM slots
ORDER BY kind, limit_key, session_key, claim_id

-- name: dump_waiting_keys
SELECT
    kind, limit_key, opens_at_ms
FROM waiting_keys
ORDER BY kind, limit_key

-- name: dump_leases
SELECT
    kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms
FROM leases
ORDER BY kind, resource

-- name: dump_attachments
SELECT
    session_key, attachment_id, family, uri, media_type, byte_count, width, height, label, intent_at_ms,
    committed_at_ms, stored_in, intent_id
FROM attachments
ORDER BY session_key, attachment_id

-- name: dump_attachment_objects
SELECT
    family, attachment_id, hash, encoding, size, body
FROM attachment_objects
ORDER BY family, attachment_id

-- name: dump_doomed_objects
SELECT
    family, attachment_id, deleting_until_ms
FROM doomed_objects
ORDER BY family, attachment_id, deleting_until_ms

-- name: dump_processes
SELECT
    process_id, registration_hash, status, waiting, definition_hash, originator_session_id, wake_session_id,
    wake_frame_id, event_count, created_at_ms, updated_at_ms, body, external_ref, wait, outcome,
    run_kind, run_version, recovery, due_at_ms, claimable_at_ms, claim_fence, attempt, suspended, lost_owner,
    last_error
FROM processes
ORDER BY process_id

-- name: dump_events
SELECT
    process_id, sequence, type, payload_hash, replay_key, terminal_state, wake, acked, occurred_at_ms, payload
FROM events
ORDER BY process_id, sequence

-- name: dump_grants
SELECT
    session_id, frame_id, process_id, descriptor
FROM grants
ORDER BY session_id, frame_id, process_id

-- name: dump_subscriptions
SELECT
    sequence, session_id, frame_id, key, definition_hash, name, source_type, source_key, target_hash, enabled,
    created_at_ms, updated_at_ms, body, run_kind
FROM subscriptions
ORDER BY sequence

-- name: dump_occurrences
SELECT
    occurrence_id, source_type, source_key, idempotency_key, request_hash, occurred_at_ms, payload, source
FROM occurrences
ORDER BY occurrence_id

-- name: dump_deliveries
SELECT
    occurrence_id, subscription_sequence, process_id, state, reserved_at_ms, updated_at_ms, failure, run_kind
FROM deliveries
ORDER BY occurrence_id, subscription_sequence

-- name: dump_schedules
SELECT
    name, cron, tz, paused, seen_ms, due_at_ms, last_tick_ms, failure, created_at_ms, updated_at_ms, body
FROM schedules
ORDER BY name

-- name: dump_artifacts
SELECT
    kind, ref, hash, encoding, size, stored_at_ms, body
FROM artifacts
ORDER BY kind, ref

-- name: dump_workers
SELECT
    worker_id, started_at_ms, heartbeat_at_ms, expires_at_ms, report
FROM workers
ORDER BY worker_id

-- name: dump_stream_blocks
SELECT
    family, session_key, claim_id, block, turn_id, begun_at_ms, items, body
FROM stream_blocks
ORDER BY family, session_key, claim_id, block

-- name: dump_session_labels
SELECT
    family, session_key, key, value
FROM session_labels
ORDER BY family, session_key, key
