-- What processes of the previous release call while a newer one runs beside them, during an upgrade. Each may go with the
-- version that its comment names: then that release is not the previous one any more.

-- 0.3.0: called by 0.1.0. False, and no change, where there is one of this name.
create or replace function storage.create_bucket(
    p_name text, p_visibility text, p_max_object bigint, p_max_bucket bigint, p_types text[], p_owner_only_writes boolean,
    p_owner_only_reads boolean
) returns boolean language plpgsql as $$
begin
    insert into storage.buckets (name, visibility, max_object_bytes, max_bucket_bytes, allowed_content_types,
                                 owner_only_writes, owner_only_reads)
    values (p_name, p_visibility, p_max_object, p_max_bucket, p_types, p_owner_only_writes, p_owner_only_reads)
    on conflict do nothing;
    return found;
end
$$;

-- What follows does not say who calls, so policies allow nothing.

-- 0.3.0: called by 0.1.0.
create or replace function storage.put_object(
    p_bucket text, p_key text, p_version uuid, p_size bigint, p_content_type text, p_etag text, p_max_age integer,
    p_owner uuid, p_as_service boolean, p_if_match text[], p_if_none_match text[],
    out outcome text, out replaced uuid, out stored storage.objects
) language sql as $$
    select * from storage.put_object(p_bucket, p_key, p_version, p_size, p_content_type, p_etag, p_max_age, null, null,
                                     null, null, p_owner, p_as_service, p_if_match, p_if_none_match, null, null)
$$;

-- 0.3.0: called by 0.1.0.
create or replace function storage.delete_objects(
    p_bucket text, p_keys text[], p_owner uuid, p_as_service boolean, p_if_match text[], p_if_none_match text[]
)
returns table (outcome text, key text, version uuid) language sql as $$
    select * from storage.delete_objects(p_bucket, p_keys, p_owner, p_as_service, p_if_match, p_if_none_match, null, null)
$$;

-- 0.3.0: called by 0.1.0.
create or replace function storage.move_object(
    p_bucket text, p_from text, p_to text, p_owner uuid, p_as_service boolean,
    p_if_match text[], p_if_none_match text[],
    out outcome text, out replaced uuid, out moved storage.objects
) language sql as $$
    select * from storage.move_object(p_bucket, p_from, p_to, p_owner, p_as_service, p_if_match, p_if_none_match, null, null)
$$;

-- 0.3.0: called by 0.1.0, which knows no Cache-Control: an age replaces it.
create or replace function storage.change_object(
    p_bucket text, p_key text, p_sets_owner boolean, p_new_owner uuid, p_sets_max_age boolean, p_max_age integer,
    p_if_match text[], p_if_none_match text[],
    out outcome text, out changed storage.objects
) language sql as $$
    select c.outcome, c.changed
    from storage.change_object(
        p_bucket, p_key,
        case when p_sets_owner then jsonb_build_object('owner', p_new_owner) else '{}' end
        || case
            when p_sets_max_age then jsonb_build_object('max_age_seconds', p_max_age, 'cache_control', null)
            else '{}'
        end,
        null, true, p_if_match, p_if_none_match, null, null
    ) c
$$;

-- What only versions called that were never released.
drop function if exists storage.create_bucket(text, text, bigint, bigint, text[], boolean);
drop function if exists storage.create_bucket(text, text, bigint, bigint, text[], boolean, boolean, boolean);
drop function if exists storage.create_bucket(text, text, bigint, bigint, text[], boolean, boolean, boolean, boolean);
drop function if exists
    storage.create_bucket(text, text, bigint, bigint, text[], boolean, boolean, boolean, boolean, text);
drop function if exists
    storage.create_bucket(text, text, bigint, bigint, text[], boolean, boolean, boolean, boolean, text, boolean);
drop function if exists
    storage.put_object(text, text, uuid, bigint, text, text, uuid, boolean, text[], text[]);
drop function if exists storage.keep_rendition(text, uuid, text, uuid, bigint, text, integer);

revoke all on all functions in schema storage from public;

-- 0.3.0: read and written by versions up to 0.1.0, whose cleanup finds rows by their ctid, which a view has no other way.
create or replace view auth.one_time_tokens as
    select token_hash, user_id, purpose, created_at, expires_at, ctid from auth.challenges;
revoke all on auth.one_time_tokens from public;
