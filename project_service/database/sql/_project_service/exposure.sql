-- Rights in exposed schemas.

-- One table of somebody else's in a schema kept service_role from everything there. Whoever may not give away all of it
-- gives what he may.
create or replace function _project_service.granted(statement text) returns boolean
  language plpgsql
  as $$
begin
  execute statement;
  return true;
exception when insufficient_privilege then
  return false;
end
$$;
comment on function _project_service.granted(text) is 'Runs a GRANT; false where the caller has not the right to.';

create or replace function _project_service.grantable(exposed name, kind text) returns setof text
  language sql stable
  set search_path = pg_catalog, pg_temp
  as $$
  select format('%s %I.%I', case relkind when 'S' then 'sequence' else 'table' end, exposed, relname)
  from pg_class
  where relnamespace = (select oid from pg_namespace where nspname = exposed)
    and relkind = any(case kind when 'tables' then '{r,p,v,m,f}' when 'sequences' then '{S}' else '{}' end::"char"[])
  union all
  select 'routine ' || oid::regprocedure from pg_proc
  where kind = 'routines' and pronamespace = (select oid from pg_namespace where nspname = exposed)
$$;
comment on function _project_service.grantable(name, text) is
  'The tables, sequences or routines of a schema, each as GRANT names it.';

-- service_role gets everything in a schema, what is still to come included. anon and authenticated may look names up
-- there; what they may read or write is for the owner to grant.
create or replace function _project_service.expose_schema(exposed name) returns void
  language plpgsql
  -- A superuser may call it, in whose search path others may have made functions.
  set search_path = pg_catalog, _project_service, pg_temp
  as $$
declare
  kind text;
  one text;
  whole boolean := granted(format('grant usage on schema %I to anon, authenticated, service_role', exposed));
begin
  foreach kind in array array['tables', 'sequences', 'routines'] loop
    if not granted(format('grant all on all %s in schema %I to service_role', kind, exposed)) then
      for one in select name from _project_service.grantable(exposed, kind) as found(name) loop
        whole := granted(format('grant all on %s to service_role', one)) and whole;
      end loop;
    end if;
    whole := granted(format('alter default privileges in schema %I grant all on %s to service_role', exposed, kind))
      and whole;
  end loop;
  if not whole then
    raise warning 'schema % could not be opened to service_role: let its owner run select _project_service.expose_schema(%)',
      exposed, quote_literal(exposed);
  end if;
end
$$;
comment on function _project_service.expose_schema(name) is
  'Gives service_role everything in a schema. Tables made later are covered where the caller of this function makes them.';
