-- What many runs spend together. Columns in the order of SharedAccount.

-- name: account
SELECT account, since, used, held, raised FROM accounts WHERE account = ? AND since = ?;

-- name: write_account
INSERT INTO accounts (account, since, used, held, raised) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (account, since) DO UPDATE SET used = excluded.used, held = excluded.held, raised = excluded.raised;

-- name: list_accounts
SELECT account, since, used, held, raised FROM accounts WHERE :account IS NULL OR account = :account
ORDER BY account, since DESC;
