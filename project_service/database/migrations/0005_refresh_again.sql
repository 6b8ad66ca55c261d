-- A refresh token may be used again within the reuse window although its successor has been used as well: of several
-- tabs some read it before the others went on. What leads from it to the active one is kept as long.
alter table auth.refresh_tokens
    add column replaced_at timestamptz,
    -- With the token's text, its successor; of the active token's parent it is in auth.sessions.
    add column salt bytea;
create index refresh_tokens_with_salt on auth.refresh_tokens (replaced_at) where salt is not null;
