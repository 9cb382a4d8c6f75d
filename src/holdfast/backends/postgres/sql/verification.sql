-- Reads of verification: every table by its key, skipping rows that cannot be read.
-- A walk starts after a key, or at it if asked to, and skips a number of rows.
-- Differs: what a session owns is walked family by family, in the order of its primary key. Those walks select that key
-- before the row.

-- name: walk_sessions
-- page: {session_columns}
-- order: session_key
-- bytes: lineage, caused_by up to $5
SELECT {session_columns}
FROM {schema}.sessions
WHERE session_key >= $1::bigint
    AND ($2::boolean OR session_key <> $1::bigint)
ORDER BY session_key
LIMIT $4::bigint OFFSET $3::bigint

-- name: walk_revisions
-- page: key_family, key_session_key, key_revision, {revision_columns}
-- order: family, session_key, revision
-- bytes: refs, body up to $7
SELECT
    family AS key_family, session_key AS key_session_key, revision AS key_revision, {revision_columns}
FROM {schema}.revisions
WHERE (family, session_key, revision) >= ($1::bigint, $2::bigint, $3::bigint)
    AND ($4::boolean OR (family, session_key, revision) <> ($1::bigint, $2::bigint, $3::bigint))
ORDER BY family, session_key, revision
LIMIT $6::bigint OFFSET $5::bigint

-- name: walk_nodes
-- page: family, key_node_key, {node_columns}, parent_id
-- order: family, node_key
-- bytes: payload, caused_by up to $6
SELECT
    node.family, node.node_key AS key_node_key, {node.node_columns}, parent.node_id AS parent_id
FROM {schema}.nodes AS node
LEFT JOIN {schema}.nodes AS parent
    ON parent.family = node.family
        AND parent.node_key = node.parent_key
WHERE (node.family, node.node_key) >= ($1::bigint, $2::bigint)
    AND ($3::boolean OR (node.family, node.node_key) <> ($1::bigint, $2::bigint))
ORDER BY node.family, node.node_key
LIMIT $5::bigint OFFSET $4::bigint

-- name: walk_usage
SELECT
    family, session_key, source, model,
    session_key, {usage_columns}
FROM {schema}.usage
WHERE (family, session_key, source, model) >= ($1::bigint, $2::bigint, $3::text, $4::text)
    AND ($5::boolean OR (family, session_key, source, model) <> ($1::bigint, $2::bigint, $3::text, $4::text))
ORDER BY family, session_key, source, model
LIMIT $7::bigint OFFSET $6::bigint

-- name: walk_blobs
-- page: family, hash, encoding, base_hash, size, body
-- order: family, hash
-- bytes: body up to $6
SELECT
    family, hash, encoding, base_hash, size, body
FROM {schema}.blobs
WHERE (family, hash) >= ($1::bigint, $2::text)
    AND ($3::boolean OR (family, hash) <> ($1::bigint, $2::text))
ORDER BY family, hash
LIMIT $5::bigint OFFSET $4::bigint

-- name: walk_batches
-- page: key_family, key_session_key, key_enqueue_seq, {batch_columns}
-- order: family, session_key, enqueue_seq
-- bytes: payloads up to $7
SELECT
    family AS key_family, session_key AS key_session_key, enqueue_seq AS key_enqueue_seq, {batch_columns}
FROM {schema}.batches
WHERE (family, session_key, enqueue_seq) >= ($1::bigint, $2::bigint, $3::bigint)
    AND ($4::boolean OR (family, session_key, enqueue_seq) <> ($1::bigint, $2::bigint, $3::bigint))
ORDER BY family, session_key, enqueue_seq
LIMIT $6::bigint OFFSET $5::bigint

-- name: walk_ready
SELECT
    family, session_key,
    {ready_columns}
FROM {schema}.ready
WHERE (family, session_key) >= ($1::bigint, $2::bigint)
    AND ($3::boolean OR (family, session_key) <> ($1::bigint, $2::bigint))
ORDER BY family, session_key
LIMIT $5::bigint OFFSET $4::bigint

