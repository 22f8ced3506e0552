-- Whether a run has ended is told by its `ending`. To look for a status in a list, as this index did, took an insert of
-- a run and its end longer than all their other indexes together: SQLite fills a table with the list each time.
DROP INDEX runs_ended;
CREATE INDEX runs_ended ON runs (updated_at) WHERE ending IS NOT NULL;
