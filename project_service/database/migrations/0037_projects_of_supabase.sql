-- What migrations of Supabase projects refer to: buckets that SQL makes, a schema for extensions, a publication.

-- Buckets there may have other names than ours, but none that is no segment of a path.
alter table storage.buckets drop constraint buckets_name_check;
alter table storage.buckets add constraint buckets_name_check
    check (name ~ '^[A-Za-z0-9_!.*''() &$@=;:+,?-]{1,100}$' and name = btrim(name) and name not in ('.', '..'));

-- The columns by which their SQL knows a bucket. storage.complete_bucket() keeps those that say the same as one of ours.
alter table storage.buckets
    add column id text collate "C" constraint buckets_id_key unique,
    add column owner uuid,
    add column owner_id text,
    add column file_size_limit bigint,
    add column allowed_mime_types text[],
    add column avif_autodetection boolean default false,
    add column type text not null default 'STANDARD' check (type = 'STANDARD');
update storage.buckets
set id = name, file_size_limit = max_object_bytes, allowed_mime_types = allowed_content_types;

-- Roles that were granted rights keep them, although row-level security decides from now on.
do $$
declare
    grantee name;
begin
    for grantee in
        select distinct r.rolname
        from pg_class c cross join aclexplode(c.relacl) acl join pg_roles r on r.oid = acl.grantee
        where c.oid = 'storage.buckets'::regclass and r.oid <> c.relowner and not r.rolbypassrls
            and r.rolname not in ('anon', 'authenticated')
    loop
        execute format('create policy %I on storage.buckets to %I using (true)', 'all for ' || grantee, grantee);
    end loop;
end
$$;

-- From PostgreSQL 18 on it takes no room.
do $$
begin
    execute replace(
        'alter table storage.objects add column user_metadata jsonb generated always as (metadata) KIND',
        'KIND', case when current_setting('server_version_num')::int >= 180000 then 'virtual' else 'stored' end
    );
end
$$;

-- The schema in which such projects have their extensions, last in the search path, and the function that nearly all of
-- them call.
do $$
declare
    path text := coalesce((
        select substr(setting, 13) from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase,
            unnest(s.setconfig) setting
        where d.datname = current_database() and s.setrole = 0 and setting like 'search_path=%'
    ), '"$user", public');
begin
    if to_regnamespace('extensions') is null then
        create schema extensions;
        grant usage on schema extensions to public;
    end if;
    begin
        create extension if not exists "uuid-ossp" schema extensions;
    exception when others then
        null; -- the server does not have it, or does not let everybody use it
    end;
    if to_regproc('extensions.uuid_generate_v4') is null and has_schema_privilege('extensions', 'create') then
        execute 'create function extensions.uuid_generate_v4() returns uuid language sql parallel safe
            return gen_random_uuid()';
    end if;
    if 'extensions' <> all (string_to_array(replace(path, ' ', ''), ',')) then
        begin
            execute format('alter database %I set search_path = %s, extensions', current_database(), path);
        exception when insufficient_privilege then
            raise warning 'extensions is in nobody''s search path: let the owner of the database run "alter database % set search_path = %, extensions"',
                quote_ident(current_database()), path;
        end;
    end if;
end
$$;

-- The publication to which they add tables. Whether the server sends changes to others is no concern of a migration.
do $$
begin
    if not exists (select from pg_publication where pubname = 'supabase_realtime') then
        set local client_min_messages = error;
        create publication supabase_realtime;
        reset client_min_messages;
    end if;
end
$$;
