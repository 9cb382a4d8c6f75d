-- Server functions of the queue: one trip for each hot path. Part of the schema; see functions.sql.
--
-- The ready row of a session is the lock of its queue. A claim locks it FOR UPDATE, so that claims in one session are
-- serialized. Enqueueing locks it FOR KEY SHARE, or FOR UPDATE if it changes the session's offer. Settling locks it FOR
-- UPDATE only if the session offers no other work: then the settled work may have blocked other work, or was the last.
-- So a row never offers work too late. It may offer work that is gone, and then the claim that finds none corrects it.
-- The head of the session is never locked.
--
-- Rows are looked up by their whole key, one key at a time, with conditions that fit only one index (see schema.sql):
-- unsettled work, and batches by id, without the family; batches by number with it.

-- Locks the queues of sessions, always in the same order. Call it before locking a session's lease, or batches of work
-- FOR UPDATE that claims may wait for. A queue without unsettled work has no row and needs no lock.
CREATE OR REPLACE FUNCTION {schema}.lock_ready_v1(p_families bigint[], p_session_keys bigint[]) RETURNS bigint
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_queue record;
    v_locked bigint := 0;
BEGIN
    FOR v_queue IN
        SELECT DISTINCT wanted.family, wanted.session_key
        FROM unnest(p_families, p_session_keys) AS wanted (family, session_key)
        ORDER BY wanted.session_key
    LOOP
        PERFORM 1
        FROM {schema}.ready
        WHERE family = v_queue.family
            AND session_key = v_queue.session_key
        FOR UPDATE;
        v_locked := v_locked + 1;
    END LOOP;
    RETURN v_locked;
END;
$$;

-- Updates the ready row of a session (rules.ready.ready_row). p_freed: work may have become claimable, or gone;
-- otherwise work was only added. p_claimed_upto: the last batch of a new claim, which sends the session behind all
-- others. Every statement that settles, gives back or enqueues work calls this afterwards, in the same transaction.
CREATE OR REPLACE FUNCTION {schema}.touch_ready_v1(
    p_family bigint, p_session_key bigint, p_given_ms bigint, p_freed boolean, p_claimed_upto bigint DEFAULT NULL
)
RETURNS boolean
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_before record;
    v_batch record;
    v_now_ms bigint;
    v_claimed_upto bigint;
    v_blocked_until_ms bigint;
    v_ready_at_ms bigint;
    v_is_claimed boolean;
    v_any boolean := false;
    v_found boolean := false;
    v_in_back_off boolean := false;
    v_kind text;
    v_priority bigint;
    v_level bigint;
    v_due_at_ms bigint;
    v_served bigint;
BEGIN
    IF NOT p_freed THEN
        -- Work behind a batch on offer changes nothing. The share lock keeps the row until the commit.
        PERFORM 1
        FROM {schema}.ready
        WHERE family = p_family
            AND session_key = p_session_key
            AND level + 0 > 0
        FOR KEY SHARE;
        IF FOUND THEN
            RETURN false;
        END IF;
    END IF;
    LOOP
        SELECT level, kind, priority, due_at_ms, claimed_upto, waits_for, paused INTO v_before
        FROM {schema}.ready
        WHERE family = p_family
            AND session_key = p_session_key
        FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO {schema}.ready (
            session_key, family, level, kind, priority, served, due_at_ms, claimed_upto, waits_for, paused
        )
        VALUES (p_session_key, p_family, 0, '', 0, 0, NULL, 0, NULL, 0)
        ON CONFLICT (family, session_key) DO NOTHING;
    END LOOP;
    v_now_ms := {schema}.now_ms_v1(p_given_ms);
    v_claimed_upto := greatest(v_before.claimed_upto, p_claimed_upto);
    SELECT expires_at_ms INTO v_blocked_until_ms
    FROM {schema}.leases
    WHERE kind = 'session'
        AND resource = p_session_key::text
        AND token_hash IS NOT NULL
        -- part: by_family
        AND family = p_family
        -- end part
    ;
    v_blocked_until_ms := coalesce(v_blocked_until_ms, 0);

    FOR v_batch IN
        SELECT
            enqueue_seq, kind, priority, available_at_ms, retry_at_ms, claim_token_hash, claim_expires_at_ms,
            claim_exclusive
        FROM {schema}.batches
        WHERE session_key = p_session_key
            AND settled_state IS NULL
            -- part: by_family
            AND family = p_family
            -- end part
        ORDER BY enqueue_seq
        LIMIT 9223372036854775807
    LOOP
        EXIT WHEN v_found AND v_batch.enqueue_seq > v_claimed_upto;
        v_is_claimed := v_batch.claim_token_hash IS NOT NULL AND v_batch.claim_expires_at_ms > v_now_ms;
        IF v_is_claimed AND v_batch.claim_exclusive > 0 THEN
            v_blocked_until_ms := greatest(v_blocked_until_ms, v_batch.claim_expires_at_ms);
        END IF;
        v_ready_at_ms := greatest(
            v_batch.available_at_ms, v_batch.retry_at_ms,
            CASE WHEN v_is_claimed THEN v_batch.claim_expires_at_ms ELSE 0 END
        );
        IF NOT v_found THEN
            IF NOT v_any OR v_ready_at_ms <= v_now_ms THEN
                v_kind := v_batch.kind;
                v_priority := v_batch.priority;
            END IF;
            IF v_ready_at_ms <= v_now_ms THEN
                v_found := true;
            ELSE
                v_due_at_ms := least(v_due_at_ms, v_ready_at_ms);
                v_in_back_off := v_in_back_off OR v_batch.retry_at_ms > v_now_ms;
            END IF;
        END IF;
        v_any := true;
    END LOOP;

    IF NOT v_any AND v_before.paused = 0 THEN
        DELETE FROM {schema}.ready
        WHERE family = p_family
            AND session_key = p_session_key;
        RETURN true;
    END IF;
    IF v_before.paused > 0 THEN
        v_level := 0;
        v_kind := coalesce(v_kind, nullif(v_before.kind, ''), 'turn');
        v_priority := coalesce(v_priority, v_before.priority);
        v_due_at_ms := NULL;
    ELSIF v_blocked_until_ms > v_now_ms THEN
        v_level := 0;
        v_due_at_ms := v_blocked_until_ms;
    ELSE
        v_level := CASE WHEN NOT v_found THEN 0 WHEN v_in_back_off THEN 1 ELSE 2 END;
    END IF;
    IF p_claimed_upto IS NOT NULL
        OR v_before.waits_for IS NOT NULL
        OR (v_before.level, v_before.kind, v_before.priority, v_before.due_at_ms)
        IS DISTINCT FROM (v_level, v_kind, v_priority, v_due_at_ms)
    THEN
        -- A session that waited for a slot keeps its place.
        IF p_claimed_upto IS NOT NULL OR (v_before.level = 0 AND v_before.waits_for IS NULL AND v_level > 0) THEN
            -- part: one_server
            v_served := nextval('{schema}.served_numbers');
            -- end part
            -- part: cluster
            -- Only the coordinator has sequences. For this order, roughly synchronized clocks are enough.
            v_served := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
            -- end part
        END IF;
        UPDATE {schema}.ready
        SET
            level = v_level,
            kind = v_kind,
            priority = v_priority,
            due_at_ms = v_due_at_ms,
            claimed_upto = v_claimed_upto,
            waits_for = NULL,
            served = coalesce(v_served, served)
        WHERE family = p_family
            AND session_key = p_session_key;
    END IF;
    RETURN true;
