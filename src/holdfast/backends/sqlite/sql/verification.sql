-- Reads of verification: every table by its key, skipping rows that cannot be read.
-- A walk starts at a key, includes it if `:inclusive`, and skips `:skip` rows.

-- name: walk_sessions
SELECT {session_columns}
FROM sessions
WHERE session_key >= :session_key
    AND (:inclusive OR session_key <> :session_key)
ORDER BY session_key
LIMIT :limit OFFSET :skip

-- name: walk_revisions
SELECT
    revision_key >> 32, revision_key & 4294967295, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id,
    checkpoint_ref, refs, body, committed_at_ms
FROM revisions
WHERE revision_key >= max(:session_key, 0) << 32 | max(:revision, 0)
    AND (:inclusive OR revision_key <> :session_key << 32 | :revision)
ORDER BY revision_key
LIMIT :limit OFFSET :skip

-- name: walk_nodes
SELECT
    {node.node_columns},
    parent.node_id
FROM nodes AS node
LEFT JOIN nodes AS parent
    ON parent.node_key = node.parent_key
WHERE node.node_key >= :node_key
    AND (:inclusive OR node.node_key <> :node_key)
ORDER BY node.node_key
LIMIT :limit OFFSET :skip

-- Differs: a session's first counter is in the session's row.
-- name: walk_usage
SELECT
    session_key, usage_source, usage_model, usage_input_tokens, usage_output_tokens, usage_cached_input_tokens,
    usage_reasoning_tokens, usage_place
FROM sessions
WHERE coalesce(
        usage_source, usage_model, usage_input_tokens, usage_output_tokens, usage_cached_input_tokens,
        usage_reasoning_tokens, usage_place
    ) IS NOT NULL
    AND session_key >= :session_key
    AND (
        session_key > :session_key
        OR (coalesce(usage_source, ''), coalesce(usage_model, '')) >= (:source, :model)
    )
    AND (:inclusive OR (session_key, usage_source, usage_model) IS NOT (:session_key, :source, :model))
UNION ALL
SELECT
    session_key, {usage_columns}
FROM usage
WHERE (session_key, source, model) >= (:session_key, :source, :model)
    AND (:inclusive OR (session_key, source, model) <> (:session_key, :source, :model))
ORDER BY 1, 2, 3
LIMIT :limit OFFSET :skip

-- name: walk_blobs
SELECT
    family, hash, encoding, base_hash, size, body
FROM blobs
WHERE (family, hash) >= (:family, :hash)
    AND (:inclusive OR (family, hash) <> (:family, :hash))
ORDER BY family, hash
LIMIT :limit OFFSET :skip

-- name: walk_batches
SELECT {batch_columns}
FROM batches
WHERE enqueue_seq >= :enqueue_seq
    AND (:inclusive OR enqueue_seq <> :enqueue_seq)
ORDER BY enqueue_seq
LIMIT :limit OFFSET :skip

-- name: walk_ready
SELECT {ready_columns}
FROM ready
WHERE session_key >= :session_key
    AND (:inclusive OR session_key <> :session_key)
ORDER BY session_key
LIMIT :limit OFFSET :skip

-- name: walk_limits
SELECT {limit_columns}
FROM limits
WHERE kind >= :kind
    AND (:inclusive OR kind <> :kind)
ORDER BY kind
LIMIT :limit OFFSET :skip

-- name: walk_slots
SELECT {slot_columns}
FROM slots
WHERE (kind, limit_key, session_key, claim_id) >= (:kind, :limit_key, :session_key, :claim_id)
    AND (:inclusive OR (kind, limit_key, session_key, claim_id) <> (:kind, :limit_key, :session_key, :claim_id))
ORDER BY kind, limit_key, session_key, claim_id
LIMIT :limit OFFSET :skip

-- name: walk_waiting_keys
SELECT
    kind, limit_key, opens_at_ms
FROM waiting_keys
WHERE (kind, limit_key) >= (:kind, :limit_key)
    AND (:inclusive OR (kind, limit_key) <> (:kind, :limit_key))
ORDER BY kind, limit_key
LIMIT :limit OFFSET :skip

-- name: walk_leases
SELECT {lease_columns}
FROM leases
WHERE (kind, resource) >= (:kind, :resource)
    AND (:inclusive OR (kind, resource) <> (:kind, :resource))
ORDER BY kind, resource
LIMIT :limit OFFSET :skip

-- name: walk_attachments
SELECT {attachment_columns}
FROM attachments
WHERE (session_key, attachment_id) >= (:session_key, :attachment_id)
    AND (:inclusive OR (session_key, attachment_id) <> (:session_key, :attachment_id))
