-- How schema caches hear of changes: NOTIFY pgrst makes every process read the catalogue anew.

-- Rules and triggers are in no schema of their own, so those of temporary tables and views counted as changes of the
-- schema: dropping a temporary view also drops its rule. The address of an object begins with the schema of its table,
-- or is the whole name of a type. The functions run as whoever changes something, so they call only PostgreSQL's own.
create or replace function _project_service.announce_ddl() returns event_trigger
  language plpgsql
  as $$
begin
  if exists (select from pg_event_trigger_ddl_commands() as changed
             where changed.schema_name is distinct from 'pg_temp'
               and coalesce((select object_names[1]
                             from pg_identify_object_as_address(changed.classid, changed.objid, changed.objsubid)), '')
                   !~ '^pg_temp(\.|$)') then
    perform pg_notify('pgrst', 'reload schema');
  end if;
end
$$;

create or replace function _project_service.announce_drop() returns event_trigger
  language plpgsql
  as $$
begin
  if exists (select from pg_event_trigger_dropped_objects()
             where not is_temporary and coalesce(address_names[1], '') !~ '^pg_temp(\.|$)') then
    perform pg_notify('pgrst', 'reload schema');
  end if;
end
$$;

-- Only a superuser may make event triggers. Without them a table that is new is found when it is first asked for,
-- and other changes when somebody sends NOTIFY pgrst.
--
-- How far the project's SQL can be trusted follows from policies, operators and rights too (database/trust.py), so
-- their changes are announced like those of tables.
create or replace function _project_service.watch_ddl() returns boolean
  language plpgsql
  as $$
declare
  announced text[] := array[
    'ALTER AGGREGATE', 'ALTER DOMAIN', 'ALTER EXTENSION', 'ALTER FOREIGN TABLE', 'ALTER FUNCTION',
    'ALTER INDEX', 'ALTER MATERIALIZED VIEW', 'ALTER OPERATOR', 'ALTER OPERATOR CLASS', 'ALTER OPERATOR FAMILY', 'ALTER POLICY', 'ALTER PROCEDURE', 'ALTER ROUTINE', 'ALTER SCHEMA',
    'ALTER TABLE', 'ALTER TRIGGER', 'ALTER TYPE', 'ALTER VIEW', 'COMMENT', 'CREATE AGGREGATE', 'CREATE CAST',
    'CREATE DOMAIN', 'CREATE EXTENSION', 'CREATE FOREIGN TABLE', 'CREATE FUNCTION', 'CREATE INDEX',
    'CREATE MATERIALIZED VIEW', 'CREATE OPERATOR', 'CREATE OPERATOR CLASS', 'CREATE OPERATOR FAMILY', 'CREATE POLICY', 'CREATE PROCEDURE', 'CREATE RULE', 'CREATE SCHEMA',
    'CREATE TABLE', 'CREATE TABLE AS', 'CREATE TRIGGER', 'CREATE TYPE', 'CREATE VIEW', 'GRANT', 'IMPORT FOREIGN SCHEMA',
    'REVOKE', 'SELECT INTO'];
begin
  if exists (select from pg_event_trigger where evtname = 'project_service_ddl' and not evttags @> announced) then
    drop event trigger project_service_ddl;
  end if;
  if not exists (select from pg_event_trigger where evtname = 'project_service_ddl') then
    execute format('create event trigger project_service_ddl on ddl_command_end when tag in (%s)'
                   ' execute function _project_service.announce_ddl()',
                   (select string_agg(quote_literal(tag), ', ') from unnest(announced) as tag));
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
