-- What operators look for. About what an entry is that is not a user: the name of a bucket, the id of a project key.
alter table auth.audit add column subject text not null default '';
create index audit_by_action on auth.audit (action, at);
create index audit_by_subject on auth.audit (subject, at) where subject <> '';
-- Users who are few among many.
create index users_disabled on auth.users (created_at, id) where disabled_at is not null;
create index users_unconfirmed on auth.users (created_at, id) where confirmed_at is null and email is not null;