END;
$$;

-- Enqueues a batch for a live session. Verdicts: enqueued; known (the source key's earlier batch); absent;
-- deleted.
CREATE OR REPLACE FUNCTION {schema}.enqueue_batch_v1(
    p_session_id text, p_given_ms bigint, p_batch_id text, p_source_key text, p_draft_hash text, p_delivery text,
    p_slot text, p_merge_key text, p_kind text, p_priority bigint, p_available_at_ms bigint, p_payloads bytea,
    p_family bigint, p_enqueue_seq bigint, p_limit_key text
)
RETURNS TABLE (verdict text, batch {schema}.batches)
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_family bigint;
    v_session_key bigint;
BEGIN
    SELECT family, session_key INTO v_family, v_session_key
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
    LOOP
        RETURN QUERY
        SELECT 'known', ROW(known.*)::{schema}.batches
        FROM {schema}.batches AS known
        WHERE known.session_key = v_session_key
            AND known.source_key = p_source_key
            -- part: by_family
            AND known.family = v_family
            -- end part
        ;
        EXIT WHEN FOUND;
        RETURN QUERY
        INSERT INTO {schema}.batches AS added (
            enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, kind,
            priority, available_at_ms, enqueued_at_ms, payloads, claim_fence, claim_exclusive, claim_size, attempts,
            retry_at_ms, limit_key, claim_slot
        )
        VALUES (
            -- part: one_server
            nextval('{schema}.enqueue_seqs'),
            -- end part
            -- part: cluster
            p_enqueue_seq,
            -- end part
            p_batch_id, v_session_key, v_family, p_source_key, p_draft_hash, p_delivery, p_slot, p_merge_key,
            p_kind, p_priority, p_available_at_ms, {schema}.now_ms_v1(p_given_ms), p_payloads, 0, 0, 0, 0, 0,
            p_limit_key, 0
        )
        ON CONFLICT (family, session_key, source_key) WHERE source_key IS NOT NULL DO NOTHING
        RETURNING 'enqueued', ROW(added.*)::{schema}.batches;
        IF FOUND THEN
            PERFORM {schema}.touch_ready_v1(v_family, v_session_key, p_given_ms, false);
            EXIT;
        END IF;
        -- Another transaction has just used the source key: find its batch.
    END LOOP;
END;
$$;

-- Claims the next ready batches of a session that go together (rules.claims: may_claim, claim_prefix, new_claim), or
-- adds them to a held claim (rules.claims: may_join, widened), which may become exclusive even if none is added, and
-- updates the session's ready row (rules.ready.ready_row). The caller has locked that row FOR UPDATE, or passes a
-- p_most of 0 without one. Without a token, nothing is claimed. With p_next, any lease keeps the claim out, also the
-- owner's own. The claim ends with the batch with which its payloads reach p_most_bytes. With p_any_limits, a new claim
-- must get a slot (take_slot_v1), and p_waits says if it may wait for the lock on them. Planner settings are those of
-- the calling function.
-- Verdicts: claimed (a row for each batch of the claim); claimable; none; lease_lost; claim_lost; claim_widened; and
-- those of take_slot_v1 that refuse: closed; full (the session waits for the key); busy.
CREATE OR REPLACE FUNCTION {schema}.claim_in_session_v1(
    p_family bigint, p_session_key bigint, p_claimed_upto bigint, p_given_ms bigint, p_owner_id text, p_boundary text,
    p_most bigint, p_exclusive bigint, p_token_hash text, p_ttl_ms bigint, p_exactly text[], p_lease_token_hash text,
    p_lease_fence bigint, p_held_claim_id text, p_held_fence bigint, p_held_batch_ids text[], p_kinds text[],
    p_next boolean, p_most_bytes bigint, p_any_limits boolean, p_waits boolean
)
RETURNS TABLE (verdict text, batch {schema}.batches)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    v_lease record;
    v_held record;
    v_other_ends_at_ms bigint;
    v_now_ms bigint;
    v_batch record;
    v_first record;
    v_seqs bigint[];
    v_batch_ids text[];
    v_fence bigint;
    v_size bigint;
    v_last_seq bigint;
    v_from_seq bigint;
    v_to_seq bigint;
    v_is_open boolean;
    v_had_claim boolean;
    v_locked bigint;
    v_exclusive bigint := p_exclusive;
    v_is_alone boolean := false;
    v_held_kind text;
    v_held_key text;
    v_held_bytes bigint := 0;
    v_slot bigint := 0;
    v_due_before_ms bigint;
    v_bytes bigint;
    v_becomes_exclusive boolean := false;
    v_claim_id text;
    v_claimed_at_ms bigint;
    v_expires_at_ms bigint;
    v_blocked_until_ms bigint;
    v_is_claimed boolean;
    v_offers boolean;
    v_in_back_off boolean;
    v_kind text;
    v_priority bigint;
    v_due_at_ms bigint;
    -- part: cluster
    v_served bigint;
    -- end part
BEGIN
    -- Locks: expiry is judged on the newest rows, by a clock that is read after the last lock.
    SELECT owner_id, token_hash, fence, expires_at_ms INTO v_lease
    FROM {schema}.leases
    WHERE kind = 'session'
        AND resource = p_session_key::text
        -- part: by_family
        AND family = p_family
        -- end part
    FOR SHARE;
    IF p_held_claim_id IS NOT NULL THEN
        SELECT
            array_agg(member.enqueue_seq) AS seqs,
            min(member.enqueue_seq) AS first_seq,
            max(member.enqueue_seq) AS last_seq,
            bool_and(
                member.settled_state IS NULL
                AND member.claim_id = p_held_claim_id
                AND member.claim_token_hash = p_token_hash
                AND member.claim_fence >= p_held_fence
            ) AS is_proven,
            count(DISTINCT member.enqueue_seq) AS size,
            max(member.claim_size) AS claim_size,
            max(member.claim_fence) AS fence,
            min(member.claim_expires_at_ms) AS expires_at_ms,
            min(member.claimed_at_ms) AS claimed_at_ms,
            max(member.claim_exclusive) AS is_exclusive,
            bool_or(member.slot <> 'join') AS is_alone,
            min(member.kind) AS kind,
            min(member.limit_key) AS limit_key,
            max(member.claim_slot) AS claim_slot,
            coalesce(sum(member.bytes), 0) AS bytes
        INTO v_held
        FROM unnest(p_held_batch_ids) AS wanted (batch_id)
        CROSS JOIN LATERAL (
            SELECT
                enqueue_seq, settled_state, claim_id, claim_token_hash, claim_fence, claim_size, claim_expires_at_ms,
                claimed_at_ms, claim_exclusive, slot, kind, limit_key, claim_slot, octet_length(payloads) AS bytes
            FROM {schema}.batches
            WHERE batch_id = wanted.batch_id
                AND session_key = p_session_key
                -- part: by_family
                AND family = p_family
                -- end part
            FOR UPDATE
        ) AS member;
        v_exclusive := greatest(v_held.is_exclusive, p_exclusive);
        v_is_alone := v_held.is_alone;
        v_held_kind := v_held.kind;
        v_held_key := v_held.limit_key;
        v_slot := v_held.claim_slot;
        v_held_bytes := v_held.bytes;
        v_becomes_exclusive := p_exclusive > 0 AND v_held.is_exclusive = 0;
    END IF;
    IF v_exclusive > 0 THEN
        SELECT max(other.claim_expires_at_ms) INTO v_other_ends_at_ms
        FROM (
            SELECT claim_expires_at_ms
            FROM {schema}.batches
            WHERE session_key = p_session_key
                AND enqueue_seq <= p_claimed_upto
                AND settled_state IS NULL
                AND claim_id IS NOT NULL
                AND claim_id IS DISTINCT FROM p_held_claim_id
                -- part: by_family
                AND family = p_family
                -- end part
            ORDER BY enqueue_seq
            FOR SHARE
        ) AS other;
    END IF;
    v_now_ms := {schema}.now_ms_v1(p_given_ms);

    IF p_held_claim_id IS NOT NULL THEN
        verdict := {schema}.judge_claim_v1(
            v_held.is_proven AND v_held.size = cardinality(p_held_batch_ids) AND v_held.expires_at_ms > v_now_ms,
            v_held.claim_size, cardinality(p_held_batch_ids), v_held.fence = p_held_fence
        );
        IF verdict IS NOT NULL THEN
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    IF p_lease_token_hash IS NOT NULL AND NOT coalesce(
        v_lease.token_hash = p_lease_token_hash AND v_lease.fence = p_lease_fence AND v_lease.expires_at_ms > v_now_ms,
        false
    ) THEN
        verdict := 'lease_lost';
        RETURN NEXT;
        RETURN;
    END IF;
    v_blocked_until_ms := CASE WHEN v_lease.token_hash IS NULL THEN 0 ELSE v_lease.expires_at_ms END;
    IF v_blocked_until_ms > v_now_ms AND (p_next OR v_lease.owner_id <> p_owner_id) OR v_other_ends_at_ms > v_now_ms
    THEN
        verdict := 'none';
        RETURN NEXT;
        RETURN;
    END IF;
    v_expires_at_ms := {schema}.expiry_v1(v_now_ms, p_ttl_ms);
    IF p_held_claim_id IS NOT NULL THEN
        v_expires_at_ms := greatest(v_expires_at_ms, v_held.expires_at_ms);
    END IF;

    -- Choose the prefix of ready batches that go together, and see what the session offers behind it. An exclusive
    -- claim ends before a batch in back-off; other claims skip it. Only chosen batches are locked. If a batch's old
    -- claim was renewed during the wait for its lock, the batch is no longer ready, and the prefix is chosen again.
    LOOP
        v_seqs := '{}';
        v_batch_ids := '{}';
        v_fence := 0;
        v_last_seq := p_claimed_upto;
        v_bytes := v_held_bytes;
        v_is_open := p_most > 0 AND v_bytes < p_most_bytes;
        v_had_claim := false;
        v_offers := false;
        v_in_back_off := false;
        v_kind := NULL;
        v_due_at_ms := NULL;
        FOR v_batch IN
            SELECT
                enqueue_seq, batch_id, delivery, slot, merge_key, kind, priority, available_at_ms, retry_at_ms,
                claim_id, claim_expires_at_ms, claim_exclusive, claim_fence, limit_key, octet_length(payloads) AS bytes
            FROM {schema}.batches
            WHERE session_key = p_session_key
                AND settled_state IS NULL
                -- part: by_family
                AND family = p_family
                -- end part
            ORDER BY enqueue_seq
            LIMIT 9223372036854775807
        LOOP
            EXIT WHEN NOT v_is_open AND v_offers AND v_batch.enqueue_seq > v_last_seq;
            v_is_claimed := coalesce(v_batch.claim_expires_at_ms > v_now_ms, false);
            IF v_batch.claim_exclusive > 0 AND v_exclusive = 0 AND v_batch.claim_id IS NOT NULL THEN
                -- The claim of another owner. If it looks expired, it may have been renewed.
                IF NOT v_is_claimed THEN
                    PERFORM 1
                    FROM {schema}.batches
                    WHERE family = p_family
                        AND session_key = p_session_key
                        AND enqueue_seq = v_batch.enqueue_seq
                        AND coalesce(settled_state, '') = ''
                        AND claim_expires_at_ms > v_now_ms
                    FOR SHARE;
                END IF;
                IF v_is_claimed OR FOUND THEN
                    verdict := 'none';
                    RETURN NEXT;
                    RETURN;
                END IF;
            END IF;
            IF v_is_claimed OR v_batch.available_at_ms > v_now_ms OR v_batch.retry_at_ms > v_now_ms THEN
                IF v_exclusive > 0 AND NOT v_is_claimed AND v_batch.available_at_ms <= v_now_ms THEN
                    v_is_open := false;
                END IF;
                IF NOT v_offers THEN
                    v_in_back_off := v_in_back_off OR v_batch.retry_at_ms > v_now_ms;
                    v_due_at_ms := least(
                        v_due_at_ms,
                        greatest(
                            v_batch.available_at_ms, v_batch.retry_at_ms,
                            CASE
                                WHEN v_batch.claim_id = p_held_claim_id THEN v_expires_at_ms
                                WHEN v_is_claimed THEN v_batch.claim_expires_at_ms
                            END
                        )
                    );
                END IF;
            ELSE
                IF v_is_open AND cardinality(v_seqs) = 0 THEN
                    v_first := v_batch;
                    v_due_before_ms := v_due_at_ms;
                    v_is_open := NOT (
                        p_boundary = 'active_turn_checkpoint' AND v_batch.delivery <> 'earliest_safe_boundary'
                        OR p_kinds IS NOT NULL AND v_batch.kind <> ALL(p_kinds)
                        OR v_is_alone
                        OR p_held_claim_id IS NOT NULL AND (
                            v_batch.slot <> 'join' OR v_batch.kind <> v_held_kind
                            OR v_batch.limit_key IS DISTINCT FROM v_held_key
                        )
                    );
                ELSIF v_is_open THEN
                    v_is_open := v_batch.slot = 'join' AND v_batch.delivery = v_first.delivery
                        AND v_batch.merge_key = v_first.merge_key AND v_batch.kind = v_first.kind
                        AND v_batch.limit_key IS NOT DISTINCT FROM v_first.limit_key;
                END IF;
                IF v_is_open THEN
                    v_seqs := v_seqs || v_batch.enqueue_seq;
                    v_batch_ids := v_batch_ids || v_batch.batch_id;
                    v_fence := greatest(v_fence, v_batch.claim_fence);
                    v_bytes := v_bytes + v_batch.bytes;
                    v_had_claim := v_had_claim OR v_batch.claim_id IS NOT NULL;
                    v_last_seq := greatest(v_last_seq, v_batch.enqueue_seq);
                    v_due_at_ms := least(v_due_at_ms, v_expires_at_ms);
                    v_is_open := v_first.slot = 'join' AND v_first.merge_key <> 'never'
                        AND cardinality(v_seqs) < p_most AND v_bytes < p_most_bytes;
                ELSIF NOT v_offers THEN
                    v_offers := true;
                    v_kind := v_batch.kind;
                    v_priority := v_batch.priority;
                END IF;
            END IF;
            IF v_kind IS NULL THEN
                v_kind := v_batch.kind;
                v_priority := v_batch.priority;
            END IF;
        END LOOP;
        EXIT WHEN cardinality(v_seqs) = 0 AND v_becomes_exclusive;
        IF cardinality(v_seqs) = 0 OR (p_exactly IS NOT NULL AND v_batch_ids <> p_exactly) THEN
            verdict := 'none';
            RETURN NEXT;
            RETURN;
        END IF;
        EXIT WHEN p_token_hash IS NULL;
        -- A batch that never had a claim changes only under the lock of the ready row.
        EXIT WHEN NOT v_had_claim;
        SELECT count(*) INTO v_locked
        FROM unnest(v_seqs) AS wanted (seq)
        CROSS JOIN LATERAL (
            SELECT 1
            FROM {schema}.batches
            WHERE family = p_family
                AND session_key = p_session_key
                AND enqueue_seq = wanted.seq
                AND coalesce(settled_state, '') = ''
                AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= v_now_ms)
            FOR UPDATE
        ) AS taken;
        EXIT WHEN v_locked = cardinality(v_seqs);
    END LOOP;

    -- A damaged number is not counted up: the claim must not fail, and the row is found damaged when it is decoded.
    v_fence := greatest(v_fence, p_held_fence);
    v_fence := v_fence + (v_fence < 4611686018427387904)::int;
    v_size := cardinality(v_seqs);
    v_claimed_at_ms := v_now_ms;
    v_claim_id := 'claim:' || v_seqs[1] || ':' || v_fence;
    IF p_any_limits AND p_held_claim_id IS NULL THEN
        verdict := {schema}.take_slot_v1(
            v_first.kind, v_first.limit_key, p_session_key, CASE WHEN p_token_hash IS NOT NULL THEN v_claim_id END,
            p_given_ms, v_expires_at_ms, p_waits
        );
        IF verdict = 'full' AND v_blocked_until_ms <= v_now_ms THEN
            UPDATE {schema}.ready
            SET
                level = 0,
                kind = v_first.kind,
                priority = v_first.priority,
                due_at_ms = v_due_before_ms,
                waits_for = v_first.limit_key
            WHERE family = p_family
                AND session_key = p_session_key;
        END IF;
        IF verdict NOT IN ('free', 'open') THEN
            RETURN NEXT;
            RETURN;
        END IF;
        v_slot := CASE WHEN verdict = 'open' THEN 1 ELSE 0 END;
    END IF;
    IF p_token_hash IS NULL THEN
        verdict := 'claimable';
        RETURN NEXT;
        RETURN;
    END IF;
    v_from_seq := v_seqs[1];
    v_to_seq := v_seqs[v_size];
    IF p_held_claim_id IS NOT NULL THEN
        v_from_seq := least(v_from_seq, v_held.first_seq);
        v_to_seq := greatest(v_to_seq, v_held.last_seq);
        v_size := v_size + v_held.size;
        v_claimed_at_ms := v_held.claimed_at_ms;
        v_claim_id := p_held_claim_id;
        v_seqs := v_seqs || v_held.seqs;
        IF v_slot > 0 THEN
            UPDATE {schema}.slots
            SET expires_at_ms = v_expires_at_ms
            WHERE kind = v_held_kind
                AND limit_key = coalesce(v_held_key, '')
                AND session_key = p_session_key
                AND claim_id = p_held_claim_id;
        END IF;
    END IF;
    RETURN QUERY
    UPDATE {schema}.batches AS claimed
    SET
        claim_id = v_claim_id,
        claim_owner = p_owner_id,
        claim_token_hash = p_token_hash,
        claim_fence = v_fence,
        claimed_at_ms = v_claimed_at_ms,
        claim_expires_at_ms = v_expires_at_ms,
        claim_exclusive = v_exclusive,
        claim_size = v_size,
        claim_slot = v_slot,
        attempts = claimed.attempts + CASE
            WHEN coalesce(claimed.claim_id = p_held_claim_id, false) OR claimed.attempts >= 4611686018427387904 THEN 0
            ELSE 1
        END
    WHERE claimed.session_key = p_session_key
        AND claimed.settled_state IS NULL
        -- The range is an index condition in any case. The list may become a filter, depending on statistics.
        AND claimed.enqueue_seq BETWEEN v_from_seq AND v_to_seq
        AND claimed.enqueue_seq = ANY(v_seqs)
        -- part: by_family
        AND claimed.family = p_family
        -- end part
    RETURNING 'claimed', ROW(claimed.*)::{schema}.batches;
    IF v_exclusive > 0 THEN
        v_blocked_until_ms := greatest(v_blocked_until_ms, v_expires_at_ms);
    END IF;
    -- part: cluster
    -- Only the coordinator has sequences. For this order, roughly synchronized clocks are enough. An update of a
    -- distributed table calls no volatile function.
    v_served := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    -- end part
    UPDATE {schema}.ready
    SET
        level = CASE
            WHEN v_blocked_until_ms > v_now_ms OR NOT v_offers OR paused > 0 THEN 0
            WHEN v_in_back_off THEN 1
            ELSE 2
        END,
        kind = v_kind,
        priority = v_priority,
        -- part: one_server
        served = nextval('{schema}.served_numbers'),
        -- end part
        -- part: cluster
        served = v_served,
        -- end part
        due_at_ms = CASE
            WHEN paused > 0 THEN NULL
            WHEN v_blocked_until_ms > v_now_ms THEN v_blocked_until_ms
            ELSE v_due_at_ms
        END,
        claimed_upto = v_last_seq,
        waits_for = NULL
    WHERE family = p_family
        AND session_key = p_session_key;
