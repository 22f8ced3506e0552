-- Pruning, heads, counts.

-- name: prunable
WITH RECURSIVE needed (rid, run_id) AS (
    SELECT origin.rid, origin.run_id FROM runs AS fork
    JOIN json_each(fork.lineage) AS ancestor JOIN runs AS origin ON origin.rid = ancestor.value
    WHERE fork.lineage IS NOT NULL AND fork.status NOT IN ('completed', 'failed', 'cancelled')
    UNION
    SELECT child.rid, child.run_id FROM needed JOIN runs AS child ON child.parent_run_id = needed.run_id
)
SELECT rid FROM runs
WHERE ending IS NOT NULL AND updated_at < :ended_before AND NOT EXISTS (
    WITH RECURSIVE above (parent_run_id, status) AS (
        SELECT parent.parent_run_id, parent.status FROM runs AS parent WHERE parent.run_id = runs.parent_run_id
        UNION
        SELECT parent.parent_run_id, parent.status FROM above JOIN runs AS parent ON parent.run_id = above.parent_run_id
    )
    SELECT 1 FROM above WHERE status NOT IN ('completed', 'failed', 'cancelled')
) AND NOT EXISTS (SELECT 1 FROM outbox WHERE outbox.rid = runs.rid AND outbox.status <> 'sent')
AND rid NOT IN (SELECT needed.rid FROM needed)
ORDER BY updated_at, rid LIMIT :limit;

-- name: keep_head
INSERT INTO heads (rid, run_id, workflow, status, length, head, created_at, ended_at)
SELECT runs.rid, run_id, workflow, status, coalesce(seq + 1, 0), coalesce(hash, x''), created_at, updated_at
FROM runs LEFT JOIN events
    ON events.rid = runs.rid AND events.seq = (SELECT max(seq) FROM events WHERE events.rid = runs.rid)
WHERE runs.rid = ?;

-- name: delete_events
DELETE FROM events WHERE rid = ?;

-- name: delete_blobs
DELETE FROM blobs WHERE rid = ?;

-- name: delete_letters
DELETE FROM mailbox WHERE rid = ?;

-- name: delete_watchers
DELETE FROM watchers WHERE rid = ?;

-- name: delete_effects
DELETE FROM effects WHERE rid = ? AND scope = 'run';

-- name: delete_approvals
DELETE FROM approvals WHERE rid = ?;

-- name: delete_waits
DELETE FROM account_waits WHERE rid = ?;

-- name: delete_run
DELETE FROM runs WHERE rid = ?;

-- name: forget_uses
DELETE FROM uses WHERE counts_until <= ?;

-- name: heads_after
SELECT run_id, rid, length, head FROM (
    SELECT run_id, rid, length, head FROM heads WHERE rid > :rid
    UNION ALL
    SELECT run_id, runs.rid, coalesce(seq + 1, 0), coalesce(hash, x'')
    FROM runs LEFT JOIN events
        ON events.rid = runs.rid AND events.seq = (SELECT max(seq) FROM events WHERE events.rid = runs.rid)
    WHERE runs.rid > :rid
)
ORDER BY rid LIMIT :limit;

-- name: count_runs
SELECT status, count(*) FROM runs GROUP BY status;

-- name: count_rest
SELECT
    (SELECT count(*) FROM heads),
    (SELECT count(*) FROM events),
    (SELECT count(*) FROM blobs),
    (SELECT count(*) FROM mailbox WHERE taken = 0),
    (SELECT count(*) FROM effects),
    (SELECT count(*) FROM approvals),
    (SELECT count(*) FROM workers);

-- name: size
SELECT page_count * page_size FROM pragma_page_count, pragma_page_size;
