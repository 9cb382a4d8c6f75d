-- Subscriptions, occurrences and deliveries.

-- columns: subscription_columns
sequence, session_id, frame_id, key, definition_hash, name, source_type, source_key, target_hash, enabled,
created_at_ms, updated_at_ms, body, run_kind

-- columns: occurrence_columns
occurrence_id, source_type, source_key, idempotency_key, request_hash, occurred_at_ms, payload, source

-- columns: delivery_columns
occurrence_id, subscription_sequence, process_id, state, reserved_at_ms, updated_at_ms, failure, run_kind

-- name: insert_subscription
INSERT INTO {schema}.subscriptions (
    {subscription_columns}
) VALUES (
    nextval('{schema}.subscription_sequences'), $1::text, $2::text, $3::text, $4::text, $5::text, $6::text,
    $7::text, $8::text, $9::bigint, $10::bigint, $11::bigint, $12::bytea, $13::text
)
RETURNING {subscription_columns}

-- Differs: a sequence number that is given does not move the sequence, so that numbers are drawn up to it.
-- name: draw_subscription_sequences
SELECT max(nextval('{schema}.subscription_sequences'))
FROM pg_catalog.generate_series(1, $1::bigint)

-- name: restore_subscription
INSERT INTO {schema}.subscriptions (
    {subscription_columns}
) VALUES (
    $1::bigint, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text, $10::bigint,
    $11::bigint, $12::bigint, $13::bytea, $14::text
)

-- name: find_subscription
SELECT {subscription_columns}
FROM {schema}.subscriptions
WHERE sequence = $1::bigint
-- part: lock
FOR UPDATE
-- end part

-- Differs: written like the expression of the unique index, in which NULL is replaced.
-- name: find_subscription_key
SELECT {subscription_columns}
FROM {schema}.subscriptions
WHERE key = $3::text
    AND coalesce(session_id, '') = coalesce($1::text, '')
    AND coalesce(frame_id, '') = coalesce($2::text, '')
    AND enabled = 1
-- part: lock
FOR UPDATE
-- end part

-- name: save_subscription
UPDATE {schema}.subscriptions
SET
    session_id = $2::text,
    frame_id = $3::text,
    key = $4::text,
    definition_hash = $5::text,
    name = $6::text,
    source_type = $7::text,
    source_key = $8::text,
    target_hash = $9::text,
    enabled = $10::bigint,
    created_at_ms = $11::bigint,
    updated_at_ms = $12::bigint,
    body = $13::bytea,
    run_kind = $14::text
WHERE sequence = $1::bigint

-- name: list_subscriptions
-- page: {subscription_columns}
-- order: sequence
-- bytes: body up to $11
SELECT {subscription_columns}
FROM {schema}.subscriptions
WHERE sequence > $1::bigint
    AND sequence <= $2::bigint
    AND (NOT $3::boolean OR session_id IS NULL)
    AND ($4::text IS NULL OR session_id = $4::text)
    AND ($5::text IS NULL OR name = $5::text)
    AND ($6::text IS NULL OR source_type = $6::text)
    AND ($7::text IS NULL OR source_key = $7::text)
    AND ($8::text IS NULL OR target_hash = $8::text)
    AND ($9::bigint IS NULL OR enabled = $9::bigint)
ORDER BY sequence
LIMIT $10::bigint

-- name: list_subscriptions_of_session
-- page: {subscription_columns}
-- order: sequence
-- bytes: body up to $11
SELECT {subscription_columns}
FROM {schema}.subscriptions
WHERE sequence > $1::bigint
    AND sequence <= $2::bigint
    AND (NOT $3::boolean OR session_id IS NULL)
    AND session_id = $4::text
    AND ($5::text IS NULL OR name = $5::text)
    AND ($6::text IS NULL OR source_type = $6::text)
    AND ($7::text IS NULL OR source_key = $7::text)
    AND ($8::text IS NULL OR target_hash = $8::text)
    AND ($9::bigint IS NULL OR enabled = $9::bigint)
ORDER BY sequence
LIMIT $10::bigint

-- Differs: what an occurrence is delivered to cannot be deleted or cancelled while it is.
-- name: list_subscriptions_of_source
-- page: {subscription_columns}
-- order: sequence
-- bytes: body up to $11
SELECT {subscription_columns}
FROM {schema}.subscriptions
WHERE sequence > $1::bigint
    AND sequence <= $2::bigint
    AND (NOT $3::boolean OR session_id IS NULL)
    AND ($4::text IS NULL OR session_id = $4::text)
    AND ($5::text IS NULL OR name = $5::text)
    AND source_type = $6::text
    AND source_key = $7::text
    AND ($8::text IS NULL OR target_hash = $8::text)
    AND ($9::bigint IS NULL OR enabled = $9::bigint)
ORDER BY sequence
LIMIT $10::bigint
-- part: lock
FOR SHARE
-- end part

-- name: share_matching_subscriptions
SELECT sequence, run_kind
FROM {schema}.subscriptions
WHERE source_type = $1::text
    AND source_key = $2::text
    AND sequence > $3::bigint
    AND enabled = 1
ORDER BY sequence
LIMIT $4::bigint
FOR SHARE

-- Differs: locked first, so that no delivery is reserved between the two deletions.
-- name: lock_session_subscriptions
SELECT sequence
FROM {schema}.subscriptions
WHERE session_id = $1::text
ORDER BY sequence
FOR UPDATE

-- name: drop_session_deliveries
DELETE FROM {schema}.deliveries
WHERE subscription_sequence = ANY($1::bigint[])