END;
$$;

-- Claims the next work of one session. With p_is_retry, returns an existing claim with the same token again.
-- Verdicts: those of claim_in_session_v1; absent; deleted; isolation.
CREATE OR REPLACE FUNCTION {schema}.claim_batches_v1(
    p_session_id text, p_given_ms bigint, p_owner_id text, p_boundary text, p_most bigint, p_exclusive bigint,
    p_token_hash text, p_ttl_ms bigint, p_exactly text[], p_lease_token_hash text, p_lease_fence bigint,
    p_held_claim_id text, p_held_fence bigint, p_held_batch_ids text[], p_is_retry boolean, p_family bigint,
    p_most_bytes bigint
)
RETURNS TABLE (verdict text, batch {schema}.batches)
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_family bigint;
    v_session_key bigint;
    v_claimed_upto bigint;
    v_paused bigint;
    v_any_limits boolean;
    v_most bigint := p_most;
BEGIN
    {require_read_committed}
    SELECT family, session_key INTO v_family, v_session_key
    FROM {schema}.sessions
    WHERE session_id = p_session_id
        AND dead = 0
        -- part: by_family
        AND family = p_family
        -- end part
    ;
    IF NOT FOUND THEN
        verdict := {schema}.absence_v1(p_session_id, p_family);
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT
        claimed_upto,
        paused,
        -- part: one_place
        EXISTS (SELECT 1 FROM {schema}.limits)
        -- end part
        -- part: by_family
        false
        -- end part
    INTO v_claimed_upto, v_paused, v_any_limits
    FROM {schema}.ready
    WHERE family = v_family
        AND session_key = v_session_key
    FOR UPDATE;
    IF NOT FOUND OR v_paused > 0 THEN
        -- Without unsettled work, there is no row to lock, and nothing to claim.
        v_most := 0;
    END IF;
    IF p_is_retry THEN
        -- The answer to an earlier run was lost. A held claim that this run would widen has the same token, too, but
        -- still the fence of its proof.
        RETURN QUERY
        SELECT 'claimed', found.member
        FROM (
            SELECT ROW(member.*)::{schema}.batches AS member, member.claim_size, count(*) OVER () AS size
            FROM {schema}.batches AS member
            WHERE member.session_key = v_session_key
                AND member.enqueue_seq <= v_claimed_upto
                AND member.settled_state IS NULL
                AND member.claim_token_hash = p_token_hash
                AND member.claim_fence > coalesce(p_held_fence, 0)
                AND member.claim_expires_at_ms > {schema}.now_ms_v1(p_given_ms)
                -- part: by_family
                AND member.family = p_family
                -- end part
        ) AS found
        WHERE found.size = found.claim_size;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    RETURN QUERY
    SELECT CASE WHEN claim.verdict IN ('closed', 'full', 'busy') THEN 'none' ELSE claim.verdict END, claim.batch
    FROM {schema}.claim_in_session_v1(
        v_family, v_session_key, coalesce(v_claimed_upto, 0), p_given_ms, p_owner_id, p_boundary, v_most, p_exclusive,
        p_token_hash, p_ttl_ms, p_exactly, p_lease_token_hash, p_lease_fence, p_held_claim_id, p_held_fence,
        p_held_batch_ids, NULL, false, p_most_bytes, coalesce(v_any_limits, false), true
    ) AS claim;
