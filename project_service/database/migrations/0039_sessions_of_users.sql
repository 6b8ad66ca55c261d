-- Of ended sessions too: the deletion of a user looks for them all.
drop index auth.sessions_by_user;
create index sessions_by_user on auth.sessions (user_id);
