-- Server functions of leases: one trip for each hot path. Part of the schema; see functions.sql.

-- Takes a lease that is free, expired or the owner's own, on a live session or a running process (rules.leases.claim).
-- One of the two ids is NULL. A lease row is deleted only with its session or process, which raises the fence floor.
-- Verdicts: taken; held (by the lease returned); absent; deleted; unknown (process); ended (with the process's status);
-- isolation.
CREATE OR REPLACE FUNCTION {schema}.take_lease_v1(
    p_session_id text, p_process_id text, p_given_ms bigint, p_owner_id text, p_token_hash text, p_ttl_ms bigint,
    p_family bigint
)
RETURNS TABLE (
    verdict text, process_status text, kind text, resource text, owner_id text, token_hash text, fence bigint,
    claimed_at_ms bigint, expires_at_ms bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_kind text := 'session';
    v_resource text;
    v_lease record;
    v_status text;
    v_floor bigint;
    v_now_ms bigint;
BEGIN
    {require_read_committed}
    IF p_process_id IS NULL THEN
        SELECT session_key::text INTO v_resource
        FROM {schema}.sessions
        WHERE session_id = p_session_id
            AND dead = 0
            -- part: by_family
            AND family = p_family
            -- end part
        FOR KEY SHARE;
        IF NOT FOUND THEN
            verdict := {schema}.absence_v1(p_session_id, p_family);
            RETURN NEXT;
            RETURN;
        END IF;
    ELSE
        v_kind := 'process';
        SELECT process_id, status INTO v_resource, v_status
        FROM {schema}.processes
        WHERE process_id = p_process_id
        FOR SHARE;
        IF NOT FOUND OR v_status <> 'running' THEN
            verdict := CASE WHEN v_status IS NULL THEN 'unknown' ELSE 'ended' END;
            process_status := v_status;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    LOOP
        SELECT owner_id, token_hash, fence, claimed_at_ms, expires_at_ms INTO v_lease
        FROM {schema}.leases
        WHERE kind = v_kind
            AND resource = v_resource
            -- part: by_family
            AND family = p_family
            -- end part
        FOR UPDATE;
        EXIT WHEN FOUND;
        -- Insert a row without a holder, whose fence the new lease exceeds.
        SELECT value INTO v_floor
        FROM {schema}.settings
        WHERE name = 'fence_floor';
        INSERT INTO {schema}.leases (
            -- part: by_family
            family,
            -- end part
            kind, resource, owner_id, token_hash, fence, claimed_at_ms, expires_at_ms
        ) VALUES (
            -- part: by_family
            p_family,
            -- end part
            v_kind, v_resource, NULL, NULL, coalesce(v_floor, 0), 0, 0
        )
        ON CONFLICT DO NOTHING;
    END LOOP;
    v_now_ms := {schema}.now_ms_v1(p_given_ms);
    IF v_lease.token_hash IS NOT NULL AND v_lease.expires_at_ms > v_now_ms AND v_lease.owner_id <> p_owner_id THEN
        RETURN QUERY
        SELECT
            'held', NULL::text, v_kind, v_resource, v_lease.owner_id, NULL::text, v_lease.fence,
            v_lease.claimed_at_ms, v_lease.expires_at_ms;
        RETURN;
    END IF;
    RETURN QUERY
    UPDATE {schema}.leases AS lease
    SET
        owner_id = p_owner_id,
        token_hash = p_token_hash,
        fence = v_lease.fence + (v_lease.fence < 4611686018427387904)::int,
        claimed_at_ms = v_now_ms,
        expires_at_ms = {schema}.expiry_v1(v_now_ms, p_ttl_ms)
    WHERE lease.kind = v_kind
        AND lease.resource = v_resource
        -- part: by_family
        AND lease.family = p_family
        -- end part
    RETURNING
        'taken', NULL::text, lease.kind, lease.resource, lease.owner_id, lease.token_hash, lease.fence,
        lease.claimed_at_ms, lease.expires_at_ms;
END;
$$;

-- Moves the end of a lease to a later time, never back (rules.leases: require, renewed). Verdicts: renewed; lease_lost.
CREATE OR REPLACE FUNCTION {schema}.renew_lease_v1(
    p_session_id text, p_process_id text, p_given_ms bigint, p_token_hash text, p_fence bigint, p_ttl_ms bigint,
    p_family bigint
)
RETURNS TABLE (
    verdict text, kind text, resource text, owner_id text, token_hash text, fence bigint, claimed_at_ms bigint,
    expires_at_ms bigint
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_kind text := 'process';
    v_resource text := p_process_id;
    v_lease record;
    v_now_ms bigint;
BEGIN
    IF p_process_id IS NULL THEN
        v_kind := 'session';
        SELECT session_key::text INTO v_resource
        FROM {schema}.sessions
        WHERE session_id = p_session_id
            AND dead = 0
            -- part: by_family
            AND family = p_family
            -- end part
        ;
    END IF;
    SELECT token_hash, fence, expires_at_ms INTO v_lease
    FROM {schema}.leases
    WHERE kind = v_kind
        AND resource = v_resource
        -- part: by_family
        AND family = p_family
        -- end part
    FOR NO KEY UPDATE;
    v_now_ms := {schema}.now_ms_v1(p_given_ms);
    IF NOT coalesce(
        v_lease.token_hash = p_token_hash AND v_lease.fence = p_fence AND v_lease.expires_at_ms > v_now_ms, false
    ) THEN
        verdict := 'lease_lost';
        RETURN NEXT;
        RETURN;
    END IF;
    RETURN QUERY
    UPDATE {schema}.leases AS lease
    SET expires_at_ms = greatest({schema}.expiry_v1(v_now_ms, p_ttl_ms), lease.expires_at_ms)
    WHERE lease.kind = v_kind
        AND lease.resource = v_resource
        -- part: by_family
        AND lease.family = p_family
        -- end part
    RETURNING
        'renewed', lease.kind, lease.resource, lease.owner_id, lease.token_hash, lease.fence, lease.claimed_at_ms,
        lease.expires_at_ms;
END;
$$;
