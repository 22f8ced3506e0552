-- Which runs are told when somebody raises what many share.
CREATE TABLE account_waits (
    account TEXT NOT NULL,
    since INTEGER NOT NULL,             -- when the period began; 0: for ever
    rid INTEGER NOT NULL,
    PRIMARY KEY (account, since, rid)
) STRICT, WITHOUT ROWID;
