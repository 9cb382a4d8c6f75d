-- Calls of the server functions of the queue (queue_functions.sql beside schema.sql). The first column is the verdict.

-- name: enqueue_batch
SELECT
    verdict, {(batch).batch_columns}
FROM {schema}.enqueue_batch_v1(
    $1::text, $2::bigint, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text, $10::bigint,
    $11::bigint, $12::bytea, $13::bigint, $14::bigint, $15::text
)

-- name: claim_batches
SELECT
    verdict, {(batch).batch_columns}
FROM {schema}.claim_batches_v1(
    $1::text, $2::bigint, $3::text, $4::text, $5::bigint, $6::bigint, $7::text, $8::bigint, $9::text[], $10::text,
    $11::bigint, $12::text, $13::bigint, $14::text[], $15::boolean, $16::bigint, $17::bigint
)

-- name: claim_next
SELECT
    verdict, session_id, {(batch).batch_columns}
FROM {schema}.claim_next_v1(
    $1::bigint, $2::text, $3::text[], $4::bigint, $5::bigint, $6::text, $7::bigint, $8::boolean, $9::bigint,
    $10::bigint, $11::bigint
)

-- name: settle_claim
SELECT
    verdict, settled_at_ms, settled_revision, reached
FROM {schema}.settle_claim_v1($1::text, $2::bigint, $3::text, $4::text, $5::bigint, $6::text[], $7::bigint, $8::boolean)

-- name: settle_and_claim
SELECT
    verdict, settled_at_ms, settled_revision, reached, next_verdict, session_id, {(batch).batch_columns}
FROM {schema}.settle_and_claim_v1(
    $1::text, $2::bigint, $3::text, $4::text, $5::bigint, $6::text[], $7::text, $8::text[], $9::bigint, $10::bigint,
    $11::text, $12::bigint, $13::boolean, $14::bigint, $15::boolean, $16::boolean
)

-- name: lock_ready
SELECT {schema}.lock_ready_v1($1::bigint[], $2::bigint[])

-- name: touch_ready
SELECT {schema}.touch_ready_v1($1::bigint, $2::bigint, $3::bigint, $4::boolean)

-- name: renew_claim
SELECT
    verdict, expires_at_ms
FROM {schema}.renew_claim_v1(
    $1::text, $2::bigint, $3::text, $4::text, $5::bigint, $6::text[], $7::bigint, $8::bigint
)

-- name: heartbeat
SELECT
    place, expires_at_ms
FROM {schema}.heartbeat_v1(
    $1::bigint, $2::bigint, $3::text, $4::bytea, $5::bigint, $6::text[], $7::text[], $8::text[], $9::bigint[],
    $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bigint[]
)
ORDER BY place