-- name: walk_limits
SELECT {limit_columns}
FROM {schema}.limits
WHERE kind >= $1::text
    AND ($2::boolean OR kind <> $1::text)
ORDER BY kind
LIMIT $4::bigint OFFSET $3::bigint

-- name: walk_slots
SELECT {slot_columns}
FROM {schema}.slots
WHERE (kind, limit_key, session_key, claim_id) >= ($1::text, $2::text, $3::bigint, $4::text)
    AND ($5::boolean OR (kind, limit_key, session_key, claim_id) <> ($1::text, $2::text, $3::bigint, $4::text))
ORDER BY kind, limit_key, session_key, claim_id
LIMIT $7::bigint OFFSET $6::bigint

-- name: walk_waiting_keys
SELECT
    kind, limit_key, opens_at_ms
FROM {schema}.waiting_keys
WHERE (kind, limit_key) >= ($1::text, $2::text)
    AND ($3::boolean OR (kind, limit_key) <> ($1::text, $2::text))
ORDER BY kind, limit_key
LIMIT $5::bigint OFFSET $4::bigint

-- name: walk_leases
SELECT {lease_columns}
FROM {schema}.leases
WHERE (kind, resource) >= ($1::text, $2::text)
    AND ($3::boolean OR (kind, resource) <> ($1::text, $2::text))
ORDER BY kind, resource
LIMIT $5::bigint OFFSET $4::bigint

-- name: walk_attachments
SELECT
    family, session_key, attachment_id,
    {attachment_columns}
FROM {schema}.attachments
WHERE (family, session_key, attachment_id) >= ($1::bigint, $2::bigint, $3::text)
    AND ($4::boolean OR (family, session_key, attachment_id) <> ($1::bigint, $2::bigint, $3::text))
ORDER BY family, session_key, attachment_id
LIMIT $6::bigint OFFSET $5::bigint

-- name: walk_attachment_objects
-- page: family, attachment_id, hash, encoding, size, body
-- order: family, attachment_id
-- bytes: body up to $6
SELECT
    family, attachment_id, hash, encoding, size, body
FROM {schema}.attachment_objects
WHERE (family, attachment_id) >= ($1::bigint, $2::text)
    AND ($3::boolean OR (family, attachment_id) <> ($1::bigint, $2::text))
ORDER BY family, attachment_id
LIMIT $5::bigint OFFSET $4::bigint

-- name: walk_object_deletions
SELECT
    family, attachment_id, deleting_until_ms
FROM {schema}.object_deletions
WHERE (family, attachment_id, deleting_until_ms) >= ($1::bigint, $2::text, $3::bigint)
    AND ($4::boolean OR (family, attachment_id, deleting_until_ms) <> ($1::bigint, $2::text, $3::bigint))
ORDER BY family, attachment_id, deleting_until_ms
LIMIT $6::bigint OFFSET $5::bigint

-- name: walk_processes
-- page: {process_columns}
-- order: process_id
-- bytes: body, external_ref, wait, outcome, last_error up to $5
SELECT {process_columns}
FROM {schema}.processes
WHERE process_id >= $1::text
    AND ($2::boolean OR process_id <> $1::text)
ORDER BY process_id
LIMIT $4::bigint OFFSET $3::bigint

-- name: walk_events
-- page: {event_columns}
-- order: process_id, sequence
-- bytes: payload, wake up to $6
SELECT {event_columns}
FROM {schema}.events
WHERE (process_id, sequence) >= ($1::text, $2::bigint)
    AND ($3::boolean OR (process_id, sequence) <> ($1::text, $2::bigint))
ORDER BY process_id, sequence
LIMIT $5::bigint OFFSET $4::bigint

-- name: walk_grants
-- page: session_id, frame_id, process_id, descriptor
-- order: session_id, frame_id, process_id
-- bytes: descriptor up to $7
SELECT
    session_id, frame_id, process_id, descriptor
FROM {schema}.grants
WHERE (session_id, frame_id, process_id) >= ($1::text, $2::text, $3::text)
    AND ($4::boolean OR (session_id, frame_id, process_id) <> ($1::text, $2::text, $3::text))
