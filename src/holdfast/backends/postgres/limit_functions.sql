-- Server functions of limits: a claim takes a slot in its own transaction, and the end of a claim frees it. Part of the
-- schema; see functions.sql.
--
-- Claims of a kind with the limit at_once exclude each other, and claims of one key of a kind with the limit per_key:
-- by advisory locks, on a cluster by the kind's row, kind before key, which are taken after all rows of the queue. A
-- transaction that has one never waits for a row of the queue. So slots are counted exactly, and no freed slot is
-- overlooked.

-- Locks the slots of a kind, or those of a key if that is not empty. Returns false if another transaction has the lock
-- and the caller must not wait.
CREATE OR REPLACE FUNCTION {schema}.lock_slots_v1(p_kind text, p_limit_key text, p_waits boolean) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
-- part: one_server
DECLARE
    v_lock bigint := hashtextextended('{schema}' || chr(31) || p_kind || chr(31) || p_limit_key, 0);
-- end part
BEGIN
    -- part: one_server
    IF p_waits THEN
        PERFORM pg_advisory_xact_lock(v_lock);
        RETURN true;
    END IF;
    RETURN pg_try_advisory_xact_lock(v_lock);
    -- end part
    -- part: cluster
    -- An advisory lock belongs to one node, and this may run on the coordinator or on a worker. All keys share the row.
    IF p_waits THEN
        PERFORM 1
        FROM {schema}.limits
        WHERE kind = p_kind
        FOR UPDATE;
        RETURN true;
    END IF;
    PERFORM 1
    FROM {schema}.limits
    WHERE kind = p_kind
    FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
    -- end part
END;
$$;

-- Notes when a key that sessions wait for may have a free slot, or forgets the key if none waits. The caller has locked
-- its slots.
CREATE OR REPLACE FUNCTION {schema}.move_key_v1(p_kind text, p_limit_key text, p_opens_at_ms bigint) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM {schema}.waiting_keys
    WHERE kind = p_kind
        AND limit_key = p_limit_key
        AND NOT EXISTS (
            SELECT 1
            FROM {schema}.ready AS queue
            WHERE queue.kind = p_kind
                AND queue.waits_for = p_limit_key
                AND queue.waits_for IS NOT NULL
        );
    IF FOUND THEN
        RETURN false;
    END IF;
    UPDATE {schema}.waiting_keys
    SET opens_at_ms = p_opens_at_ms
    WHERE kind = p_kind
        AND limit_key = p_limit_key;
    RETURN FOUND;
END;
$$;

-- Takes a slot for a claim that begins with a batch of this kind and key (rules.limits: admission, taken). Without a
-- claim, only reports whether there is one. The caller has locked the session's queue.
-- Returns free (the kind has no limit), open (taken), closed (the kind has no free slot or is paused), full (the key
-- has none: its session must wait for it), busy (another transaction has locked the slots, and p_waits is false).
CREATE OR REPLACE FUNCTION {schema}.take_slot_v1(
    p_kind text, p_limit_key text, p_session_key bigint, p_claim_id text, p_given_ms bigint, p_expires_at_ms bigint,
    p_waits boolean
)
RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    v_limit record;
    v_limit_key text := coalesce(p_limit_key, '');
    v_has_key boolean;
    v_now_ms bigint;
    v_used bigint;
    v_used_by_key bigint;
    v_first_end_ms bigint;
    v_first_end_of_key_ms bigint;
    v_opens_at_ms bigint;