ORDER BY session_key, attachment_id
LIMIT :limit OFFSET :skip

-- name: walk_attachment_objects
SELECT
    family, attachment_id, hash, encoding, size, body
FROM attachment_objects
WHERE (family, attachment_id) >= (:family, :attachment_id)
    AND (:inclusive OR (family, attachment_id) <> (:family, :attachment_id))
ORDER BY family, attachment_id
LIMIT :limit OFFSET :skip

-- name: walk_object_deletions
SELECT
    family, attachment_id, deleting_until_ms
FROM object_deletions
WHERE (family, attachment_id, deleting_until_ms) >= (:family, :attachment_id, :deleting_until_ms)
    AND (:inclusive OR (family, attachment_id, deleting_until_ms) <> (:family, :attachment_id, :deleting_until_ms))
ORDER BY family, attachment_id, deleting_until_ms
LIMIT :limit OFFSET :skip

-- name: walk_processes
SELECT {process_columns}
FROM processes
WHERE process_id >= :process_id
    AND (:inclusive OR process_id <> :process_id)
ORDER BY process_id
LIMIT :limit OFFSET :skip

-- name: walk_events
SELECT {event_columns}
FROM events
WHERE (process_id, sequence) >= (:process_id, :sequence)
    AND (:inclusive OR (process_id, sequence) <> (:process_id, :sequence))
ORDER BY process_id, sequence
LIMIT :limit OFFSET :skip

-- name: walk_grants
SELECT
    session_id, frame_id, process_id, descriptor
FROM grants
WHERE (session_id, frame_id, process_id) >= (:session_id, :frame_id, :process_id)
    AND (:inclusive OR (session_id, frame_id, process_id) <> (:session_id, :frame_id, :process_id))
ORDER BY session_id, frame_id, process_id
LIMIT :limit OFFSET :skip

-- name: walk_subscriptions
SELECT {subscription_columns}
FROM subscriptions
WHERE sequence >= :sequence
    AND (:inclusive OR sequence <> :sequence)
ORDER BY sequence
LIMIT :limit OFFSET :skip

-- name: walk_occurrences
SELECT {occurrence_columns}
FROM occurrences
WHERE occurrence_id >= :occurrence_id
    AND (:inclusive OR occurrence_id <> :occurrence_id)
ORDER BY occurrence_id
LIMIT :limit OFFSET :skip

-- name: walk_deliveries
SELECT {delivery_columns}
FROM deliveries
WHERE (occurrence_id, subscription_sequence) >= (:occurrence_id, :subscription_sequence)
    AND (:inclusive OR (occurrence_id, subscription_sequence) <> (:occurrence_id, :subscription_sequence))
ORDER BY occurrence_id, subscription_sequence
LIMIT :limit OFFSET :skip

-- name: walk_schedules
SELECT {schedule_columns}
FROM schedules
WHERE name >= :name
    AND (:inclusive OR name <> :name)
ORDER BY name
LIMIT :limit OFFSET :skip

-- name: walk_artifacts
SELECT {artifact_columns}
FROM artifacts
WHERE (kind, ref) >= (:kind, :ref)
    AND (:inclusive OR (kind, ref) <> (:kind, :ref))
ORDER BY kind, ref
LIMIT :limit OFFSET :skip

-- name: walk_workers
SELECT {worker_columns}
FROM workers
WHERE worker_id >= :worker_id
    AND (:inclusive OR worker_id <> :worker_id)
ORDER BY worker_id
LIMIT :limit OFFSET :skip

-- name: walk_stream_blocks
SELECT {stream_columns}
FROM stream_blocks
WHERE (family, session_key, claim_id, block) >= (:family, :session_key, :claim_id, :block)
    AND (:inclusive OR (family, session_key, claim_id, block) <> (:family, :session_key, :claim_id, :block))
ORDER BY family, session_key, claim_id, block
LIMIT :limit OFFSET :skip

-- name: walk_session_labels
SELECT
    family, session_key, key, value
FROM session_labels
WHERE (family, session_key, key) >= (:family, :session_key, :key)
    AND (:inclusive OR (family, session_key, key) <> (:family, :session_key, :key))
ORDER BY family, session_key, key
LIMIT :limit OFFSET :skip

-- name: walk_settings
SELECT
    name, value
FROM settings
WHERE name >= :name
    AND (:inclusive OR name <> :name)
ORDER BY name
LIMIT :limit OFFSET :skip

-- Rows and keys that others refer to.