END;
$$;

-- Claims the next work of any session: by the priority of its next batch, then the session least recently served.
-- Without a token, nothing is claimed. p_lock_wait: 0 never waits for other transactions; 1 waits only while it holds no
-- lock itself, so that two calls never wait for each other; 2 always waits. On a cluster distributed by family,
-- considers only the sessions of one family.
-- Verdicts: claimed; claimable; none; busy (others have locked claimable work); isolation.
CREATE OR REPLACE FUNCTION {schema}.claim_next_v1(
    p_given_ms bigint, p_owner_id text, p_kinds text[], p_most bigint, p_exclusive bigint, p_token_hash text,
    p_ttl_ms bigint, p_is_retry boolean, p_lock_wait bigint, p_family bigint, p_most_bytes bigint
)
RETURNS TABLE (verdict text, session_id text, batch {schema}.batches)
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_levels bigint[] := CASE WHEN p_exclusive > 0 THEN '{2}'::bigint[] ELSE '{1,2}'::bigint[] END;
    v_kinds text[];
    v_passed bigint[] := '{}';
    v_busy bigint[] := '{}';
    v_busy_families bigint[] := '{}';
    v_holds_lock boolean := false;
    v_family bigint;
    v_session_key bigint;
    v_is_locked boolean;
    v_due record;
    v_now_ms bigint;
    v_claimed_upto bigint;
    v_session_id text;
    v_any_limits boolean;
    v_has_slots boolean := false;
    v_claim record;
