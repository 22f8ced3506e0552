-- What counts against the rates of policies, across runs.
CREATE TABLE uses (
    bucket TEXT NOT NULL,
    use_id TEXT NOT NULL,               -- an operation, or a call: counted once
    at INTEGER NOT NULL,
    counts_until INTEGER NOT NULL,
    PRIMARY KEY (bucket, use_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX uses_in_time ON uses (bucket, at);
CREATE INDEX uses_over ON uses (counts_until);

-- Which rules wanted an approval when it was asked for; what the run has stated of itself.
ALTER TABLE approvals ADD COLUMN policy TEXT NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN goal TEXT NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN scope TEXT NOT NULL DEFAULT '';
