-- What people are asked: approvals of exactly one call, and questions. Rows in the order in which they were asked.
CREATE TABLE approvals (
    approval_id TEXT NOT NULL UNIQUE,
    rid INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    workflow TEXT NOT NULL,
    version INTEGER NOT NULL,
    kind TEXT NOT NULL,
    call TEXT NOT NULL,                 -- the call that asks: chapter:task:n
    label TEXT NOT NULL,
    subject TEXT NOT NULL,
    request_hash BLOB NOT NULL,
    status TEXT NOT NULL,
    approvers TEXT NOT NULL,            -- a JSON array: who may decide now
    quorum INTEGER NOT NULL,
    recheck INTEGER NOT NULL,
    note TEXT NOT NULL,
    asked_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    body_digest BLOB NOT NULL,
    body BLOB,                          -- if it is small; else in the run's blobs under body_digest
    said TEXT NOT NULL,                 -- a JSON array: what people said that counted
    used_by TEXT NOT NULL
) STRICT;

CREATE INDEX approvals_by_run ON approvals (rid);
CREATE INDEX approvals_pending ON approvals (status) WHERE status = 'pending';

-- The approval under which an effect was sent.
ALTER TABLE effects ADD COLUMN approval TEXT NOT NULL DEFAULT '';