BEGIN
    {require_read_committed}
    IF p_is_retry AND p_token_hash IS NOT NULL THEN
        -- The answer to an earlier run was lost. Its claim is among the batches up to claimed_upto of some queue.
        RETURN QUERY
        SELECT 'claimed', found.session_id, found.member
        FROM (
            SELECT
                owner.session_id,
                ROW(member.*)::{schema}.batches AS member,
                member.claim_size,
                count(*) OVER () AS size
            FROM {schema}.ready AS queue
            JOIN {schema}.batches AS member
                ON member.session_key = queue.session_key
                    AND member.enqueue_seq <= queue.claimed_upto
                    AND member.settled_state IS NULL
                    AND member.claim_token_hash = p_token_hash
                    AND member.claim_expires_at_ms > {schema}.now_ms_v1(p_given_ms)
                    -- part: by_family
                    AND member.family = queue.family
                    -- end part
            JOIN {schema}.sessions AS owner
                ON owner.family = queue.family
                    AND owner.session_key = queue.session_key
            WHERE queue.claimed_upto > 0
                -- part: by_family
                AND queue.family = p_family
                -- end part
        ) AS found
        WHERE found.size = found.claim_size;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    LOOP
        -- First update rows that time alone may have changed: they may have another next batch now. Read the clock
        -- before: a volatile function cannot be an index condition.
        v_now_ms := {schema}.now_ms_v1(p_given_ms);
        FOR v_due IN
            SELECT family, session_key
            FROM {schema}.ready
            WHERE due_at_ms <= v_now_ms
                AND due_at_ms IS NOT NULL
                AND session_key <> ALL(v_busy)
                -- part: by_family
                AND family = p_family
                -- end part
            ORDER BY due_at_ms, session_key
        LOOP
            PERFORM 1
            FROM {schema}.ready
            WHERE family = v_due.family
                AND session_key = v_due.session_key
            FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                v_holds_lock := true;
                PERFORM {schema}.touch_ready_v1(v_due.family, v_due.session_key, p_given_ms, true);
            ELSE
                v_busy := v_busy || v_due.session_key;
                v_busy_families := v_busy_families || v_due.family;
            END IF;
        END LOOP;

        v_is_locked := false;
        -- part: one_place
        IF cardinality(p_kinds) = 1 AND cardinality(v_busy) = 0 THEN
            -- One statement finds, locks and names the session, unless another one offers work to claims that share it.
            SELECT
                queue.family,
                queue.session_key,
                queue.claimed_upto,
                (
                    SELECT owner.session_id
                    FROM {schema}.sessions AS owner
                    WHERE owner.family = queue.family
                        AND owner.session_key = queue.session_key
                        AND owner.dead = 0
                )
            INTO v_family, v_session_key, v_claimed_upto, v_session_id
            FROM {schema}.ready AS queue
            WHERE queue.level = 2
                AND queue.level > 0
                AND queue.kind = p_kinds[1]
                AND queue.session_key <> ALL(v_passed)
                AND NOT EXISTS (
                    SELECT 1
                    FROM {schema}.limits AS declared
                    WHERE declared.kind = p_kinds[1]
                )
                AND (
                    p_exclusive > 0
                    OR NOT EXISTS (
                        SELECT 1
                        FROM {schema}.ready AS shared
                        WHERE shared.level = 1
                            AND shared.level > 0
                            AND shared.kind = p_kinds[1]
                    )
                )
            ORDER BY queue.priority DESC, queue.served
            LIMIT 1
            FOR UPDATE OF queue SKIP LOCKED;
            v_is_locked := FOUND;
            v_any_limits := false;
        END IF;
        -- end part
        IF NOT v_is_locked THEN
            v_kinds := coalesce(p_kinds, {schema}.ready_kinds_v1(v_levels, p_family));
            SELECT found.family, found.session_key INTO v_family, v_session_key
            FROM (
                SELECT best.family, best.session_key, best.priority, best.served
                FROM unnest(v_levels) AS wanted_level (level)
                CROSS JOIN unnest(v_kinds) AS wanted (kind)
                CROSS JOIN LATERAL (
                    SELECT family, session_key, priority, served
                    FROM {schema}.ready
                    WHERE level = wanted_level.level
                        AND level > 0
                        AND kind = wanted.kind
                        AND session_key <> ALL(v_passed)
                        AND session_key <> ALL(v_busy)
                        -- part: by_family
                        AND family = p_family
                        -- end part
                    ORDER BY priority DESC, served
                    LIMIT 1
                ) AS best
                -- part: one_place
                WHERE NOT EXISTS (
                    SELECT 1
                    FROM {schema}.limits AS closed
                    WHERE closed.kind = wanted.kind
                        AND (closed.paused > 0 OR closed.opens_at_ms > v_now_ms)
                )
                UNION ALL
                (
                    -- The best session of each of the keys that have been open longest.
                    SELECT waiting.family, waiting.session_key, waiting.priority, waiting.served
                    FROM {schema}.waiting_keys AS open_key
                    -- The limit keeps the planner from reading all keys of a kind.
                    CROSS JOIN LATERAL (
                        SELECT 1
                        FROM {schema}.limits AS declared
                        WHERE declared.kind = open_key.kind
                            AND declared.paused = 0
                            AND declared.opens_at_ms <= v_now_ms
                        LIMIT 1
                    ) AS open_kind
                    CROSS JOIN LATERAL (
                        SELECT family, session_key, priority, served
                        FROM {schema}.ready
                        WHERE kind = open_key.kind
                            AND waits_for = open_key.limit_key
                            AND waits_for IS NOT NULL
                            AND session_key <> ALL(v_passed)
                            AND session_key <> ALL(v_busy)
                        ORDER BY priority DESC, served
                        LIMIT 1
                    ) AS waiting
                    WHERE open_key.opens_at_ms <= v_now_ms
                        AND (p_kinds IS NULL OR open_key.kind = ANY(p_kinds))
                    ORDER BY open_key.opens_at_ms
                    LIMIT 16
                )
                -- end part
            ) AS found
            ORDER BY found.priority DESC, found.served
            LIMIT 1;
            IF NOT FOUND THEN
                IF cardinality(v_busy) = 0 OR p_lock_wait = 0 OR (p_lock_wait = 1 AND v_holds_lock) OR v_has_slots THEN
                    verdict := CASE WHEN cardinality(v_busy) = 0 THEN 'none' ELSE 'busy' END;
                    RETURN NEXT;
                    RETURN;
                END IF;
                -- Other transactions have locked all claimable work. Wait for the first: it may leave some.
                PERFORM 1
                FROM {schema}.ready
                WHERE family = v_busy_families[1]
                    AND session_key = v_busy[1]
                FOR UPDATE;
                v_holds_lock := true;
                v_busy := v_busy[2:];
                v_busy_families := v_busy_families[2:];
                CONTINUE;
            END IF;

            SELECT
                claimed_upto,
                -- part: one_place
                EXISTS (SELECT 1 FROM {schema}.limits)
                -- end part
                -- part: by_family
                false
                -- end part
            INTO v_claimed_upto, v_any_limits
            FROM {schema}.ready
            WHERE family = v_family
                AND session_key = v_session_key
                AND (level + 0 > 0 OR waits_for IS NOT NULL)
            FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                v_busy := v_busy || v_session_key;
                v_busy_families := v_busy_families || v_family;
                CONTINUE;
            END IF;
            SELECT owner.session_id INTO v_session_id
            FROM {schema}.sessions AS owner
            WHERE owner.family = v_family
                AND owner.session_key = v_session_key
                AND owner.dead = 0;
        END IF;
        v_holds_lock := true;
        IF v_session_id IS NOT NULL AND v_any_limits THEN
            FOR v_claim IN
                SELECT claim.verdict, claim.batch
                FROM {schema}.claim_in_session_v1(
                    v_family, v_session_key, v_claimed_upto, p_given_ms, p_owner_id, 'idle', p_most, p_exclusive,
                    p_token_hash, p_ttl_ms, NULL, NULL, NULL, NULL, NULL, NULL, p_kinds, true, p_most_bytes, true,
                    -- A transaction that has locked slots does not wait for those of others.
                    p_lock_wait > 0 AND NOT v_has_slots
                ) AS claim
            LOOP
                EXIT WHEN v_claim.verdict NOT IN ('claimed', 'claimable');
                verdict := v_claim.verdict;
                session_id := v_session_id;
                batch := v_claim.batch;
                RETURN NEXT;
            END LOOP;
            IF v_claim.verdict IN ('claimed', 'claimable') THEN
                RETURN;
            END IF;
            IF v_claim.verdict = 'busy' THEN
                v_busy := v_busy || v_session_key;
                v_busy_families := v_busy_families || v_family;
                v_has_slots := true;
                CONTINUE;
            END IF;
            IF v_claim.verdict IN ('closed', 'full') THEN
                v_has_slots := true;
                v_passed := v_passed || v_session_key;
                CONTINUE;
            END IF;
        ELSIF v_session_id IS NOT NULL THEN
            RETURN QUERY
            SELECT claim.verdict, v_session_id, claim.batch
            FROM {schema}.claim_in_session_v1(
                v_family, v_session_key, v_claimed_upto, p_given_ms, p_owner_id, 'idle', p_most, p_exclusive,
                p_token_hash, p_ttl_ms, NULL, NULL, NULL, NULL, NULL, NULL, p_kinds, true, p_most_bytes, false, false
            ) AS claim
            WHERE claim.verdict <> 'none';
            IF FOUND THEN
                RETURN;
            END IF;
        END IF;
        -- The offer was stale.
        PERFORM {schema}.touch_ready_v1(v_family, v_session_key, p_given_ms, true);
        v_passed := v_passed || v_session_key;
    END LOOP;
