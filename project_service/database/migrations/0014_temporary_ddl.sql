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
