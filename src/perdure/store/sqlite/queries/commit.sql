-- What commits of writes need. Where -1 stands for NULL, that is since each run passes there, and the driver of Python
-- takes longer over one None than over ten other values.

-- name: standing
SELECT epoch, status, (SELECT max(seq) FROM events WHERE events.rid = runs.rid), last_rowless
FROM runs WHERE rid = ?;

-- name: append_at
SELECT append_id FROM events WHERE rid = ? AND seq = ?;

-- name: insert_event
INSERT INTO events (rid, seq, at, kind, envelope, input, output, hash, append_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_event_with_gaps
INSERT INTO events (rid, seq, at, kind, envelope, input, output, hash, append_id)
VALUES (?, ?, ?, ?, ?, nullif(?, -1), nullif(?, -1), ?, nullif(?, -1));

-- name: insert_blob
INSERT INTO blobs (rid, digest, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: write_effect
INSERT INTO effects (
    operation_id, rid, run_id, call, label, action_name, scope, business_key, revision, request_hash, status, downstream,
    risk, created_at, updated_at, attempts, started_at, committed_at, external_ref, external_request_id, response_hash,
    result_json, compensated_by, note, other_references, approval
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (operation_id) DO UPDATE SET
    status = excluded.status,
    updated_at = excluded.updated_at,
    attempts = excluded.attempts,
    started_at = excluded.started_at,
    committed_at = excluded.committed_at,
    external_ref = excluded.external_ref,
    external_request_id = excluded.external_request_id,
    response_hash = excluded.response_hash,
    result_json = excluded.result_json,
    compensated_by = excluded.compensated_by,
    note = excluded.note,
    other_references = excluded.other_references,
    approval = excluded.approval;

-- name: write_approval
INSERT INTO approvals (
    approval_id, rid, run_id, workflow, version, kind, call, label, subject, request_hash, status, approvers, quorum,
    recheck, note, asked_at, updated_at, expires_at, body_digest, body, said, used_by, policy, goal, scope,
    escalates_at, escalate_to
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (approval_id) DO UPDATE SET
    status = excluded.status,
    approvers = excluded.approvers,
    updated_at = excluded.updated_at,
    said = excluded.said,
    used_by = excluded.used_by;

-- name: letter_exists
SELECT 1 FROM mailbox WHERE rid = ? AND letter_id = ?;

-- name: letters_about
SELECT body, sent_at FROM mailbox WHERE rid = ? AND kind = ? AND key = ? AND taken = 0 ORDER BY mail_id;

-- name: holder_of_effect
SELECT rid FROM effects WHERE operation_id = ?;

-- name: use_before
SELECT at FROM uses WHERE bucket = :bucket AND at > :since AND use_id <> :use_id ORDER BY at DESC LIMIT 1 OFFSET :uses;

-- name: is_use
SELECT 1 FROM uses WHERE bucket = ? AND use_id = ?;

-- name: insert_use
INSERT INTO uses (bucket, use_id, at, counts_until) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: note_rowless
UPDATE runs SET last_rowless = ? WHERE rid = ?;

-- name: take_letter
UPDATE mailbox SET taken = 1, body = x'' WHERE mail_id = ? AND rid = ?;

-- name: newest_rid
SELECT max(coalesce((SELECT max(rid) FROM runs), 0), coalesce((SELECT max(rid) FROM heads), 0));

-- name: rid_of
SELECT rid, create_id FROM runs WHERE run_id = ?;

-- name: insert_run
INSERT INTO runs (
    rid, run_id, create_id, workflow, version, status, owner, epoch, input_digest,
    created_at, updated_at, due_at, parent_run_id, tags, wakes, claimed_length, chapter_seq
) VALUES (?, ?, ?, ?, ?, ?, nullif(?, -1), ?, ?, ?, ?, nullif(?, -1), nullif(?, -1), ?, ?, ?, ?);

-- name: note_origin
UPDATE runs SET lineage = ?, forked_from = ?, forked_seq = ? WHERE rid = ?;

-- name: copy_events
INSERT INTO events (rid, seq, at, kind, envelope, input, output, hash)
SELECT ?, seq, at, kind, envelope, input, output, hash FROM events WHERE rid = ? AND seq <= ? ORDER BY seq;

-- name: copy_blobs
INSERT INTO blobs (rid, digest, body) SELECT ?, digest, body FROM blobs WHERE rid = ?;

-- name: change_run
UPDATE runs SET
    status = coalesce(:status, status),
    reason = iif(:status IS NULL, reason, :reason),
    hint = iif(:status IS NULL, hint, :hint),
    waiting = coalesce(:waiting, waiting),
    state = coalesce(:state, state),
    chapter_seq = coalesce(:chapter_seq, chapter_seq),
    updated_at = :now
WHERE rid = :rid;

-- name: move_run
UPDATE runs SET version = ? WHERE rid = ?;

-- name: release_run
UPDATE runs SET
    status = coalesce(:status, status),
    reason = iif(:status IS NULL, reason, :reason),
    hint = iif(:status IS NULL, hint, :hint),
    waiting = coalesce(:waiting, waiting),
    state = coalesce(:state, state),
    chapter_seq = coalesce(:chapter_seq, chapter_seq),
    updated_at = :now,
    owner = NULL,
    due_at = :due_at,
    wakes = :wakes
WHERE rid = :rid;

-- name: end_run
UPDATE runs SET
    status = ?,
    reason = ?,
    hint = ?,
    waiting = coalesce(?, waiting),
    updated_at = ?,
    owner = NULL,
    due_at = NULL,
    wakes = 'nothing',
    ending = ?
WHERE rid = ?;

-- name: deaths_without_progress
SELECT deaths, claimed_length FROM runs WHERE rid = ? AND deaths > 0;

-- name: kinds_since
SELECT kind FROM events WHERE rid = ? AND seq >= ? ORDER BY seq;

-- name: forgive
UPDATE runs SET deaths = 0, lone = 0 WHERE rid = ?;

-- name: waiting_kinds
SELECT DISTINCT kind FROM mailbox WHERE rid = ? AND taken = 0;

-- name: clear_mailboxes
DELETE FROM mailbox WHERE rid IN (SELECT value FROM json_each(?));

-- name: addressee
SELECT rid, status, owner, wakes, due_at FROM runs WHERE run_id = ?;

-- name: addressee_by_rid
SELECT rid, status, owner, wakes, due_at FROM runs WHERE rid = ?;

-- name: insert_letter
INSERT INTO mailbox (rid, letter_id, kind, key, body, sent_at, sender) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: wake_run
UPDATE runs SET due_at = ? WHERE rid = ?;

-- name: watched
SELECT rid, status, ending FROM runs WHERE run_id = ?;

-- name: insert_watcher
INSERT INTO watchers (rid, watcher_rid, key) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: watchers_of
SELECT rid, watcher_rid, key FROM watchers WHERE rid IN (SELECT value FROM json_each(?)) ORDER BY rid, watcher_rid, key;

-- name: clear_watchers
DELETE FROM watchers WHERE rid IN (SELECT value FROM json_each(?));