END;
$$;

-- Returns the kinds of work on offer at these levels, each found by one index lookup.
CREATE OR REPLACE FUNCTION {schema}.ready_kinds_v1(p_levels bigint[], p_family bigint) RETURNS text[]
STABLE
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_kinds text[] := '{}';
    v_level bigint;
    v_kind text;
BEGIN
    FOREACH v_level IN ARRAY p_levels LOOP
        v_kind := '';
        LOOP
            SELECT kind INTO v_kind
            FROM {schema}.ready
            WHERE level = v_level
                AND level > 0
                AND kind > v_kind COLLATE "C"
                -- part: by_family
                AND family = p_family
                -- end part
            ORDER BY kind
            LIMIT 1;
            EXIT WHEN NOT FOUND;
            IF v_kind <> ALL(v_kinds) THEN
                v_kinds := v_kinds || v_kind;
            END IF;
        END LOOP;
    END LOOP;
    RETURN v_kinds;
END;
$$;

-- Settles a claim without a revision (rules.claims: require_claim, settled_before). Verdicts: completed; claim_lost;
-- claim_widened; absent; deleted; isolation; busy (without p_waits: another transaction holds the queue or the first
-- batch).
CREATE OR REPLACE FUNCTION {schema}.settle_claim_v1(
    p_session_id text, p_given_ms bigint, p_claim_id text, p_token_hash text, p_fence bigint, p_batch_ids text[],
    p_family bigint, p_waits boolean
)
RETURNS TABLE (verdict text, settled_at_ms bigint, settled_revision bigint, reached text)
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_family bigint;
    v_session_key bigint;
    v_held record;
    v_now_ms bigint;
    v_is_named boolean;
    v_is_freed boolean;
    v_is_locked boolean := false;
