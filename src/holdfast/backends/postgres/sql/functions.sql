-- Calls of the server functions (functions.sql beside schema.sql). The first column is the verdict.

-- name: enqueue_work
SELECT
    verdict, enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM {schema}.enqueue_work_v1(
    $1::text, $2::bigint, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::bigint, $10::bytea
)

-- name: claim_work
SELECT
    verdict, enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM {schema}.claim_work_v1(
    $1::text, $2::bigint, $3::text, $4::text, $5::bigint, $6::bigint, $7::text, $8::bigint, $9::text[], $10::text,
    $11::bigint, $12::text, $13::bigint, $14::text[], $15::boolean
)

-- name: renew_claim
SELECT
    verdict, expires_at_ms
FROM {schema}.renew_claim_v1($1::text, $2::bigint, $3::text, $4::text, $5::bigint, $6::text[], $7::bigint)

-- name: take_lease
SELECT
    verdict, process_status, kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms
FROM {schema}.take_lease_v1($1::text, $2::text, $3::bigint, $4::text, $5::text, $6::bigint)

-- name: renew_lease
SELECT
    verdict, kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms
FROM {schema}.renew_lease_v1($1::text, $2::text, $3::bigint, $4::text, $5::bigint, $6::bigint)
