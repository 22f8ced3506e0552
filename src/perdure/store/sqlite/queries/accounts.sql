-- What many runs spend together. Columns in the order of SharedAccount.

-- name: account
SELECT account, since, used, held, raised FROM accounts WHERE account = ? AND since = ?;

-- name: write_account
INSERT INTO accounts (account, since, used, held, raised) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (account, since) DO UPDATE SET used = excluded.used, held = excluded.held, raised = excluded.raised;

-- name: list_accounts
SELECT account, since, used, held, raised FROM accounts
WHERE (:account IS NULL OR account = :account) AND (:since IS NULL OR since = :since)
ORDER BY account, since DESC;

-- name: insert_wait
INSERT INTO account_waits (account, since, rid, call, unit, wanted, most) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (account, since, rid, call) DO UPDATE
SET unit = excluded.unit, wanted = excluded.wanted, most = excluded.most;

-- name: forget_earlier_waits
DELETE FROM account_waits WHERE account = ? AND since < ?;

-- name: forget_wait
DELETE FROM account_waits WHERE account = ? AND since = ? AND rid = ? AND call = ?;

-- name: waits_with_room
SELECT rid, call, unit, wanted, most FROM account_waits
WHERE account = ? AND since = ? AND rid <> ? AND (
    unit = '' OR max(wanted, 1) <= most - CASE unit WHEN 'tokens' THEN ? WHEN 'cost' THEN ? WHEN 'effects' THEN ? ELSE ? END
)
ORDER BY rid, call LIMIT ?;

-- name: waits_for
SELECT DISTINCT rid FROM account_waits WHERE account = ? AND since = ? AND rid <> ? ORDER BY rid;

-- name: clear_waits
DELETE FROM account_waits WHERE account = ? AND since = ?;
