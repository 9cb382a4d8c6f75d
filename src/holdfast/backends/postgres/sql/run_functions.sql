-- Calls of the server functions of runs (run_functions.sql beside schema.sql).

-- name: first_claimable
SELECT
    process_id, claimable_at_ms
FROM {schema}.first_claimable_v1($1::text[], $2::text[], ARRAY[]::text[], $3::text[])

-- name: claim_run
SELECT
    verdict, {(process).process_columns}, {(lease).lease_columns}
FROM {schema}.claim_run_v1(
    $1::bigint, $2::text, $3::text[], $4::text[], $5::text, $6::bigint, $7::boolean, $8::bigint
)

-- name: append_and_claim
SELECT
    verdict, now_ms, new_sequence, delivered_batch_id, is_enqueued, {process_columns},
    sequence, type, payload_hash, replay_key, terminal_state, wake, acked, occurred_at_ms, payload, reached,
    next_verdict,
    {(next_process).process_columns}, {(next_lease).lease_columns}
FROM {schema}.append_and_claim_v1(
    $1::text, $2::bigint, $3::text, $4::bigint, $5::text, $6::text, $7::boolean, $8::text, $9::bigint, $10::text,
    $11::text, $12::text, $13::text, $14::bytea, $15::bytea, $16::bytea, $17::text, $18::text, $19::text, $20::text,
    $21::text, $22::text, $23::text, $24::text, $25::bigint, $26::bigint, $27::bytea, $28::bigint, $29::text,
    $30::text[], $31::text[], $32::text, $33::bigint, $34::boolean, $35::boolean
)
