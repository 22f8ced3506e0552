-- Who says to have sent a message.
ALTER TABLE mailbox ADD COLUMN sender TEXT NOT NULL DEFAULT '';
