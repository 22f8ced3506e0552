-- Forks: where a run began, if that is within another one, and what it (and its children) descends from by forking.
ALTER TABLE runs ADD COLUMN lineage TEXT;   -- a JSON array of numbers of runs, the nearest first
ALTER TABLE runs ADD COLUMN forked_from TEXT;
ALTER TABLE runs ADD COLUMN forked_seq INTEGER;

CREATE INDEX runs_forked ON runs (status) WHERE lineage IS NOT NULL;
