-- The user who did something to another one, by SQL that a request called (sql/auth/accounts.sql).
alter table auth.audit add column actor_id uuid;