ORDER BY session_id, frame_id, process_id
LIMIT $6::bigint OFFSET $5::bigint

-- name: walk_subscriptions
-- page: {subscription_columns}
-- order: sequence
-- bytes: body up to $5
SELECT {subscription_columns}
FROM {schema}.subscriptions
WHERE sequence >= $1::bigint
    AND ($2::boolean OR sequence <> $1::bigint)
ORDER BY sequence
LIMIT $4::bigint OFFSET $3::bigint

-- name: walk_occurrences
-- page: {occurrence_columns}
-- order: occurrence_id
-- bytes: payload, source up to $5
SELECT {occurrence_columns}
FROM {schema}.occurrences
WHERE occurrence_id >= $1::text
    AND ($2::boolean OR occurrence_id <> $1::text)
ORDER BY occurrence_id
LIMIT $4::bigint OFFSET $3::bigint

-- name: walk_deliveries
SELECT {delivery_columns}
FROM {schema}.deliveries
WHERE (occurrence_id, subscription_sequence) >= ($1::text, $2::bigint)
    AND ($3::boolean OR (occurrence_id, subscription_sequence) <> ($1::text, $2::bigint))
ORDER BY occurrence_id, subscription_sequence
LIMIT $5::bigint OFFSET $4::bigint

-- name: walk_schedules
-- page: {schedule_columns}
-- order: name
-- bytes: body up to $5
SELECT {schedule_columns}
FROM {schema}.schedules
WHERE name >= $1::text
    AND ($2::boolean OR name <> $1::text)
ORDER BY name
LIMIT $4::bigint OFFSET $3::bigint

-- name: walk_artifacts
-- page: {artifact_columns}
-- order: kind, ref
-- bytes: body up to $6
SELECT {artifact_columns}
FROM {schema}.artifacts
WHERE (kind, ref) >= ($1::text, $2::text)
    AND ($3::boolean OR (kind, ref) <> ($1::text, $2::text))
ORDER BY kind, ref
LIMIT $5::bigint OFFSET $4::bigint

-- name: walk_stream_blocks
-- page: {stream_columns}
-- order: family, session_key, claim_id, block
-- bytes: body up to $8
SELECT {stream_columns}
FROM {schema}.stream_blocks
WHERE (family, session_key, claim_id, block) >= ($1::bigint, $2::bigint, $3::text, $4::bigint)
    AND (
        $5::boolean
        OR (family, session_key, claim_id, block) <> ($1::bigint, $2::bigint, $3::text, $4::bigint)
    )
ORDER BY family, session_key, claim_id, block
LIMIT $7::bigint OFFSET $6::bigint

-- name: walk_workers
-- page: {worker_columns}
-- order: worker_id
-- bytes: report up to $5
SELECT {worker_columns}
FROM {schema}.workers
WHERE worker_id >= $1::text
    AND ($2::boolean OR worker_id <> $1::text)
ORDER BY worker_id
LIMIT $4::bigint OFFSET $3::bigint

-- name: walk_session_labels
SELECT
    family, session_key, key, value
FROM {schema}.session_labels
WHERE (family, session_key, key) >= ($1::bigint, $2::bigint, $3::text)
    AND ($4::boolean OR (family, session_key, key) <> ($1::bigint, $2::bigint, $3::text))
ORDER BY family, session_key, key
LIMIT $6::bigint OFFSET $5::bigint

-- name: walk_settings
SELECT
    name, value
FROM {schema}.settings
WHERE name >= $1::text
    AND ($2::boolean OR name <> $1::text)
ORDER BY name
LIMIT $4::bigint OFFSET $3::bigint

-- Rows and keys that others refer to.

-- name: sessions_with_keys
SELECT {session_columns}
FROM {schema}.sessions
WHERE session_key = ANY($1::bigint[])

-- name: revisions_with_keys
SELECT {revision.revision_columns}
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS wanted (family, session_key, revision)
JOIN {schema}.revisions AS revision
    ON revision.family = wanted.family
        AND revision.session_key = wanted.session_key
        AND revision.revision = wanted.revision

