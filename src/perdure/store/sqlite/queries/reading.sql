-- Reads. Columns of a run in the order of RunInfo, of an event in the order of Row, of an effect in that of LedgerEntry.

-- name: run_by_id
SELECT rid, run_id, workflow, version, status, reason, hint, owner, epoch, input_digest, created_at, updated_at,
    due_at, parent_run_id, tags, chapter_seq, waiting, state, lineage, forked_from, forked_seq
FROM runs WHERE run_id = ?;

-- name: run_by_rid
SELECT rid, run_id, workflow, version, status, reason, hint, owner, epoch, input_digest, created_at, updated_at,
    due_at, parent_run_id, tags, chapter_seq, waiting, state, lineage, forked_from, forked_seq
FROM runs WHERE rid = ?;

-- name: unowned_kind_after
SELECT workflow, version FROM runs
WHERE owner IS NULL AND due_at IS NOT NULL AND (workflow, version) > (?, ?)
ORDER BY workflow, version LIMIT 1;

-- name: overdue_of_kind
SELECT rid, run_id, workflow, version, status, reason, hint, owner, epoch, input_digest, created_at, updated_at,
    due_at, parent_run_id, tags, chapter_seq, waiting, state, lineage, forked_from, forked_seq
FROM runs WHERE workflow = ? AND version = ? AND owner IS NULL AND due_at IS NOT NULL AND due_at < ?;

-- name: longest_overdue_of_kind
SELECT rid, run_id, workflow, version, status, reason, hint, owner, epoch, input_digest, created_at, updated_at,
    due_at, parent_run_id, tags, chapter_seq, waiting, state, lineage, forked_from, forked_seq
FROM runs WHERE workflow = ? AND version = ? AND owner IS NULL AND due_at IS NOT NULL AND due_at < ?
ORDER BY due_at, rid LIMIT 1;

-- name: list_runs
SELECT rid, run_id, workflow, version, status, reason, hint, owner, epoch, input_digest, created_at, updated_at,
    due_at, parent_run_id, tags, chapter_seq, waiting, state, lineage, forked_from, forked_seq
FROM runs WHERE TRUE

-- name: and_workflow
AND workflow = :workflow

-- name: and_status
AND status IN (SELECT value FROM json_each(:status))

-- name: and_tags
AND NOT EXISTS (
    SELECT 1 FROM json_each(:tags) AS wanted
    LEFT JOIN json_each(runs.tags) AS had ON had.key = wanted.key AND had.value = wanted.value
    WHERE had.key IS NULL
)

-- name: and_created_from
AND created_at >= :created_from

-- name: and_created_until
AND created_at < :created_until

-- name: and_parent_run_id
AND parent_run_id = :parent_run_id

-- name: and_owner
AND owner = :owner

-- name: and_before_rid
AND rid < :before_rid

-- name: newest_first
ORDER BY rid DESC LIMIT :limit

-- name: events_from
SELECT seq, at, kind, envelope, input, output, hash FROM events WHERE rid = ? AND seq >= ? ORDER BY seq;

-- name: last_event
SELECT seq, at, kind, envelope, input, output, hash FROM events WHERE rid = ? ORDER BY seq DESC LIMIT 1;

-- name: blob
SELECT body FROM blobs WHERE rid = ? AND digest = ?;

-- name: output_at
SELECT output FROM events WHERE rid = ? AND seq = ?;

-- name: mail_of_run
SELECT mail_id, rid, kind, key, body, sent_at, sender FROM mailbox WHERE rid = ? AND taken = 0;

-- name: mail_of_owner
SELECT mail_id, mailbox.rid, kind, key, body, sent_at, sender
FROM runs JOIN mailbox ON mailbox.rid = runs.rid AND taken = 0
WHERE owner = ?;

-- name: all_mail
SELECT mail_id, rid, kind, key, body, sent_at, sender FROM mailbox WHERE taken = 0;

-- name: effect
SELECT operation_id, rid, run_id, call, label, action_name, scope, business_key, revision, request_hash, status, downstream,
    risk, created_at, updated_at, attempts, started_at, committed_at, external_ref, external_request_id, response_hash,
    result_json, compensated_by, note, other_references, approval
FROM effects WHERE operation_id = ?;

-- name: list_effects
SELECT operation_id, rid, run_id, call, label, action_name, scope, business_key, revision, request_hash, status, downstream,
    risk, created_at, updated_at, attempts, started_at, committed_at, external_ref, external_request_id, response_hash,
    result_json, compensated_by, note, other_references, approval
FROM effects WHERE TRUE

-- name: and_rid
AND rid = :rid

-- name: and_action_name
AND action_name = :action_name

-- name: and_business_key
AND business_key = :business_key

-- name: and_before
AND created_at < :before

-- What follows from such a filter, said so that the index of open effects is used.
-- name: and_open
AND status IN ('started', 'unknown', 'failed_retryable')

-- name: newest_effect_first
ORDER BY rowid DESC LIMIT :limit

-- name: approval
SELECT approval_id, rid, run_id, workflow, version, kind, call, label, subject, request_hash, status, approvers, quorum,
    recheck, note, asked_at, updated_at, expires_at, body_digest, body, said, used_by, policy, goal, scope,
    escalates_at, escalate_to
FROM approvals WHERE approval_id = ?;

-- name: list_approvals
SELECT approval_id, rid, run_id, workflow, version, kind, call, label, subject, request_hash, status, approvers, quorum,
    recheck, note, asked_at, updated_at, expires_at, body_digest, body, said, used_by, policy, goal, scope,
    escalates_at, escalate_to
FROM approvals WHERE TRUE

-- name: and_kind
AND kind = :kind

-- name: and_asked_before
AND asked_at < :before

-- What follows from such a filter, said so that the index of pending requests is used.
-- name: and_pending
AND status = 'pending'

-- name: newest_approval_first
ORDER BY rowid DESC LIMIT :limit
