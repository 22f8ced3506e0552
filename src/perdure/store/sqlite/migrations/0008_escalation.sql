-- From when on others may decide about a request, too, and who: a JSON array.
ALTER TABLE approvals ADD COLUMN escalates_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE approvals ADD COLUMN escalate_to TEXT NOT NULL DEFAULT '[]';
