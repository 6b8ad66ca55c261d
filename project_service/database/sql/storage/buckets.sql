-- Buckets, and the slots of their counters.

-- Whoever changes a key holds the lock of its slot.
create or replace function storage.slot(key text) returns smallint language sql immutable as $$
    select (hashtext(key) & 15)::smallint
$$;

-- False, and no change, where there is one of this name.
create or replace function storage.create_bucket(
    p_name text, p_visibility text, p_max_object bigint, p_max_bucket bigint, p_types text[], p_owner_only_writes boolean,
    p_owner_only_reads boolean, p_anonymous_reads boolean, p_policies boolean, p_cache_control text, p_public boolean
) returns boolean language plpgsql as $$
begin
    insert into storage.buckets (name, visibility, max_object_bytes, max_bucket_bytes, allowed_content_types,
                                 owner_only_writes, owner_only_reads, anonymous_reads, policies, cache_control, public)
    values (p_name, p_visibility, p_max_object, p_max_bucket, p_types, p_owner_only_writes, p_owner_only_reads,
            p_anonymous_reads, p_policies, p_cache_control, p_public)
    on conflict do nothing;
    if not found then
        return false;
    end if;
    insert into storage.usage (bucket, slot) select p_name, generate_series(0, 15);
    return true;
end
$$;

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
