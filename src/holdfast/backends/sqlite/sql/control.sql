-- Where transactions begin and end.

-- name: begin_write
BEGIN IMMEDIATE

-- name: begin_read
BEGIN DEFERRED

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: save_member
SAVEPOINT member

-- name: undo_member
ROLLBACK TO member

-- name: release_member
RELEASE member

-- Changes when another connection commits, and not when this one does.
-- name: data_version
PRAGMA data_version

-- Differs: schema objects that SQLite makes by itself do not count.
-- name: count_objects
SELECT count(*)
FROM sqlite_schema
WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\'