BEGIN
    {require_read_committed}
    SELECT owner.family, owner.session_key, queue.session_key IS NULL INTO v_family, v_session_key, v_is_freed
    FROM {schema}.sessions AS owner
    LEFT JOIN {schema}.ready AS queue
        ON queue.family = owner.family
            AND queue.session_key = owner.session_key
            AND queue.level + 0 > 0
    WHERE owner.session_id = p_session_id
        AND owner.dead = 0
        -- part: by_family
        AND owner.family = p_family
        -- end part
    ;
    IF NOT FOUND THEN
        verdict := {schema}.absence_v1(p_session_id, p_family);
        RETURN NEXT;
        RETURN;
    END IF;
    -- A session that offers work keeps offering it: this claim blocked no other, because an exclusive claim leaves
    -- nothing on offer. Otherwise lock the row before the batches, as claims do.
    IF v_is_freed THEN
        IF p_waits THEN
            PERFORM 1
            FROM {schema}.ready
            WHERE family = v_family
                AND session_key = v_session_key
            FOR UPDATE;
        ELSE
            PERFORM 1
            FROM {schema}.ready
            WHERE family = v_family
                AND session_key = v_session_key
            FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                verdict := 'busy';
                RETURN NEXT;
                RETURN;
            END IF;
        END IF;
    END IF;
    IF cardinality(p_batch_ids) = 1 THEN
        SELECT
            ARRAY[enqueue_seq] AS seqs,
            enqueue_seq AS first_seq,
            enqueue_seq AS last_seq,
            1::bigint AS size,
            claim_id = p_claim_id AND claim_token_hash = p_token_hash AND claim_fence >= p_fence AS is_proven,
            claim_size,
            claim_fence AS fence,
            settled_state IS NULL AS is_unsettled,
            coalesce(settled_state = 'completed', false) AS is_completed,
            claim_expires_at_ms AS expires_at_ms,
            settled_at_ms,
            settled_revision,
            kind,
            limit_key,
            claim_slot
        INTO v_held
        FROM {schema}.batches
        WHERE batch_id = p_batch_ids[1]
            AND session_key = v_session_key
            -- part: by_family
            AND family = p_family
            -- end part
        FOR UPDATE SKIP LOCKED;
        v_is_locked := FOUND;
    END IF;
    IF NOT v_is_locked AND NOT p_waits THEN
        verdict := 'busy';
        RETURN NEXT;
        RETURN;
    END IF;
    IF NOT v_is_locked THEN
        SELECT
            array_agg(member.enqueue_seq) AS seqs,
            min(member.enqueue_seq) AS first_seq,
            max(member.enqueue_seq) AS last_seq,
            count(DISTINCT member.enqueue_seq) AS size,
            bool_and(
                member.claim_id = p_claim_id
                AND member.claim_token_hash = p_token_hash
                AND member.claim_fence >= p_fence
            ) AS is_proven,
            max(member.claim_size) AS claim_size,
            max(member.claim_fence) AS fence,
            bool_and(member.settled_state IS NULL) AS is_unsettled,
            bool_and(member.settled_state = 'completed') AS is_completed,
            min(member.claim_expires_at_ms) AS expires_at_ms,
            min(member.settled_at_ms) AS settled_at_ms,
            min(member.settled_revision) AS settled_revision,
            min(member.kind) AS kind,
            min(member.limit_key) AS limit_key,
            max(member.claim_slot) AS claim_slot
        INTO v_held
        FROM unnest(p_batch_ids) AS wanted (batch_id)
        CROSS JOIN LATERAL (
            SELECT
                enqueue_seq, claim_id, claim_token_hash, claim_fence, claim_size, settled_state, settled_at_ms,
                settled_revision, claim_expires_at_ms, kind, limit_key, claim_slot
            FROM {schema}.batches
            WHERE batch_id = wanted.batch_id
                AND session_key = v_session_key
                -- part: by_family
                AND family = p_family
                -- end part
            FOR UPDATE
        ) AS member;
    END IF;
    v_now_ms := {schema}.now_ms_v1(p_given_ms);
    v_is_named := coalesce(v_held.is_proven AND v_held.size = cardinality(p_batch_ids), false);
    IF v_is_named AND v_held.is_completed AND v_held.claim_size = v_held.size AND v_held.fence = p_fence THEN
        verdict := 'completed';
        settled_at_ms := v_held.settled_at_ms;
        settled_revision := v_held.settled_revision;
        RETURN NEXT;
        RETURN;
    END IF;
    verdict := {schema}.judge_claim_v1(
        v_is_named AND v_held.is_unsettled AND v_held.expires_at_ms > v_now_ms, v_held.claim_size, v_held.size,
        v_held.fence = p_fence
    );
    IF verdict IS NULL AND NOT p_waits AND v_held.claim_slot > 0 THEN
        -- To free a slot may mean to wait for claims that count.
        verdict := 'busy';
        RETURN NEXT;
        RETURN;
    END IF;
    IF verdict IS NULL THEN
        UPDATE {schema}.batches AS settled
        SET
            settled_state = 'completed',
            settled_at_ms = v_now_ms
        WHERE settled.session_key = v_session_key
            AND settled.settled_state IS NULL
            AND settled.enqueue_seq BETWEEN v_held.first_seq AND v_held.last_seq
            AND settled.enqueue_seq = ANY(v_held.seqs)
            -- part: by_family
            AND settled.family = p_family
            -- end part
        ;
        IF v_is_freed THEN
            PERFORM {schema}.touch_ready_v1(v_family, v_session_key, v_now_ms, true);
        END IF;
        IF v_held.claim_slot > 0 THEN
            PERFORM {schema}.free_slot_v1(
                v_held.kind, coalesce(v_held.limit_key, ''), v_session_key, p_claim_id, v_now_ms
            );
        END IF;
        verdict := 'completed';
        settled_at_ms := v_now_ms;
    END IF;
    IF verdict = 'completed' THEN
        reached := {schema}.position_v1();
    END IF;
    RETURN NEXT;
END;
$$;

-- Settles a claim and claims the next work of any session, in one trip. The first columns are the verdict on the
-- settlement; next_verdict and the rest are the result of claim_next_v1, NULL if the claim was not settled. With
-- p_queues, first waits for the lock on the session's queue, for a second: not after other locks were taken.
CREATE OR REPLACE FUNCTION {schema}.settle_and_claim_v1(
    p_session_id text, p_given_ms bigint, p_claim_id text, p_token_hash text, p_fence bigint, p_batch_ids text[],
    p_owner_id text, p_kinds text[], p_most bigint, p_exclusive bigint, p_next_token_hash text, p_ttl_ms bigint,
    p_is_retry boolean, p_most_bytes bigint, p_waits boolean, p_queues boolean
)
RETURNS TABLE (
    verdict text, settled_at_ms bigint, settled_revision bigint, reached text, next_verdict text, session_id text,
    batch {schema}.batches
)
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_settled record;
    v_family bigint;
    v_session_key bigint;
