-- Subscriptions, occurrences and deliveries.

-- columns: subscription_columns
sequence, session_id, frame_id, key, definition_hash, name, source_type, source_key, target_hash, enabled,
created_at_ms, updated_at_ms, body, run_kind

-- columns: occurrence_columns
occurrence_id, source_type, source_key, idempotency_key, request_hash, occurred_at_ms, payload, source

-- columns: delivery_columns
occurrence_id, subscription_sequence, process_id, state, reserved_at_ms, updated_at_ms, failure, run_kind

-- Differs: a NULL sequence takes the next number of AUTOINCREMENT. If a damaged row or counter stands at the end of
-- what fits, the next number behind the rows that fit is taken.
-- name: insert_subscription
INSERT INTO subscriptions (
    {subscription_columns}
) VALUES (
    CASE
        WHEN max(
            (SELECT coalesce(max(sequence), 0) FROM subscriptions),
            (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'subscriptions')
        ) >= 4611686018427387903
            THEN (SELECT coalesce(max(sequence), 0) + 1 FROM subscriptions WHERE sequence < 4611686018427387903)
    END,
    ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14
)
RETURNING {subscription_columns}

-- name: restore_subscription
INSERT INTO subscriptions (
    {subscription_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14
)

-- name: find_subscription
SELECT {subscription_columns}
FROM subscriptions
WHERE sequence = ?1

-- name: find_subscription_key
SELECT {subscription_columns}
FROM subscriptions
WHERE key = ?3
    AND session_id IS ?1
    AND frame_id IS ?2
    AND enabled = 1
ORDER BY sequence
LIMIT 1

-- name: save_subscription
UPDATE subscriptions
SET
    session_id = ?2,
    frame_id = ?3,
    key = ?4,
    definition_hash = ?5,
    name = ?6,
    source_type = ?7,
    source_key = ?8,
    target_hash = ?9,
    enabled = ?10,
    created_at_ms = ?11,
    updated_at_ms = ?12,
    body = ?13,
    run_kind = ?14
WHERE sequence = ?1

-- name: list_subscriptions
SELECT {subscription_columns}
FROM subscriptions
WHERE sequence > :after
    AND sequence <= :until
    AND (:host_only = 0 OR session_id IS NULL)
    AND (:name IS NULL OR name = :name)
    AND (:source_type IS NULL OR source_type = :source_type)
    AND (:source_key IS NULL OR source_key = :source_key)
    AND (:target_hash IS NULL OR target_hash = :target_hash)
    AND (:enabled IS NULL OR enabled = :enabled)
ORDER BY sequence
LIMIT :limit

-- name: list_subscriptions_of_session
SELECT {subscription_columns}
FROM subscriptions
WHERE session_id = :session_id
    AND sequence > :after
    AND sequence <= :until
    AND :host_only = 0
    AND (:name IS NULL OR name = :name)
    AND (:source_type IS NULL OR +source_type = :source_type)
    AND (:source_key IS NULL OR +source_key = :source_key)
    AND (:target_hash IS NULL OR target_hash = :target_hash)
    AND (:enabled IS NULL OR enabled = :enabled)
ORDER BY sequence
LIMIT :limit

-- name: list_subscriptions_of_source
SELECT {subscription_columns}
FROM subscriptions
WHERE source_type = :source_type
    AND source_key = :source_key
    AND sequence > :after
    AND sequence <= :until
    AND (:host_only = 0 OR session_id IS NULL)
    AND (:session_id IS NULL OR +session_id = :session_id)
    AND (:name IS NULL OR name = :name)
    AND (:target_hash IS NULL OR target_hash = :target_hash)
    AND (:enabled IS NULL OR enabled = :enabled)
ORDER BY sequence
LIMIT :limit

-- name: matching_subscriptions
SELECT sequence, run_kind
FROM subscriptions
WHERE source_type = ?1
    AND source_key = ?2
    AND sequence > ?3
    AND enabled = 1
ORDER BY sequence
LIMIT ?4

-- name: drop_session_deliveries
DELETE FROM deliveries
WHERE (occurrence_id, subscription_sequence) IN (
    SELECT
        delivery.occurrence_id,
        delivery.subscription_sequence
    FROM subscriptions AS subscription
    CROSS JOIN deliveries AS delivery
        ON delivery.subscription_sequence = subscription.sequence
    WHERE subscription.session_id = ?1
)

-- name: drop_session_subscriptions
DELETE FROM subscriptions
WHERE session_id = ?1

-- name: find_occurrence
SELECT {occurrence_columns}
FROM occurrences
WHERE occurrence_id = ?1

-- name: list_occurrences
SELECT {occurrence_columns}
FROM occurrences
WHERE occurrence_id > ?1
ORDER BY occurrence_id
LIMIT ?2

-- name: insert_occurrence
INSERT INTO occurrences (
    {occurrence_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
)

-- name: insert_delivery
INSERT INTO deliveries (
    {delivery_columns}
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
)
ON CONFLICT (occurrence_id, subscription_sequence) DO NOTHING
RETURNING {delivery_columns}

-- name: list_deliveries
SELECT {delivery_columns}
FROM deliveries
WHERE occurrence_id = ?1
    AND subscription_sequence > ?2
ORDER BY subscription_sequence
LIMIT ?3

-- name: find_delivery
SELECT {delivery_columns}
FROM deliveries
WHERE occurrence_id = ?1
    AND subscription_sequence = ?2

-- name: find_process_delivery
SELECT {delivery_columns}
FROM deliveries
WHERE process_id = ?1
LIMIT 1

-- name: save_delivery
UPDATE deliveries
SET
    process_id = ?3,
    state = ?4,
    reserved_at_ms = ?5,
    updated_at_ms = ?6,
    failure = ?7,
    run_kind = ?8
WHERE occurrence_id = ?1
    AND subscription_sequence = ?2

-- name: list_undelivered
SELECT {delivery.delivery_columns}
FROM deliveries AS delivery INDEXED BY deliveries_reserved
WHERE delivery.state = 'reserved'
    AND delivery.reserved_at_ms <= :reserved_until_ms
    AND (delivery.reserved_at_ms, delivery.occurrence_id, delivery.subscription_sequence)
    > (:after_ms, :after_id, :after_sequence)
    AND NOT EXISTS (
        SELECT 1
        FROM processes
        WHERE processes.process_id = delivery.process_id
    )
    AND (
        :session_id IS NULL
        OR delivery.subscription_sequence IN (SELECT sequence FROM subscriptions WHERE session_id = :session_id)
    )
ORDER BY delivery.reserved_at_ms, delivery.occurrence_id, delivery.subscription_sequence
LIMIT :limit

-- name: list_failed_deliveries
SELECT {delivery_columns}
FROM deliveries INDEXED BY deliveries_failed
WHERE state = 'failed'
    AND (reserved_at_ms, occurrence_id, subscription_sequence) > (:after_ms, :after_id, :after_sequence)
    AND (
        :session_id IS NULL
        OR subscription_sequence IN (SELECT sequence FROM subscriptions WHERE session_id = :session_id)
    )
ORDER BY reserved_at_ms, occurrence_id, subscription_sequence
LIMIT :limit

-- name: list_undelivered_runs
SELECT {delivery.delivery_columns}
FROM deliveries AS delivery INDEXED BY deliveries_runs
WHERE delivery.state = 'reserved'
    AND delivery.run_kind IS NOT NULL
    AND delivery.reserved_at_ms <= :reserved_until_ms
    AND (delivery.reserved_at_ms, delivery.occurrence_id, delivery.subscription_sequence)
    > (:after_ms, :after_id, :after_sequence)
    AND NOT EXISTS (
        SELECT 1
        FROM processes
        WHERE processes.process_id = delivery.process_id
    )
ORDER BY delivery.reserved_at_ms, delivery.occurrence_id, delivery.subscription_sequence
LIMIT :limit

-- name: finished_occurrences
SELECT occurrence_id
FROM occurrences
WHERE occurred_at_ms <= ?1
    AND NOT EXISTS (
        SELECT 1
        FROM deliveries
        WHERE deliveries.occurrence_id = occurrences.occurrence_id
            AND deliveries.state = 'reserved'
    )
ORDER BY occurred_at_ms, occurrence_id
LIMIT ?2

-- name: count_deliveries_of_occurrences
SELECT count(*)
FROM deliveries
WHERE occurrence_id IN (SELECT value FROM json_each(?1))

-- name: drop_deliveries_of_occurrences
DELETE FROM deliveries
WHERE occurrence_id IN (SELECT value FROM json_each(?1))

-- name: drop_occurrences
DELETE FROM occurrences
WHERE occurrence_id IN (SELECT value FROM json_each(?1))
