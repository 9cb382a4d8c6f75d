-- The queue. Whoever writes holds the session's row, and locks the batches besides.

-- name: find_sources
SELECT
    batch.enqueue_seq, batch.batch_id, batch.session_key, batch.family, batch.source_key, batch.draft_hash,
    batch.delivery, batch.slot, batch.merge_key, batch.available_at_ms, batch.enqueued_at_ms, batch.payloads,
    batch.settled_state, batch.settled_at_ms, batch.claim_id, batch.claim_owner, batch.claim_token_hash,
    batch.claim_fence, batch.claimed_at_ms, batch.claim_expires_at_ms, batch.claim_exclusive
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS pair (family, session_key, source_key)
JOIN {schema}.work AS batch
    ON batch.family = pair.family
        AND batch.session_key = pair.session_key
        AND batch.source_key = pair.source_key
ORDER BY batch.enqueue_seq

-- name: insert_batches
INSERT INTO {schema}.work (
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
)
SELECT
    nextval('{schema}.enqueue_seqs'),
    draft.batch_id, draft.session_key, draft.family, draft.source_key, draft.draft_hash, draft.delivery, draft.slot,
    draft.merge_key, draft.available_at_ms, draft.enqueued_at_ms, draft.payloads,
    NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, 0
FROM unnest(
    $1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bigint[],
    $10::bigint[], $11::bytea[]
) WITH ORDINALITY AS draft (
    batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, available_at_ms,
    enqueued_at_ms, payloads, place
)
ORDER BY draft.place
RETURNING
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive

-- name: ready_batches
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM {schema}.work
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND settled_state IS NULL
    AND available_at_ms <= $3::bigint
    AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= $3::bigint)
ORDER BY enqueue_seq
LIMIT $4::bigint

-- Differs: a batch that another claimer is at work on is waited for, never overtaken.
-- name: lock_ready_batches
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM {schema}.work
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND settled_state IS NULL
    AND available_at_ms <= $3::bigint
    AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= $3::bigint)
ORDER BY enqueue_seq
LIMIT $4::bigint
FOR UPDATE

-- name: sessions_with_work
SELECT DISTINCT
    session.session_key, session.session_id
FROM {schema}.work AS batch
JOIN {schema}.sessions AS session
    ON session.family = batch.family
        AND session.session_key = batch.session_key
WHERE batch.settled_state IS NULL
    AND batch.session_key > $2::bigint
    AND batch.available_at_ms <= $1::bigint
    AND (batch.claim_expires_at_ms IS NULL OR batch.claim_expires_at_ms <= $1::bigint)
ORDER BY session.session_key
LIMIT $3::bigint

-- name: other_claims
SELECT
    count(*) > 0,
    coalesce(max(claim_exclusive), 0) > 0
FROM {schema}.work
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND claim_id IS NOT NULL
    AND claim_expires_at_ms > $4::bigint
    AND claim_id <> $3::text

-- name: find_batches
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM {schema}.work
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND batch_id = ANY($3::text[])
ORDER BY enqueue_seq

-- Differs: the clock is read behind each lock.
-- name: lock_batches
WITH locked AS (
    SELECT
        enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
        available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
        claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
    FROM {schema}.work
    WHERE family = $1::bigint
        AND session_key = $2::bigint
        AND batch_id = ANY($3::text[])
    ORDER BY enqueue_seq
    FOR UPDATE
)
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive,
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM locked
ORDER BY enqueue_seq

-- name: claimed_batches
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM {schema}.work
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND claim_id = $3::text
    AND settled_state IS NULL
ORDER BY enqueue_seq

-- Differs: the clock is read behind each lock.
-- name: lock_claimed_batches
WITH locked AS (
    SELECT
        enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
        available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
        claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
    FROM {schema}.work
    WHERE family = $1::bigint
        AND session_key = $2::bigint
        AND claim_id = $3::text
        AND settled_state IS NULL
    ORDER BY enqueue_seq
    FOR UPDATE
)
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive,
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
FROM locked
ORDER BY enqueue_seq

-- name: batches_of_token
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key,
    available_at_ms, enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner,
    claim_token_hash, claim_fence, claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM {schema}.work
WHERE family = $1::bigint
    AND session_key = $2::bigint
    AND claim_id IS NOT NULL
    AND claim_token_hash = $3::text
    AND settled_state IS NULL
ORDER BY enqueue_seq

-- name: find_places
SELECT
    enqueue_seq, family, session_key
FROM {schema}.work
WHERE enqueue_seq = ANY($1::bigint[])