-- name: sessions_with_keys
SELECT {session_columns}
FROM sessions
WHERE session_key IN (SELECT value ->> 0 FROM json_each(?1))

-- name: revisions_with_keys
SELECT
    revision_key >> 32, revision_key & 4294967295, family, turn_id, fingerprint, epoch, node_count, leaf_key, leaf_id,
    checkpoint_ref, refs, body, committed_at_ms
FROM json_each(?1) AS pair
CROSS JOIN revisions
    ON revisions.revision_key = pair.value ->> 0 << 32 | pair.value ->> 1
        AND pair.value ->> 1 <= 4294967295

-- Without documents: many large ones would be in memory at once.
-- name: nodes_with_keys
SELECT
    node.node_key, node.session_key, node.epoch, node.node_id, node.parent_key, node.kind, node.frame_id,
    NULL, node.created_at_ms, X'6e756c6c', node.mark, node.revision,
    parent.node_id
FROM nodes AS node
LEFT JOIN nodes AS parent
    ON parent.node_key = node.parent_key
WHERE node.node_key IN (SELECT value ->> 0 FROM json_each(?1))

-- name: processes_with_keys
SELECT {process_columns}
FROM processes
WHERE process_id IN (SELECT value ->> 0 FROM json_each(?1))

-- name: keys_of_processes
SELECT process_id
FROM processes
WHERE process_id IN (SELECT value ->> 0 FROM json_each(?1))

-- name: ready_with_keys
SELECT {ready_columns}
FROM ready
WHERE session_key IN (SELECT value ->> 0 FROM json_each(?1))

-- name: keys_of_limits
SELECT kind
FROM limits
WHERE kind IN (SELECT value ->> 0 FROM json_each(?1))

-- name: keys_of_waiting_keys
SELECT
    waiting_keys.kind, waiting_keys.limit_key
FROM json_each(?1) AS pair
CROSS JOIN waiting_keys
    ON waiting_keys.kind = pair.value ->> 0
        AND waiting_keys.limit_key = pair.value ->> 1

-- name: keys_of_subscriptions
SELECT sequence
FROM subscriptions
WHERE sequence IN (SELECT value ->> 0 FROM json_each(?1))

-- name: keys_of_occurrences
SELECT occurrence_id
FROM occurrences
WHERE occurrence_id IN (SELECT value ->> 0 FROM json_each(?1))

-- name: keys_of_blobs
SELECT
    blobs.family, blobs.hash
FROM json_each(?1) AS pair
CROSS JOIN blobs
    ON blobs.family = pair.value ->> 0
        AND blobs.hash = pair.value ->> 1

-- name: keys_of_attachment_objects
SELECT
    attachment_objects.family, attachment_objects.attachment_id
FROM json_each(?1) AS pair
CROSS JOIN attachment_objects
    ON attachment_objects.family = pair.value ->> 0
        AND attachment_objects.attachment_id = pair.value ->> 1

-- name: span_of_sessions
SELECT
    coalesce(min(incarnation), 0),
    coalesce(max(incarnation), 0),
    count(*)
FROM sessions
WHERE session_id = ?1

-- name: span_of_revisions
SELECT
    coalesce(min(revision_key), 0) & 4294967295,
    coalesce(max(revision_key), 0) & 4294967295,
    count(*)
FROM revisions
WHERE revision_key BETWEEN ?1 << 32 AND ?1 << 32 | 4294967295

-- name: span_of_nodes
SELECT
    coalesce(min(node_key), 0),
    coalesce(max(node_key), 0),
    count(*)
FROM nodes
WHERE node_key BETWEEN ?1 << 32 AND ?1 << 32 | 4294967295

-- name: span_of_events
SELECT
    coalesce(min(sequence), 0),
    coalesce(max(sequence), 0),
    count(*)
FROM events
WHERE process_id = ?1

-- name: count_endings
SELECT count(terminal_state)
FROM events
WHERE process_id = ?1

-- name: check_structures
PRAGMA integrity_check(100)

-- name: check_structures_of_table
SELECT integrity_check
FROM pragma_integrity_check(?1)

-- Ids that are not listed although their block is complete: a lookup would miss the row.
-- name: unlisted_nodes
SELECT 'table node_ids: the id of node ' || node.node_key || ' is not listed'
FROM sessions
CROSS JOIN nodes AS node
    ON node.node_key > sessions.session_key << 32
        AND node.node_key <= sessions.session_key << 32 | sessions.node_count - sessions.node_count % ?1