-- name: drop_session_subscriptions
DELETE FROM {schema}.subscriptions
WHERE sequence = ANY($1::bigint[])

-- name: find_occurrence
SELECT {occurrence_columns}
FROM {schema}.occurrences
WHERE occurrence_id = $1::text
-- part: lock
FOR UPDATE
-- end part

-- name: list_occurrences
-- page: {occurrence_columns}
-- order: occurrence_id
-- bytes: payload, source up to $3
SELECT {occurrence_columns}
FROM {schema}.occurrences
WHERE occurrence_id > $1::text
ORDER BY occurrence_id
LIMIT $2::bigint

-- name: insert_occurrence
INSERT INTO {schema}.occurrences (
    {occurrence_columns}
) VALUES (
    $1::text, $2::text, $3::text, $4::text, $5::text, $6::bigint, $7::bytea, $8::bytea
)

-- name: insert_deliveries
INSERT INTO {schema}.deliveries (
    {delivery_columns}
)
SELECT
    draft.*
FROM unnest(
    $1::text[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::text[]
) AS draft
ON CONFLICT (occurrence_id, subscription_sequence) DO NOTHING
RETURNING {delivery_columns}

-- name: list_deliveries
SELECT {delivery_columns}
FROM {schema}.deliveries
WHERE occurrence_id = $1::text
    AND subscription_sequence > $2::bigint
ORDER BY subscription_sequence
LIMIT $3::bigint

-- name: find_delivery
SELECT {delivery_columns}
FROM {schema}.deliveries
WHERE occurrence_id = $1::text
    AND subscription_sequence = $2::bigint
-- part: lock
FOR UPDATE
-- end part

-- name: find_process_delivery
SELECT {delivery_columns}
FROM {schema}.deliveries
WHERE process_id = $1::text
LIMIT 1
-- part: lock
FOR UPDATE
-- end part

-- name: save_delivery
UPDATE {schema}.deliveries
SET
    process_id = $3::text,
    state = $4::text,
    reserved_at_ms = $5::bigint,
    updated_at_ms = $6::bigint,
    failure = $7::text,
    run_kind = $8::text
WHERE occurrence_id = $1::text
    AND subscription_sequence = $2::bigint

-- Differs: a cluster that is spread by family copies deliveries to every node, and cannot look each up among processes.
-- name: list_undelivered
SELECT {delivery.delivery_columns}
FROM {schema}.deliveries AS delivery
WHERE delivery.state = 'reserved'
    -- part: runs
    AND delivery.run_kind IS NOT NULL
    -- end part
    AND delivery.reserved_at_ms <= $1::bigint
    AND (delivery.reserved_at_ms, delivery.occurrence_id, delivery.subscription_sequence)
    > ($2::bigint, $3::text, $4::bigint)
    -- part: one_place
    AND NOT EXISTS (
        SELECT 1
        FROM {schema}.processes
        WHERE processes.process_id = delivery.process_id
    )
    -- end part
    -- part: by_family
    AND delivery.process_id NOT IN (
        SELECT processes.process_id
        FROM {schema}.processes
        WHERE processes.process_id IN (
            SELECT reserved.process_id
            FROM {schema}.deliveries AS reserved
            WHERE reserved.state = 'reserved'
        )
    )
    -- end part
    -- part: of_session
    AND (
        $6::text IS NULL
        OR delivery.subscription_sequence IN (
            SELECT subscriptions.sequence
            FROM {schema}.subscriptions
            WHERE subscriptions.session_id = $6::text
        )
    )
    -- end part
ORDER BY delivery.reserved_at_ms, delivery.occurrence_id, delivery.subscription_sequence
LIMIT $5::bigint

-- name: list_failed_deliveries
SELECT {delivery_columns}
FROM {schema}.deliveries
WHERE state = 'failed'
    AND (reserved_at_ms, occurrence_id, subscription_sequence) > ($1::bigint, $2::text, $3::bigint)
    AND (
        $5::text IS NULL
        OR subscription_sequence IN (
            SELECT subscriptions.sequence
            FROM {schema}.subscriptions
            WHERE subscriptions.session_id = $5::text
        )
    )
ORDER BY reserved_at_ms, occurrence_id, subscription_sequence
LIMIT $4::bigint

-- name: finished_occurrences
SELECT occurrence_id
FROM {schema}.occurrences
WHERE occurred_at_ms <= $1::bigint
    AND NOT EXISTS (
        SELECT 1
        FROM {schema}.deliveries
        WHERE deliveries.occurrence_id = occurrences.occurrence_id
            AND deliveries.state = 'reserved'
    )
ORDER BY occurred_at_ms, occurrence_id
LIMIT $2::bigint
-- part: lock
FOR UPDATE
-- end part

-- Differs: asked again once they are locked, because a delivery may have been reserved during the wait.
-- name: still_finished_occurrences
SELECT occurrence_id
FROM {schema}.occurrences
WHERE occurrence_id = ANY($1::text[])
    AND NOT EXISTS (
        SELECT 1
        FROM {schema}.deliveries
        WHERE deliveries.occurrence_id = occurrences.occurrence_id
            AND deliveries.state = 'reserved'
    )

-- name: count_deliveries_of_occurrences
SELECT count(*)
FROM {schema}.deliveries
WHERE occurrence_id = ANY($1::text[])

-- name: drop_deliveries_of_occurrences
DELETE FROM {schema}.deliveries
WHERE occurrence_id = ANY($1::text[])

-- name: drop_occurrences
DELETE FROM {schema}.occurrences
WHERE occurrence_id = ANY($1::text[])