-- name: stamp_claim
UPDATE {schema}.work AS batch
SET
    claim_id = $4::text,
    claim_owner = $5::text,
    claim_token_hash = $6::text,
    claim_fence = $7::bigint,
    claimed_at_ms = $8::bigint,
    claim_expires_at_ms = $9::bigint,
    claim_exclusive = $10::bigint
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS place (family, session_key, enqueue_seq)
WHERE batch.family = place.family
    AND batch.session_key = place.session_key
    AND batch.enqueue_seq = place.enqueue_seq
    AND batch.settled_state IS NULL

-- name: clear_claim
UPDATE {schema}.work AS batch
SET
    claim_id = NULL,
    claim_owner = NULL,
    claim_token_hash = NULL,
    claimed_at_ms = NULL,
    claim_expires_at_ms = NULL,
    claim_exclusive = 0
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS place (family, session_key, enqueue_seq)
WHERE batch.family = place.family
    AND batch.session_key = place.session_key
    AND batch.enqueue_seq = place.enqueue_seq
    AND batch.settled_state IS NULL

-- name: settle_batches
WITH kept AS (
    UPDATE {schema}.work AS batch
    SET
        settled_state = $4::text,
        settled_at_ms = $5::bigint,
        claim_id = NULL,
        claim_owner = NULL,
        claim_token_hash = NULL,
        claimed_at_ms = NULL,
        claim_expires_at_ms = NULL,
        claim_exclusive = 0
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS place (family, session_key, enqueue_seq)
    WHERE batch.family = place.family
        AND batch.session_key = place.session_key
        AND batch.enqueue_seq = place.enqueue_seq
        AND batch.settled_state IS NULL
        AND batch.source_key IS NOT NULL
    RETURNING 1
),
dropped AS (
    DELETE FROM {schema}.work AS batch
    USING unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS place (family, session_key, enqueue_seq)
    WHERE batch.family = place.family
        AND batch.session_key = place.session_key
        AND batch.enqueue_seq = place.enqueue_seq
        AND batch.settled_state IS NULL
        AND batch.source_key IS NULL
    RETURNING 1
)
SELECT (SELECT count(*) FROM kept) + (SELECT count(*) FROM dropped)

-- name: list_batches
SELECT
    enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, available_at_ms,
    enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner, claim_token_hash, claim_fence,
    claimed_at_ms, claim_expires_at_ms, claim_exclusive
FROM (
    SELECT
        *,
        sum(octet_length(payloads)) OVER (
            ORDER BY enqueue_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING
        ) AS bytes_before
    FROM (
        SELECT
            enqueue_seq, batch_id, session_key, family, source_key, draft_hash, delivery, slot, merge_key, available_at_ms,
            enqueued_at_ms, payloads, settled_state, settled_at_ms, claim_id, claim_owner, claim_token_hash, claim_fence,
            claimed_at_ms, claim_expires_at_ms, claim_exclusive
        FROM {schema}.work
        WHERE family = $1::bigint
            AND session_key = $2::bigint
            AND enqueue_seq > $4::bigint
            AND settled_state IS NULL
            AND ($3::bigint IS NULL OR claim_expires_at_ms IS NULL OR claim_expires_at_ms <= $3::bigint)
        ORDER BY enqueue_seq
        LIMIT $5::bigint
    ) AS page
) AS measured
WHERE coalesce(bytes_before, 0) < $6::bigint
ORDER BY enqueue_seq

-- name: next_due_ms
SELECT least(
    (
        SELECT min(available_at_ms)
        FROM {schema}.work
        WHERE family = $1::bigint
            AND session_key = $2::bigint
            AND settled_state IS NULL
            AND available_at_ms > 0
            AND available_at_ms > $3::bigint
    ),
    (
        SELECT min(claim_expires_at_ms)
        FROM {schema}.work
        WHERE family = $1::bigint
            AND session_key = $2::bigint
            AND claim_id IS NOT NULL
            AND claim_expires_at_ms > $3::bigint
    )
)

-- name: count_settled_batches
SELECT count(*)
FROM (
    SELECT 1
    FROM {schema}.work
    WHERE settled_state IS NOT NULL
        AND settled_at_ms <= $1::bigint
    LIMIT $2::bigint
) AS old

-- name: drop_settled_batches
WITH old AS (
    SELECT
        family, session_key, enqueue_seq
    FROM {schema}.work
    WHERE settled_state IS NOT NULL
        AND settled_at_ms <= $1::bigint
    ORDER BY settled_at_ms, enqueue_seq
    LIMIT $2::bigint
    FOR UPDATE
)
DELETE FROM {schema}.work AS batch
USING old
WHERE batch.family = old.family
    AND batch.session_key = old.session_key
    AND batch.enqueue_seq = old.enqueue_seq
