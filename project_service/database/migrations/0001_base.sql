-- Roles, schemas and the project keys.

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

-- Project keys. Only the SHA-256 is kept, so that a copy of the database opens nothing.

create table auth.project_keys (
  id          uuid primary key default gen_random_uuid(),
  kind        text not null check (kind in ('anon', 'service')),
  sha256      bytea not null unique check (length(sha256) = 32),
  label       text not null default '',
  created_at  timestamptz not null default now(),
  revoked_at  timestamptz
);
