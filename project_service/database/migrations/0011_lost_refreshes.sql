-- The answer to a refresh may be lost: its connection broke, or the client was stopped. So the parent of the active token
-- stays good for as long as that token has not been used, and its salt is kept as long. Every session has a salt then, so
-- the index of those that have one is of no use.
drop index auth.sessions_with_salt;