-- Without documents: many large ones would be in memory at once.
-- name: nodes_with_keys
SELECT
    node.node_key, node.session_key, node.epoch, node.node_id, node.parent_key, node.kind, node.frame_id,
    NULL::bytea, node.created_at_ms, '\x6e756c6c'::bytea, node.mark, node.revision,
    parent.node_id
FROM unnest($1::bigint[], $2::bigint[]) AS wanted (family, node_key)
JOIN {schema}.nodes AS node
    ON node.family = wanted.family
        AND node.node_key = wanted.node_key
LEFT JOIN {schema}.nodes AS parent
    ON parent.family = node.family
        AND parent.node_key = node.parent_key

-- name: processes_with_keys
SELECT {process_columns}
FROM {schema}.processes
WHERE process_id = ANY($1::text[])

-- name: keys_of_processes
SELECT process_id
FROM {schema}.processes
WHERE process_id = ANY($1::text[])

-- name: ready_with_keys
SELECT {ready.ready_columns}
FROM unnest($1::bigint[], $2::bigint[]) AS wanted (family, session_key)
JOIN {schema}.ready AS ready
    ON ready.family = wanted.family
        AND ready.session_key = wanted.session_key

-- name: keys_of_limits
SELECT kind
FROM {schema}.limits
WHERE kind = ANY($1::text[])

-- name: keys_of_waiting_keys
SELECT
    waiting.kind, waiting.limit_key
FROM unnest($1::text[], $2::text[]) AS wanted (kind, limit_key)
JOIN {schema}.waiting_keys AS waiting
    ON waiting.kind = wanted.kind
        AND waiting.limit_key = wanted.limit_key

-- name: keys_of_subscriptions
SELECT sequence
FROM {schema}.subscriptions
WHERE sequence = ANY($1::bigint[])

-- name: keys_of_occurrences
SELECT occurrence_id
FROM {schema}.occurrences
WHERE occurrence_id = ANY($1::text[])

-- name: keys_of_blobs
SELECT
    stored.family, stored.hash
FROM unnest($1::bigint[], $2::text[]) AS pair (family, hash)
JOIN {schema}.blobs AS stored
    ON stored.family = pair.family
        AND stored.hash = pair.hash

-- name: keys_of_attachment_objects
SELECT
    stored.family, stored.attachment_id
FROM unnest($1::bigint[], $2::text[]) AS pair (family, attachment_id)
JOIN {schema}.attachment_objects AS stored
    ON stored.family = pair.family
        AND stored.attachment_id = pair.attachment_id

-- name: span_of_sessions
SELECT
    coalesce(min(incarnation), 0),
    coalesce(max(incarnation), 0),
    count(*)
FROM {schema}.sessions
WHERE session_id = $1::text

-- name: span_of_revisions
SELECT
    coalesce(min(revision), 0),
    coalesce(max(revision), 0),
    count(*)
FROM {schema}.revisions
WHERE family = $2::bigint
    AND session_key = $1::bigint

-- name: span_of_nodes
SELECT
    coalesce(min(node_key), 0),
    coalesce(max(node_key), 0),
    count(*)
FROM {schema}.nodes
WHERE family = $2::bigint
    AND session_key = $1::bigint

-- name: span_of_events
SELECT
    coalesce(min(sequence), 0),
    coalesce(max(sequence), 0),
    count(*)
FROM {schema}.events
WHERE process_id = $1::text

-- name: count_endings
SELECT count(terminal_state)
FROM {schema}.events
WHERE process_id = $1::text

-- Differs: the server has its own checks of pages and indexes. `dead` follows from the deletion, and statements rely on
-- it.
-- name: check_structures
SELECT format('session %s: dead is %s', session_key, coalesce(dead::text, 'NULL'))
FROM {schema}.sessions
WHERE dead IS DISTINCT FROM (CASE WHEN deleted_at_ms IS NULL THEN 0 ELSE 1 END)
LIMIT 100
