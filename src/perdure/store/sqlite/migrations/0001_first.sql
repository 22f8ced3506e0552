-- A run's index row: one per run, for whoever looks for runs. It does not move on a plain append.
CREATE TABLE runs (
    rid INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    create_id BLOB NOT NULL,            -- id of the write that created it: the same write again is no conflict
    workflow TEXT NOT NULL,
    version INTEGER NOT NULL,
    status TEXT NOT NULL,
    reason TEXT,
    hint TEXT,
    owner TEXT,
    epoch INTEGER NOT NULL,
    input_digest BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    due_at INTEGER,
    parent_run_id TEXT,
    tags TEXT NOT NULL,                 -- a JSON object
    chapter_seq INTEGER NOT NULL DEFAULT 0,
    wakes TEXT NOT NULL,
    claimed_length INTEGER NOT NULL,    -- how long the history was when its owner got it
    deaths INTEGER NOT NULL DEFAULT 0,
    lone INTEGER NOT NULL DEFAULT 0,
    lost_owner TEXT,
    lost_how TEXT,
    last_rowless BLOB,                  -- id of the last append without rows
    waiting BLOB,
    state BLOB,
    ending BLOB
) STRICT;

CREATE INDEX runs_due ON runs (workflow, version, due_at) WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX runs_owned ON runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX runs_by_status ON runs (status);
CREATE INDEX runs_by_parent ON runs (parent_run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX runs_ended ON runs (updated_at) WHERE status IN ('completed', 'failed', 'cancelled');

-- Events of all runs in the order of their commits: a commit of many runs then writes few pages. Clustered by run
-- (WITHOUT ROWID) the same batch dirties one page per run and costs four times as much.
CREATE TABLE events (
    rid INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    envelope BLOB NOT NULL,
    input BLOB,
    output BLOB,
    hash BLOB NOT NULL,
    append_id BLOB                      -- on an append's first row
) STRICT;

CREATE UNIQUE INDEX events_by_run ON events (rid, seq);

CREATE TABLE blobs (
    rid INTEGER NOT NULL,
    digest BLOB NOT NULL,
    body BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX blobs_by_run ON blobs (rid, digest);

-- Letters. One that was taken stays, without its body, until its run ends: sent again it is still known.
CREATE TABLE mailbox (
    mail_id INTEGER PRIMARY KEY,
    rid INTEGER NOT NULL,
    letter_id BLOB NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    body BLOB NOT NULL,
    sent_at INTEGER NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0,
    UNIQUE (rid, letter_id)
) STRICT;

CREATE INDEX mailbox_waiting ON mailbox (rid) WHERE taken = 0;

-- The ledger: what became of every outside action. Rows in the order in which they were asked for; ids are random.
CREATE TABLE effects (
    operation_id TEXT NOT NULL UNIQUE,
    rid INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    call TEXT NOT NULL,                 -- the call that first asked: chapter:task:n
    label TEXT NOT NULL,
    action_name TEXT NOT NULL,
    scope TEXT NOT NULL,
    business_key TEXT NOT NULL,
    revision INTEGER NOT NULL,
    request_hash BLOB NOT NULL,
    status TEXT NOT NULL,
    downstream TEXT NOT NULL,
    risk TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    committed_at INTEGER NOT NULL,
    external_ref TEXT,
    external_request_id TEXT,
    response_hash BLOB,
    result_json BLOB,                   -- if it is small; else in the run's blobs under response_hash
    compensated_by TEXT,
    note TEXT NOT NULL,
    other_references TEXT NOT NULL
) STRICT;

CREATE INDEX effects_by_run ON effects (rid);
CREATE INDEX effects_by_key ON effects (business_key);
CREATE INDEX effects_open ON effects (status) WHERE status IN ('started', 'unknown', 'failed_retryable');

-- The outbox: messages that are delivered after the transaction in which they were posted.
CREATE TABLE outbox (
    number INTEGER PRIMARY KEY,
    post_id TEXT NOT NULL UNIQUE,       -- operation id:place
    rid INTEGER NOT NULL,
    topic TEXT NOT NULL,
    key TEXT NOT NULL,
    payload BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    status TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    next_at INTEGER NOT NULL,
    error TEXT NOT NULL,
    taken_by TEXT,
    taken_until INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX outbox_unsent ON outbox (topic, key, number) WHERE status <> 'sent';
CREATE INDEX outbox_by_run ON outbox (rid);

-- Who is told when a run ends.
CREATE TABLE watchers (
    rid INTEGER NOT NULL,
    watcher_rid INTEGER NOT NULL,
    key TEXT NOT NULL,
    PRIMARY KEY (rid, watcher_rid, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    worker TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    workflows TEXT NOT NULL             -- a JSON array
) STRICT, WITHOUT ROWID;

-- What stays of a run that was pruned.
CREATE TABLE heads (
    rid INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    workflow TEXT NOT NULL,
    status TEXT NOT NULL,
    length INTEGER NOT NULL,
    head BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL
) STRICT;
