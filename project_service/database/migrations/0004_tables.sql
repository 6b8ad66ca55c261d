-- Rights in the schema public, once; _project_service.expose_schema gives them in others.

do $$
begin
  if to_regnamespace('public') is not null then
    grant usage on schema public to anon, authenticated, service_role;
    grant all on all tables in schema public to service_role;
    grant all on all sequences in schema public to service_role;
    grant all on all routines in schema public to service_role;
    alter default privileges in schema public grant all on tables to service_role;
    alter default privileges in schema public grant all on sequences to service_role;
    alter default privileges in schema public grant all on routines to service_role;
  end if;
exception when insufficient_privilege then
  raise warning 'schema public could not be opened to service_role: let its owner run select _project_service.expose_schema(''public'')';
end
$$;
