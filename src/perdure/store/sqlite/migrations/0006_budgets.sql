-- What many runs spend together, in each period.
CREATE TABLE accounts (
    account TEXT NOT NULL,
    since INTEGER NOT NULL,             -- when the period began; 0: for ever
    used TEXT NOT NULL,                 -- JSON objects, by unit
    held TEXT NOT NULL,
    raised TEXT NOT NULL,
    PRIMARY KEY (account, since)
) STRICT, WITHOUT ROWID;