BEGIN
    IF p_queues THEN
        SELECT owner.family, owner.session_key INTO v_family, v_session_key
        FROM {schema}.sessions AS owner
        WHERE owner.session_id = p_session_id
            AND owner.dead = 0;
        PERFORM set_config('lock_timeout', '1000', true);
        PERFORM 1
        FROM {schema}.ready
        WHERE family = v_family
            AND session_key = v_session_key
        FOR UPDATE;
    END IF;
    SELECT settled.verdict, settled.settled_at_ms, settled.settled_revision, settled.reached INTO v_settled
    FROM {schema}.settle_claim_v1(
        p_session_id, p_given_ms, p_claim_id, p_token_hash, p_fence, p_batch_ids, NULL, p_waits
    ) AS settled;
    IF v_settled.verdict <> 'completed' THEN
        verdict := v_settled.verdict;
        RETURN NEXT;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT
        v_settled.verdict, v_settled.settled_at_ms, v_settled.settled_revision, v_settled.reached, claim.verdict,
        claim.session_id, claim.batch
    FROM {schema}.claim_next_v1(
        p_given_ms, p_owner_id, p_kinds, p_most, p_exclusive, p_next_token_hash, p_ttl_ms, p_is_retry, 0, NULL,
        p_most_bytes
    ) AS claim;
END;
$$;

-- Moves the end of a claim to a later time, never back (rules.claims: require_whole_claim, renewed), also for batches that
-- joined after the proof was issued. Locks only its batches, so that neither a turn nor a claim in the same session
-- blocks a renewal. The ready row is updated when the earlier end has come.
-- Verdicts: renewed; claim_lost; absent; deleted.
CREATE OR REPLACE FUNCTION {schema}.renew_claim_v1(
    p_session_id text, p_given_ms bigint, p_claim_id text, p_token_hash text, p_fence bigint, p_batch_ids text[],
    p_ttl_ms bigint, p_family bigint
)
RETURNS TABLE (verdict text, expires_at_ms bigint)
{hot_path}
AS $$
#variable_conflict use_column
DECLARE
    v_family bigint;
    v_session_key bigint;
    v_held record;
    v_size bigint;
    v_batch_ids text[];
    v_seq bigint;
    v_now_ms bigint;
BEGIN
    SELECT family, session_key INTO v_family, v_session_key
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
    SELECT claim_size INTO v_size
    FROM {schema}.batches
    WHERE batch_id = p_batch_ids[1]
        AND session_key = v_session_key
        AND claim_id = p_claim_id
        -- part: by_family
        AND family = p_family
        -- end part
    ;
    LOOP
        v_batch_ids := p_batch_ids;
        IF v_size > cardinality(p_batch_ids) THEN
            -- It was widened. Lock all its batches in order, the named ones among them.
            SELECT array_agg(member.batch_id ORDER BY member.enqueue_seq) INTO v_batch_ids
            FROM {schema}.batches AS member
            WHERE member.session_key = v_session_key
                AND member.settled_state IS NULL
                AND member.enqueue_seq <= (
                    SELECT claimed_upto
                    FROM {schema}.ready
                    WHERE family = v_family
                        AND session_key = v_session_key
                )
                AND member.claim_id = p_claim_id
                -- part: by_family
                AND member.family = p_family
                -- end part
            ;
        END IF;
        SELECT
            array_agg(member.enqueue_seq) AS seqs,
            count(DISTINCT member.enqueue_seq) AS size,
            bool_and(
                member.settled_state IS NULL
                AND member.claim_id = p_claim_id
                AND member.claim_token_hash = p_token_hash
                AND member.claim_fence >= p_fence
            ) AS is_proven,
            max(member.claim_size) AS claim_size,
            min(member.claim_expires_at_ms) AS expires_at_ms,
            min(member.kind) AS kind,
            min(member.limit_key) AS limit_key,
            max(member.claim_slot) AS claim_slot
        INTO v_held
        FROM unnest(v_batch_ids) AS wanted (batch_id)
        CROSS JOIN LATERAL (
            SELECT
                enqueue_seq, settled_state, claim_id, claim_token_hash, claim_fence, claim_size, claim_expires_at_ms,
                kind, limit_key, claim_slot
            FROM {schema}.batches
            WHERE batch_id = wanted.batch_id
                AND session_key = v_session_key
                -- part: by_family
                AND family = p_family
                -- end part
            FOR NO KEY UPDATE
        ) AS member;
        -- Repeat if it was widened during the wait for a lock.
        EXIT WHEN NOT coalesce(v_held.is_proven AND v_held.claim_size > v_size, false);
        v_size := v_held.claim_size;
    END LOOP;
    IF v_held.claim_slot > 0 THEN
        -- Before the clock is read: a claim that counts slots either waits for this renewal, or saw the old end pass.
        PERFORM 1
        FROM {schema}.slots
        WHERE kind = v_held.kind
            AND limit_key = coalesce(v_held.limit_key, '')
            AND session_key = v_session_key
            AND claim_id = p_claim_id
        FOR UPDATE;
    END IF;
    v_now_ms := {schema}.now_ms_v1(p_given_ms);
    IF NOT coalesce(
        v_held.is_proven
        AND v_held.size = cardinality(v_batch_ids)
        AND v_held.size = v_held.claim_size
        AND v_held.expires_at_ms > v_now_ms
        AND p_batch_ids <@ v_batch_ids
        AND cardinality(p_batch_ids) = (
            SELECT count(DISTINCT named.batch_id)
            FROM unnest(p_batch_ids) AS named (batch_id)
        ),
        false
    ) THEN
        verdict := 'claim_lost';
        RETURN NEXT;
        RETURN;
    END IF;
    expires_at_ms := greatest({schema}.expiry_v1(v_now_ms, p_ttl_ms), v_held.expires_at_ms);
    FOREACH v_seq IN ARRAY v_held.seqs LOOP
        UPDATE {schema}.batches AS renewed
        SET claim_expires_at_ms = greatest({schema}.expiry_v1(v_now_ms, p_ttl_ms), v_held.expires_at_ms)
        WHERE renewed.family = v_family
            AND renewed.session_key = v_session_key
            AND renewed.enqueue_seq = v_seq;
    END LOOP;
    IF v_held.claim_slot > 0 THEN
        UPDATE {schema}.slots AS renewed
        SET expires_at_ms = greatest({schema}.expiry_v1(v_now_ms, p_ttl_ms), v_held.expires_at_ms)
        WHERE renewed.kind = v_held.kind
            AND renewed.limit_key = coalesce(v_held.limit_key, '')
            AND renewed.session_key = v_session_key
            AND renewed.claim_id = p_claim_id;
    END IF;
    verdict := 'renewed';
    RETURN NEXT;
END;
$$;

-- Only roles with a grant may call these functions, with their own privileges (SECURITY INVOKER).
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC;
