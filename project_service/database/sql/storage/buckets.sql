-- Buckets, and the slots of their counters.

-- Whoever changes a key holds the lock of its slot.
create or replace function storage.slot(key text) returns smallint language sql immutable as $$
    select (hashtext(key) & 15)::smallint
$$;

-- A bucket is the same one in both of its forms: ours (name, visibility, rules), and that of Supabase (id, public,
-- file_size_limit, allowed_mime_types), which SQL of such projects writes. Whoever inserts an ``id`` writes theirs: then
-- policies decide, as in the buckets that their clients make. Of two columns that say the same, the one counts that was
-- changed.
create or replace function storage.complete_bucket() returns trigger language plpgsql as $$
declare
    theirs boolean := tg_op = 'INSERT' and new.id is not null;
begin
    new.id := coalesce(new.id, new.name);
    new.name := coalesce(new.name, new.id);
    if new.id <> new.name then
        raise check_violation using
            message = format('The bucket %L has the name %L. Both have to be the same here.', new.id, new.name),
            hint = 'Clients know a bucket by its id: make that its name.';
    end if;
    if new.file_size_limit is distinct from old.file_size_limit then
        new.max_object_bytes := nullif(new.file_size_limit, 0);
    end if;
    new.file_size_limit := new.max_object_bytes;
    -- No types are all types there.
    if new.allowed_mime_types is distinct from old.allowed_mime_types then
        new.allowed_content_types := nullif(array_remove(new.allowed_mime_types, null), '{}');
    end if;
    new.allowed_mime_types := new.allowed_content_types;
    new.public := coalesce(new.public, false);
    if theirs or tg_op = 'UPDATE' and new.public <> old.public then
        new.visibility := case when new.public then 'public' else 'private' end;
        new.anonymous_reads := new.public;
    end if;
    new.policies := new.policies or theirs;
    new.owner_id := coalesce(new.owner_id, new.owner::text);
    if tg_op = 'UPDATE' then
        new.updated_at := date_trunc('milliseconds', now());
    end if;
    return new;
end
$$;
create or replace trigger complete before insert or update on storage.buckets
    for each row execute function storage.complete_bucket();

-- For whoever makes the bucket, who may have no rights on its counters.
create or replace function storage.count_bucket() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into storage.usage (bucket, slot) select new.name, generate_series(0, 15);
    return null;
end
$$;
create or replace trigger count after insert on storage.buckets
    for each row execute function storage.count_bucket();

-- 'deleted', 'bucket_not_found' or 'bucket_not_empty'.
create or replace function storage.delete_bucket(p_name text) returns text language plpgsql as $$
begin
    perform from storage.buckets where name = p_name for update;
    if not found then
        return 'bucket_not_found';
    end if;
    if exists (select from storage.objects where bucket = p_name) then
        return 'bucket_not_empty';
    end if;
    delete from storage.buckets where name = p_name;
    return 'deleted';
end
$$;

revoke all on all functions in schema storage from public;