BEGIN
    -- A declaration waits for all claims that are being made, so that this cannot change.
    SELECT at_once, per_key, paused INTO v_limit
    FROM {schema}.limits
    WHERE kind = p_kind;
    IF NOT FOUND THEN
        RETURN 'free';
    END IF;
    IF v_limit.paused > 0 THEN
        RETURN 'closed';
    END IF;
    v_has_key := v_limit.per_key IS NOT NULL AND v_limit_key <> '';
    IF v_limit.at_once IS NOT NULL AND NOT {schema}.lock_slots_v1(p_kind, '', p_waits) THEN
        RETURN 'busy';
    END IF;
    IF v_has_key AND NOT {schema}.lock_slots_v1(p_kind, v_limit_key, p_waits) THEN
        RETURN 'busy';
    END IF;
    v_now_ms := {schema}.now_ms_v1(p_given_ms);
    -- A renewal has locked the slot before it read the clock. This waits for it, and then sees the later end.
    DELETE FROM {schema}.slots
    WHERE kind || '' = p_kind
        AND expires_at_ms <= v_now_ms
        AND (v_limit.at_once IS NOT NULL OR limit_key = v_limit_key);
    IF v_limit.at_once IS NOT NULL THEN
        SELECT count(*), min(expires_at_ms) INTO v_used, v_first_end_ms
        FROM {schema}.slots
        WHERE kind = p_kind;
        IF v_used >= v_limit.at_once THEN
            UPDATE {schema}.limits
            SET opens_at_ms = v_first_end_ms
            WHERE kind = p_kind
                AND opens_at_ms <> v_first_end_ms;
            RETURN 'closed';
        END IF;
    END IF;
    IF v_has_key THEN
        SELECT count(*), min(expires_at_ms) INTO v_used_by_key, v_first_end_of_key_ms
        FROM {schema}.slots
        WHERE kind = p_kind
            AND limit_key = v_limit_key;
        IF v_used_by_key >= v_limit.per_key THEN
            INSERT INTO {schema}.waiting_keys (kind, limit_key, opens_at_ms)
            VALUES (p_kind, v_limit_key, v_first_end_of_key_ms)
            ON CONFLICT (kind, limit_key) DO UPDATE
            SET opens_at_ms = excluded.opens_at_ms;
            RETURN 'full';
        END IF;
    END IF;
    IF p_claim_id IS NULL THEN
        RETURN 'open';
    END IF;
    INSERT INTO {schema}.slots (kind, limit_key, session_key, claim_id, expires_at_ms)
    VALUES (p_kind, v_limit_key, p_session_key, p_claim_id, p_expires_at_ms);
    IF v_limit.at_once IS NOT NULL THEN
        v_opens_at_ms := CASE WHEN v_used + 1 >= v_limit.at_once THEN least(v_first_end_ms, p_expires_at_ms) ELSE 0 END;
        UPDATE {schema}.limits
        SET opens_at_ms = v_opens_at_ms
        WHERE kind = p_kind
            AND opens_at_ms <> v_opens_at_ms;
    END IF;
    IF v_has_key THEN
        PERFORM {schema}.move_key_v1(
            p_kind, v_limit_key,
            CASE
                WHEN v_used_by_key + 1 >= v_limit.per_key THEN least(v_first_end_of_key_ms, p_expires_at_ms)
                ELSE v_now_ms
            END
        );
    END IF;
    RETURN 'open';
END;
$$;

-- Frees the slot of a claim that ended, and opens its kind and its key. Call it after all other changes of the queue.
CREATE OR REPLACE FUNCTION {schema}.free_slot_v1(
    p_kind text, p_limit_key text, p_session_key bigint, p_claim_id text, p_given_ms bigint
)
RETURNS boolean
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_limit record;
BEGIN
    SELECT at_once, per_key INTO v_limit
    FROM {schema}.limits
    WHERE kind = p_kind;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF v_limit.at_once IS NOT NULL THEN
        PERFORM {schema}.lock_slots_v1(p_kind, '', true);
    END IF;
    IF v_limit.per_key IS NOT NULL AND p_limit_key <> '' THEN
        PERFORM {schema}.lock_slots_v1(p_kind, p_limit_key, true);
    END IF;
    DELETE FROM {schema}.slots
    WHERE kind = p_kind
        AND limit_key = p_limit_key
        AND session_key = p_session_key
        AND claim_id = p_claim_id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE {schema}.limits
    SET opens_at_ms = 0
    WHERE kind = p_kind
        AND opens_at_ms <> 0;
    IF p_limit_key <> '' THEN
        PERFORM {schema}.move_key_v1(p_kind, p_limit_key, {schema}.now_ms_v1(p_given_ms));
    END IF;
    RETURN true;
END;
$$;

-- Pauses or resumes a session. Returns false if that changes nothing.
CREATE OR REPLACE FUNCTION {schema}.pause_ready_v1(
    p_family bigint, p_session_key bigint, p_given_ms bigint, p_paused bigint
)
RETURNS boolean
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_paused bigint;
BEGIN
    LOOP
        SELECT paused INTO v_paused
        FROM {schema}.ready
        WHERE family = p_family
            AND session_key = p_session_key
        FOR UPDATE;
        EXIT WHEN FOUND;
        IF p_paused = 0 THEN
            RETURN false;
        END IF;
        INSERT INTO {schema}.ready (
            session_key, family, level, kind, priority, served, due_at_ms, claimed_upto, waits_for, paused
        )
        VALUES (p_session_key, p_family, 0, '', 0, 0, NULL, 0, NULL, 0)
        ON CONFLICT (family, session_key) DO NOTHING;
    END LOOP;
    IF v_paused = p_paused THEN
        RETURN false;
    END IF;
    UPDATE {schema}.ready
    SET paused = p_paused
    WHERE family = p_family
        AND session_key = p_session_key;
    PERFORM {schema}.touch_ready_v1(p_family, p_session_key, p_given_ms, true);
    RETURN true;
END;
$$;
