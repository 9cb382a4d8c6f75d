-- Calls of the server functions of turns and events (turn_functions.sql beside schema.sql). The first column is the
-- verdict.

-- name: append_event
SELECT
    verdict, now_ms, new_sequence, delivered_batch_id, is_enqueued, {process_columns},
    sequence, type, payload_hash, replay_key, terminal_state, wake, acked, occurred_at_ms, payload, reached
FROM {schema}.append_event_v1(
    $1::text, $2::bigint, $3::text, $4::bigint, $5::text, $6::text, $7::boolean, $8::text, $9::bigint, $10::text,
    $11::text, $12::text, $13::text, $14::bytea, $15::bytea, $16::bytea, $17::text, $18::text, $19::text, $20::text,
    $21::text, $22::text, $23::text, $24::text, $25::bigint, $26::bigint, $27::bytea, $28::bigint, $29::boolean
)

-- name: show_head
SELECT
    verdict, detail, now_ms, {session_columns},
    head_session_key, head_revision, head_family, turn_id, fingerprint, head_epoch, head_node_count, leaf_key, leaf_id,
    checkpoint_ref, refs, body, committed_at_ms, reached
FROM {schema}.show_head_v1($1::text, $2::text, $3::boolean, $4::boolean, $5::bigint)

-- name: add_nodes
SELECT
    verdict, detail, now_ms, {session_columns},
    head_session_key, head_revision, head_family, turn_id, fingerprint, head_epoch, head_node_count, leaf_key, leaf_id,
    checkpoint_ref, refs, body, committed_at_ms, reached
FROM {schema}.add_nodes_v1(
    $1::text, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::bytea, $7::bigint, $8::bigint, $9::text, $10::bigint,
    $11::bigint, $12::bigint[], $13::bigint[], $14::bigint[], $15::text[], $16::text[], $17::bigint[], $18::text[],
    $19::text[], $20::bytea[], $21::bigint[], $22::bytea[]
)

-- name: commit_turn
SELECT
    verdict, detail, now_ms, {session_columns},
    head_session_key, head_revision, head_family, turn_id, fingerprint, head_epoch, head_node_count, leaf_key, leaf_id,
    checkpoint_ref, refs, body, committed_at_ms, reached
FROM {schema}.commit_turn_v1(
    $1::text, $2::bigint, $3::bigint, $4::bigint, $5::boolean, $6::bigint, $7::bytea, $8::bigint, $9::bigint,
    $10::bigint, $11::bigint, $12::text, $13::bytea, $14::text, $15::bigint, $16::bigint, $17::bigint, $18::text,
    $19::bigint, $20::text, $21::text, $22::bytea, $23::bytea, $24::text[], $25::text[], $26::bigint[], $27::text[],
    $28::text[], $29::text, $30::bigint, $31::text[], $32::bigint[], $33::bigint[], $34::bigint[], $35::bigint[],
    $36::bigint[], $37::text[], $38::bigint[], $39::text[], $40::text[], $41::bytea[], $42::bigint[], $43::bytea[],
    $44::text[], $45::text[], $46::bigint[], $47::bytea[], $48::text[], $49::text[], $50::text[], $51::text[],
    $52::bigint[], $53::bigint[], $54::bigint[], $55::bigint[], $56::bigint[], $57::text[], $58::text[], $59::text[],
    $60::text[], $61::text[], $62::text[], $63::text[], $64::text[], $65::bigint[], $66::bigint[], $67::bytea[],
    $68::bigint[], $69::text[], $70::boolean
)
