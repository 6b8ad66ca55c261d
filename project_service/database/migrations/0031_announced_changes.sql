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

do $$
begin
  if not _project_service.watch_ddl() then
    raise warning 'changes of policies are not announced: let a superuser run select _project_service.watch_ddl()';
  end if;
end
$$;
