-- Roles, schemas, who the caller is, and the project keys.

-- Roles belong to the whole cluster: another database, or an operator, may have made them already.
do $$
declare
  wanted text;
  -- "set" is what is meant; servers before 16 know only membership.
  privilege text := case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end;
begin
  foreach wanted in array array['anon', 'authenticated', 'service_role'] loop
    if not exists (select from pg_roles where rolname = wanted) then
      begin
        execute format('create role %I nologin noinherit', wanted);
      exception when duplicate_object or unique_violation then
        null; -- made at the same moment for another database
      end;
    end if;
    if not pg_has_role(current_user, wanted, privilege) then
      execute format('grant %I to current_user', wanted);
    end if;
  end loop;
  if not (select rolbypassrls from pg_roles where rolname = 'service_role') then
    begin
      alter role service_role bypassrls;
    exception when insufficient_privilege then
      raise warning 'service_role does not bypass row-level security: let a superuser run "alter role service_role bypassrls"';
    end;
  end if;
end
$$;

create schema if not exists auth;
create schema if not exists storage;
revoke all on schema auth, storage from public;
grant usage on schema auth to anon, authenticated, service_role;

-- Who calls, for row-level security policies. The table API sets request.jwt.claims for its transaction.

create function auth.jwt() returns jsonb
  language sql stable parallel safe
  return coalesce(nullif(current_setting('request.jwt.claims', true), ''), '{}')::jsonb;
comment on function auth.jwt() is 'The claims of the caller''s access token; an empty object without one.';

create function auth.uid() returns uuid
  language sql stable parallel safe
  return case when auth.jwt() ->> 'sub' ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
              then (auth.jwt() ->> 'sub')::uuid end;
comment on function auth.uid() is 'The id of the signed-in user; null without one.';

create function auth.role() returns text
  language sql stable parallel safe
  return coalesce(auth.jwt() ->> 'role', current_setting('role', true));
comment on function auth.role() is 'The role the caller acts in.';

create function auth.email() returns text
  language sql stable parallel safe
  return auth.jwt() ->> 'email';
comment on function auth.email() is 'The email address of the signed-in user; null without one.';

-- Project keys. Only the SHA-256 is kept, so that a copy of the database opens nothing.

create table auth.project_keys (
  id          uuid primary key default gen_random_uuid(),
  kind        text not null check (kind in ('anon', 'service')),
  sha256      bytea not null unique check (length(sha256) = 32),
  label       text not null default '',
  created_at  timestamptz not null default now(),
  revoked_at  timestamptz
);

create function auth.announce_project_keys() returns trigger
  language plpgsql
  as $$ begin perform pg_notify('project_service_keys', ''); return null; end $$;

create trigger announce after insert or update or delete or truncate on auth.project_keys
  for each statement execute function auth.announce_project_keys();
