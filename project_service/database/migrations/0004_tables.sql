-- The table API: who may use what is exposed, and how its schema cache hears of changes.

-- service_role gets everything in a schema, what is still to come included. anon and authenticated may look names up
-- there; what they may read or write is for the owner to grant.
create function _project_service.expose_schema(exposed name) returns void
  language plpgsql
  as $$
begin
  execute format('grant usage on schema %I to anon, authenticated, service_role', exposed);
  execute format('grant all on all tables in schema %I to service_role', exposed);
  execute format('grant all on all sequences in schema %I to service_role', exposed);
  execute format('grant all on all routines in schema %I to service_role', exposed);
  execute format('alter default privileges in schema %I grant all on tables to service_role', exposed);
  execute format('alter default privileges in schema %I grant all on sequences to service_role', exposed);
  execute format('alter default privileges in schema %I grant all on routines to service_role', exposed);
exception when insufficient_privilege then
  raise warning 'schema % could not be opened to service_role: let its owner run select _project_service.expose_schema(%)',
    exposed, quote_literal(exposed);
end
$$;
comment on function _project_service.expose_schema(name) is
  'Gives service_role everything in a schema. Tables made later are covered where the caller of this function makes them.';

do $$
begin
  if to_regnamespace('public') is not null then
    perform _project_service.expose_schema('public');
  end if;
end
$$;

-- NOTIFY pgrst makes every process read the catalogue anew. Temporary objects are nobody else's business.
create function _project_service.announce_ddl() returns event_trigger
  language plpgsql
  as $$
begin
  if exists (select from pg_event_trigger_ddl_commands() where schema_name is distinct from 'pg_temp') then
    perform pg_notify('pgrst', 'reload schema');
  end if;
end
$$;

create function _project_service.announce_drop() returns event_trigger
  language plpgsql
  as $$
begin
  if exists (select from pg_event_trigger_dropped_objects() where not is_temporary) then
    perform pg_notify('pgrst', 'reload schema');
  end if;
end
$$;

-- Only a superuser may make event triggers. Without them a table that is new is found when it is first asked for,
-- and other changes when somebody sends NOTIFY pgrst.
create function _project_service.watch_ddl() returns boolean
  language plpgsql
  as $$
begin
  if not exists (select from pg_event_trigger where evtname = 'project_service_ddl') then
    create event trigger project_service_ddl on ddl_command_end
      when tag in ('ALTER AGGREGATE', 'ALTER DOMAIN', 'ALTER FOREIGN TABLE', 'ALTER FUNCTION', 'ALTER MATERIALIZED VIEW',
                   'ALTER PROCEDURE', 'ALTER ROUTINE', 'ALTER SCHEMA', 'ALTER TABLE', 'ALTER TYPE', 'ALTER VIEW', 'COMMENT',
                   'CREATE AGGREGATE', 'CREATE CAST', 'CREATE DOMAIN', 'CREATE FOREIGN TABLE', 'CREATE FUNCTION',
                   'CREATE MATERIALIZED VIEW', 'CREATE RULE', 'CREATE SCHEMA', 'CREATE TABLE', 'CREATE TABLE AS',
                   'CREATE TRIGGER', 'CREATE TYPE', 'CREATE VIEW', 'IMPORT FOREIGN SCHEMA', 'SELECT INTO')
      execute function _project_service.announce_ddl();
  end if;
  if not exists (select from pg_event_trigger where evtname = 'project_service_drop') then
    create event trigger project_service_drop on sql_drop
      execute function _project_service.announce_drop();
  end if;
  return true;
exception when insufficient_privilege then
  return false;
end
$$;
comment on function _project_service.watch_ddl() is
  'Installs the event triggers that announce changes of the schema; false where the caller is no superuser.';

do $$
begin
  if not _project_service.watch_ddl() then
    raise warning 'changes of the schema are not announced: let a superuser run select _project_service.watch_ddl()';
  end if;
end
$$;
