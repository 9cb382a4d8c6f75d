-- Calls of the server functions of runs (run_functions.sql beside schema.sql).

-- name: first_claimable
SELECT
    process_id, claimable_at_ms
FROM {schema}.first_claimable_v1($1::text[], $2::text[], ARRAY[]::text[], $3::text[])

-- name: claim_run
SELECT
    verdict, (process).process_id, (process).registration_hash, (process).status, (process).waiting,
    (process).definition_hash, (process).originator_session_id, (process).wake_session_id, (process).wake_frame_id,
    (process).event_count, (process).created_at_ms, (process).updated_at_ms, (process).body, (process).external_ref,
    (process).wait, (process).outcome, (process).run_kind, (process).run_version, (process).recovery,
    (process).due_at_ms, (process).claimable_at_ms, (process).claim_fence, (process).attempt, (process).suspended,
    (process).lost_owner, (process).last_error, (lease).kind, (lease).resource, (lease).owner_id, (lease).token_hash,
    (lease).fence, (lease).claimed_at_ms, (lease).expires_at_ms
FROM {schema}.claim_run_v1(
    $1::bigint, $2::text, $3::text[], $4::text[], $5::text, $6::bigint, $7::boolean, $8::bigint
)

-- name: append_and_claim
SELECT
    verdict, now_ms, new_sequence, delivered_batch_id, is_enqueued, {process_columns}, sequence, type, payload_hash, replay_key, terminal_state, wake, acked,
    occurred_at_ms, payload, reached,
    next_verdict,
    (next_process).process_id, (next_process).registration_hash, (next_process).status, (next_process).waiting,
    (next_process).definition_hash, (next_process).originator_session_id, (next_process).wake_session_id,
    (next_process).wake_frame_id, (next_process).event_count, (next_process).created_at_ms,
    (next_process).updated_at_ms, (next_process).body, (next_process).external_ref, (next_process).wait,
    (next_process).outcome, (next_process).run_kind, (next_process).run_version, (next_process).recovery,
    (next_process).due_at_ms, (next_process).claimable_at_ms, (next_process).claim_fence, (next_process).attempt,
    (next_process).suspended, (next_process).lost_owner, (next_process).last_error, (next_lease).kind,
    (next_lease).resource, (next_lease).owner_id, (next_lease).token_hash, (next_lease).fence,
    (next_lease).claimed_at_ms, (next_lease).expires_at_ms
FROM {schema}.append_and_claim_v1(
    $1::text, $2::bigint, $3::text, $4::bigint, $5::text, $6::text, $7::boolean, $8::text, $9::bigint, $10::text,
    $11::text, $12::text, $13::text, $14::bytea, $15::bytea, $16::bytea, $17::text, $18::text, $19::text, $20::text,
    $21::text, $22::text, $23::text, $24::text, $25::bigint, $26::bigint, $27::bytea, $28::bigint, $29::text,
    $30::text[], $31::text[], $32::text, $33::bigint, $34::boolean, $35::boolean
)
