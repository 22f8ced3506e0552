-- Notes. Columns in the order of Note.

-- name: keep_note
INSERT INTO notes (kind, key, body, at) VALUES (?, ?, ?, ?)
ON CONFLICT (kind, key) DO UPDATE SET body = excluded.body, at = excluded.at;

-- name: drop_note
DELETE FROM notes WHERE kind = ? AND key = ?;

-- name: list_notes
SELECT kind, key, body, at FROM notes WHERE kind = :kind AND (:key IS NULL OR key = :key) ORDER BY at DESC, key;
