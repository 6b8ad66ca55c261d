-- What clients of the Supabase family see of buckets and objects.

-- Anybody may download everything in it, without policies being asked (the column of that name in Supabase).
alter table storage.buckets add column public boolean not null default false;
-- Null as long as its rules have not changed.
alter table storage.buckets add column updated_at timestamptz;
-- The version with which the object came, which stays when it is replaced or moved; null as long as that is its version.
alter table storage.objects add column id uuid;

-- What policies call the columns that were written for Supabase. From PostgreSQL 18 on they take no room.
do $$
begin
    execute replace(
        'alter table storage.objects
            add column bucket_id text collate "C" generated always as (bucket) KIND,
            add column name text collate "C" generated always as (key) KIND,
            add column owner_id text generated always as (owner::text) KIND,
            add column path_tokens text[] generated always as (string_to_array(key, ''/'')) KIND,
            add column last_accessed_at timestamptz generated always as (created_at) KIND',
        'KIND', case when current_setting('server_version_num')::int >= 180000 then 'virtual' else 'stored' end
    );
end
$$;
