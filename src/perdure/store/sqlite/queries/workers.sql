-- Workers, and which runs they own.

-- name: worker_exists
SELECT 1 FROM workers WHERE worker = ?;

-- name: enter_worker
INSERT INTO workers (worker, host, pid, started_at, lease_until, workflows) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (worker) DO UPDATE SET
    host = excluded.host, pid = excluded.pid, started_at = excluded.started_at,
    lease_until = excluded.lease_until, workflows = excluded.workflows;

-- name: renew_worker
UPDATE workers SET lease_until = ? WHERE worker = ?;

-- name: delete_worker
DELETE FROM workers WHERE worker = ?;

-- name: all_workers
SELECT worker, host, pid, started_at, lease_until, workflows FROM workers ORDER BY started_at, worker;

-- name: other_leases
SELECT worker, lease_until FROM workers WHERE worker <> ?;

-- name: leave_runs
UPDATE runs SET owner = NULL, due_at = :now, updated_at = :now WHERE owner = :worker;

-- name: give_back
UPDATE runs SET owner = NULL, due_at = :now, updated_at = :now
WHERE owner = :worker AND NOT EXISTS (
    SELECT 1 FROM json_each(:but) AS held WHERE held.key = CAST(runs.rid AS TEXT) AND held.value = runs.epoch
);

-- name: owned_by
SELECT rid, status, claimed_length, deaths, lone FROM runs WHERE owner = ? ORDER BY rid;

-- name: bury_run
UPDATE runs SET
    owner = NULL, epoch = epoch + 1, lost_owner = :dead, lost_how = :how, updated_at = :now,
    due_at = :due_at,
    deaths = coalesce(:deaths, deaths),
    lone = coalesce(:lone, lone)
WHERE rid = :rid;

-- name: block_run
UPDATE runs SET status = 'blocked', reason = ?, hint = ?, wakes = 'control', due_at = NULL WHERE rid = ?;

-- name: suspects_of
SELECT rid, status, claimed_length, deaths, lone FROM runs WHERE owner = ? AND deaths >= 2;

-- name: due_runs
SELECT rid, due_at, deaths FROM runs
WHERE workflow = ? AND version = ? AND owner IS NULL AND due_at IS NOT NULL AND due_at <= ? AND deaths < 2
ORDER BY due_at LIMIT ?;

-- name: due_suspects
SELECT rid, due_at, deaths FROM runs
WHERE workflow = ? AND version = ? AND owner IS NULL AND due_at IS NOT NULL AND due_at <= ? AND deaths >= 2
ORDER BY due_at LIMIT 1;

-- name: due_run
SELECT rid, due_at, deaths, workflow, version FROM runs
WHERE run_id = ? AND owner IS NULL AND due_at IS NOT NULL AND due_at <= ?;

-- name: first_due
SELECT min(due_at) FROM runs WHERE workflow = ? AND version = ? AND owner IS NULL AND due_at IS NOT NULL;

-- name: claim_run
UPDATE runs SET
    owner = :worker, epoch = epoch + 1, due_at = NULL, updated_at = :now,
    status = iif(status = 'queued', 'running', status),
    claimed_length = :length
WHERE rid = :rid;

-- name: clear_lost
UPDATE runs SET lost_owner = NULL, lost_how = NULL WHERE rid = ?;

-- name: claimed_run
SELECT rid, run_id, workflow, version, status, reason, hint, owner, epoch, input_digest, created_at, updated_at,
    due_at, parent_run_id, tags, chapter_seq, waiting, state, lineage, forked_from, forked_seq, lost_owner, lost_how, deaths, lone
FROM runs WHERE rid = ?;
