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
INSERT INTO account_waits (account, since, rid) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: forget_earlier_waits
DELETE FROM account_waits WHERE account = ? AND since < ?;

-- name: waits_for
SELECT rid FROM account_waits WHERE account = ? AND since = ? AND rid <> ? ORDER BY rid;

-- name: clear_waits
DELETE FROM account_waits WHERE account = ? AND since = ?;
