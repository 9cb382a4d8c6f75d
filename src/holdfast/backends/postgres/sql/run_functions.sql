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
