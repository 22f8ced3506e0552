CREATE TABLE waits_before AS SELECT account, since, rid FROM account_waits;
DROP TABLE account_waits;
-- What calls wait for that want more than is left of what many share: they are told when it is raised, or there is room.
CREATE TABLE account_waits (
    account TEXT NOT NULL,
    since INTEGER NOT NULL,             -- when the period began; 0: for ever
    rid INTEGER NOT NULL,
    call TEXT NOT NULL,                 -- task/n
    unit TEXT NOT NULL,                 -- tokens, cost, effects, steps; empty: not known
    wanted INTEGER NOT NULL,            -- 0: anything
    most INTEGER NOT NULL,              -- the limit, as it was when the call began to wait
    PRIMARY KEY (account, since, rid, call)
) STRICT, WITHOUT ROWID;
INSERT INTO account_waits SELECT account, since, rid, '', '', 0, 0 FROM waits_before;
DROP TABLE waits_before;
