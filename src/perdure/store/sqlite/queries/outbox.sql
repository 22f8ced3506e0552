-- The outbox. Columns in the order of Post.

-- name: insert_post
INSERT INTO outbox (post_id, rid, topic, key, payload, created_at, status, attempts, next_at, error)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (post_id) DO NOTHING;

-- name: due_posts
SELECT post_id, rid, topic, key, payload, created_at, status, attempts, next_at, error, number
FROM outbox AS post
WHERE topic = :topic AND status = 'waiting' AND next_at <= :now AND (taken_by IS NULL OR taken_until <= :now)
    AND NOT EXISTS (
        SELECT 1 FROM outbox AS earlier
        WHERE earlier.topic = post.topic AND earlier.key = post.key AND earlier.number < post.number
            AND earlier.status <> 'sent'
    )
ORDER BY number LIMIT :limit;

-- name: take_post
UPDATE outbox SET taken_by = ?, taken_until = ? WHERE number = ?;

-- name: settle_post
UPDATE outbox SET status = ?, attempts = ?, next_at = ?, error = ?, taken_by = NULL, taken_until = 0
WHERE post_id = ? AND taken_by = ?;

-- name: revive_post
UPDATE outbox SET status = 'waiting', attempts = 0, next_at = ?, taken_by = NULL, taken_until = 0
WHERE post_id = ? AND status = 'dead';

-- name: free_posts
UPDATE outbox SET taken_by = NULL, taken_until = 0 WHERE taken_by = ?;

-- name: list_posts
SELECT post_id, rid, topic, key, payload, created_at, status, attempts, next_at, error, number
FROM outbox
WHERE (:topic IS NULL OR topic = :topic) AND (:status IS NULL OR status = :status)
ORDER BY number LIMIT :limit;

-- name: delete_posts
DELETE FROM outbox WHERE rid = ?;
