-- Every process hears of changes of project keys.

create or replace function auth.announce_project_keys() returns trigger
  language plpgsql
  as $$ begin perform pg_notify('project_service_keys', ''); return null; end $$;

create or replace trigger announce after insert or update or delete or truncate on auth.project_keys
  for each statement execute function auth.announce_project_keys();
