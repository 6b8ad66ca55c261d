-- Row-level security on storage.objects, for buckets in which policies decide, and on storage.buckets, for clients of
-- the Supabase family; and what policies may call.

-- The pieces of a key.

create or replace function storage.folder(key text) returns text[] language sql immutable parallel safe
    return trim_array(string_to_array(key, '/'), 1);
comment on function storage.folder(text) is
    'The folders of a key from the outermost: {a,b} for a/b/c.png; an empty array for a key in no folder.';

create or replace function storage.foldername(name text) returns text[] language sql immutable parallel safe
    return trim_array(string_to_array(name, '/'), 1);
comment on function storage.foldername(text) is 'storage.folder, as Supabase calls it.';

create or replace function storage.filename(key text) returns text language sql immutable parallel safe
    return split_part(key, '/', -1);
comment on function storage.filename(text) is 'What follows the last slash of a key: c.png for a/b/c.png.';

create or replace function storage.extension(key text) returns text language sql immutable parallel safe
    return coalesce(substring(storage.filename(key) from '.\.([^.]*)$'), '');
comment on function storage.extension(text) is
    'What follows the last dot of the filename, as it is written: png for a/b/c.png; an empty text without one.';

-- Policies are for anon and authenticated, so these need rights on the tables. They are good only within the
-- transactions in which the service asks for what policies allow, also where an operator exposes this schema to the table API:
-- elsewhere the restrictive policy shows no row and lets none be written.
--
-- Listings under policies use indexes as others do.
--
-- PostgreSQL evaluates a restrictive policy before permissive ones, and does not use theirs with an index unless nothing
-- is left of it. So what ``through_the_service`` asks is declared immutable, although it is not: then it is asked while
-- a statement is planned, and costs no row anything. A plan that was made for the service answers true later too, but
-- only the service prepares such statements, on its own connections, and makes the setting first.
create or replace function storage.through_the_service() returns boolean language sql immutable parallel safe as $$
    select coalesce(current_setting('storage.judging', true), '') = 'on'
$$;

alter table storage.objects enable row level security;
grant usage on schema storage to anon, authenticated;
grant select, insert, update, delete on storage.objects to anon, authenticated;
-- A policy cannot be replaced, and altering one cannot make it.
drop policy if exists through_the_service on storage.objects;
create policy through_the_service on storage.objects as restrictive to anon, authenticated
    using (storage.through_the_service());
alter table storage.buckets enable row level security;
grant select, insert, update, delete on storage.buckets to anon, authenticated;
drop policy if exists through_the_service on storage.buckets;
create policy through_the_service on storage.buckets as restrictive to anon, authenticated
    using (storage.through_the_service());

revoke all on all functions in schema storage from public;
grant execute on function
    storage.folder(text), storage.foldername(text), storage.filename(text), storage.extension(text), storage.through_the_service()
    to anon, authenticated;