WHERE NOT EXISTS (
    SELECT 1
    FROM node_ids AS listed
    WHERE listed.session_key = node.session_key
        AND listed.epoch = node.epoch
        AND listed.node_id = node.node_id
        AND listed.node_key = node.node_key
)
LIMIT 100

-- name: unlisted_turns
SELECT
    'table turn_ids: the id of turn ' || quote(turn.turn_id) || ' of session ' || sessions.session_key || ' is not listed'
FROM sessions
CROSS JOIN revisions AS turn
    ON turn.revision_key > sessions.session_key << 32
        AND turn.revision_key <= sessions.session_key << 32 | sessions.revision - sessions.revision % ?1
WHERE turn.turn_id IS NOT NULL
    AND NOT EXISTS (
        SELECT 1
        FROM turn_ids AS listed
        WHERE listed.session_key = sessions.session_key
            AND listed.turn_id = turn.turn_id
            AND listed.revision_key = turn.revision_key
    )
LIMIT 100

-- Listed ids that no row has: a lookup would find another row, or none.
-- name: mislisted_nodes
SELECT 'table node_ids: no node ' || quote(listed.node_key) || ' has the id that is listed for it'
FROM node_ids AS listed
WHERE NOT EXISTS (
    SELECT 1
    FROM nodes AS node
    WHERE node.node_key = listed.node_key
        AND node.session_key = listed.session_key
        AND node.epoch = listed.epoch
        AND node.node_id = listed.node_id
)
LIMIT 100

-- name: mislisted_turns
SELECT 'table turn_ids: no revision ' || quote(listed.revision_key) || ' has the turn id that is listed for it'
FROM turn_ids AS listed
WHERE NOT EXISTS (
    SELECT 1
    FROM revisions AS turn
    WHERE turn.revision_key = listed.revision_key
        AND turn.revision_key >> 32 = listed.session_key
        AND turn.turn_id = listed.turn_id
)
LIMIT 100

-- Ids in a last block that an earlier row has, too: the key of the list refuses them only once the block is complete.
-- A deleted session counts no nodes, so that all its nodes are looked at.
-- name: doubled_nodes
SELECT 'table nodes: node ' || node.node_key || ' has the id of an earlier one'
FROM sessions
CROSS JOIN nodes AS node
    ON node.node_key > sessions.session_key << 32 | sessions.node_count - sessions.node_count % ?1
        AND node.node_key <= sessions.session_key << 32 | 4294967295
WHERE EXISTS (
    SELECT 1
    FROM node_ids AS listed
    WHERE listed.session_key = node.session_key
        AND listed.epoch = node.epoch
        AND listed.node_id = node.node_id
        AND listed.node_key <> node.node_key
)
    OR EXISTS (
        SELECT 1
        FROM nodes AS earlier
        WHERE earlier.node_key > node.node_key - node.node_key % ?1
            AND earlier.node_key < node.node_key
            AND earlier.epoch = node.epoch
            AND earlier.node_id = node.node_id
    )
LIMIT 100

-- name: doubled_turns
SELECT
    'table revisions: turn ' || quote(turn.turn_id) || ' of session ' || sessions.session_key || ' was committed twice'
FROM sessions
CROSS JOIN revisions AS turn
    ON turn.revision_key > sessions.session_key << 32 | sessions.revision - sessions.revision % ?1
        AND turn.revision_key <= sessions.session_key << 32 | 4294967295
WHERE EXISTS (
    SELECT 1
    FROM turn_ids AS listed
    WHERE listed.session_key = sessions.session_key
        AND listed.turn_id = turn.turn_id
        AND listed.revision_key <> turn.revision_key
)
    OR EXISTS (
        SELECT 1
        FROM revisions AS earlier
        WHERE earlier.revision_key > turn.revision_key - turn.revision_key % ?1
            AND earlier.revision_key < turn.revision_key
            AND earlier.turn_id = turn.turn_id
    )
LIMIT 100

-- name: foreign_tables
SELECT entry.name
FROM sqlite_schema AS entry
WHERE entry.type = 'table'
    AND entry.name NOT LIKE 'sqlite\_%' ESCAPE '\'
    AND entry.name NOT IN (SELECT value FROM json_each(?1))
LIMIT 1

-- name: declared_columns
SELECT entry.name, listed.strict, declared.name, declared.type, declared."notnull", declared.pk
FROM sqlite_schema AS entry
CROSS JOIN pragma_table_list AS listed ON listed.name = entry.name AND listed.schema = 'main'
CROSS JOIN pragma_table_info(entry.name) AS declared
WHERE entry.type = 'table'
