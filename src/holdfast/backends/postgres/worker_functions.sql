-- Server function of workers: one trip renews everything that a worker holds. Part of the schema.

-- Renews claims and leases, each as renew_claim_v1 and renew_lease_v1 do, and reports the worker if it is named. The
-- batches of all claims are in one array; p_sizes has the number of those of each claim. One id of each lease is NULL.
-- Returns a row without meaning, then one for each claim and each lease: its end, or NULL if it is lost.
CREATE OR REPLACE FUNCTION {schema}.heartbeat_v1(
    p_given_ms bigint, p_ttl_ms bigint, p_worker_id text, p_report bytea, p_forgotten_ms bigint,
    p_session_ids text[], p_claim_ids text[], p_claim_hashes text[], p_claim_fences bigint[], p_sizes bigint[],
    p_batch_ids text[], p_leased_session_ids text[], p_leased_process_ids text[], p_lease_hashes text[],
    p_lease_fences bigint[]
)
RETURNS TABLE (place bigint, expires_at_ms bigint)
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_first bigint := 1;
    v_now_ms bigint;
BEGIN
    place := 0;
    RETURN NEXT;
    FOR v_claim IN 1 .. coalesce(cardinality(p_claim_ids), 0) LOOP
        place := place + 1;
        SELECT CASE answer.verdict WHEN 'renewed' THEN answer.expires_at_ms END INTO expires_at_ms
        FROM {schema}.renew_claim_v1(
            p_session_ids[v_claim], p_given_ms, p_claim_ids[v_claim], p_claim_hashes[v_claim], p_claim_fences[v_claim],
            p_batch_ids[v_first : v_first + p_sizes[v_claim] - 1], p_ttl_ms, NULL
        ) AS answer;
        v_first := v_first + p_sizes[v_claim];
        RETURN NEXT;
    END LOOP;
    FOR v_lease IN 1 .. coalesce(cardinality(p_lease_hashes), 0) LOOP
        place := place + 1;
        SELECT CASE answer.verdict WHEN 'renewed' THEN answer.expires_at_ms END INTO expires_at_ms
        FROM {schema}.renew_lease_v1(
            p_leased_session_ids[v_lease], p_leased_process_ids[v_lease], p_given_ms, p_lease_hashes[v_lease],
            p_lease_fences[v_lease], p_ttl_ms, NULL
        ) AS answer;
        RETURN NEXT;
    END LOOP;
    IF p_worker_id IS NOT NULL THEN
        v_now_ms := {schema}.now_ms_v1(p_given_ms);
        UPDATE {schema}.workers AS worker
        SET
            heartbeat_at_ms = v_now_ms,
            expires_at_ms = {schema}.expiry_v1(v_now_ms, p_ttl_ms),
            report = p_report
        WHERE worker.worker_id = p_worker_id;
        IF NOT FOUND THEN
            DELETE FROM {schema}.workers AS gone
            WHERE gone.expires_at_ms <= v_now_ms - p_forgotten_ms;
            INSERT INTO {schema}.workers (
                worker_id, started_at_ms, heartbeat_at_ms, expires_at_ms, report
            ) VALUES (
                p_worker_id, v_now_ms, v_now_ms, {schema}.expiry_v1(v_now_ms, p_ttl_ms), p_report
            )
            ON CONFLICT DO NOTHING;
        END IF;
    END IF;
END;
$$;
