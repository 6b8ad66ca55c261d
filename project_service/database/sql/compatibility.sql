-- What processes of earlier versions call while a newer one runs beside them, during an upgrade. Each may go with the
-- version that its comment names: then the newest version that calls it is not the previous one any more.

-- 0.3.0: called by versions between 0.1.0 and 0.2.0. False, and no change, where there is one of this name.
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
    return found;
end
$$;

-- 0.3.0: called by versions between 0.1.0 and 0.2.0.
create or replace function storage.create_bucket(
    p_name text, p_visibility text, p_max_object bigint, p_max_bucket bigint, p_types text[], p_owner_only_writes boolean,
    p_owner_only_reads boolean, p_anonymous_reads boolean, p_policies boolean, p_cache_control text
) returns boolean language sql as $$
    select storage.create_bucket(p_name, p_visibility, p_max_object, p_max_bucket, p_types, p_owner_only_writes,
                                 p_owner_only_reads, p_anonymous_reads, p_policies, p_cache_control, false)
$$;

-- 0.2.0: called by versions before 0.1.0.
create or replace function storage.create_bucket(
    p_name text, p_visibility text, p_max_object bigint, p_max_bucket bigint, p_types text[], p_owner_only boolean
) returns boolean language sql as $$
    select storage.create_bucket(p_name, p_visibility, p_max_object, p_max_bucket, p_types, p_owner_only,
                                 false, false, false, null)
$$;

-- 0.3.0: called by 0.1.0.
create or replace function storage.create_bucket(
    p_name text, p_visibility text, p_max_object bigint, p_max_bucket bigint, p_types text[], p_owner_only_writes boolean,
    p_owner_only_reads boolean
) returns boolean language sql as $$
    select storage.create_bucket(p_name, p_visibility, p_max_object, p_max_bucket, p_types, p_owner_only_writes,
                                 p_owner_only_reads, false, false, null)
$$;

-- 0.3.0: called by versions between 0.1.0 and 0.2.0.
create or replace function storage.create_bucket(
    p_name text, p_visibility text, p_max_object bigint, p_max_bucket bigint, p_types text[], p_owner_only_writes boolean,
    p_owner_only_reads boolean, p_anonymous_reads boolean
) returns boolean language sql as $$
    select storage.create_bucket(p_name, p_visibility, p_max_object, p_max_bucket, p_types, p_owner_only_writes,
                                 p_owner_only_reads, p_anonymous_reads, false, null)
$$;

-- 0.3.0: called by versions between 0.1.0 and 0.2.0.
create or replace function storage.create_bucket(
    p_name text, p_visibility text, p_max_object bigint, p_max_bucket bigint, p_types text[], p_owner_only_writes boolean,
    p_owner_only_reads boolean, p_anonymous_reads boolean, p_policies boolean
) returns boolean language sql as $$
    select storage.create_bucket(p_name, p_visibility, p_max_object, p_max_bucket, p_types, p_owner_only_writes,
                                 p_owner_only_reads, p_anonymous_reads, p_policies, null)
$$;

-- The versions that call what follows do not say who calls, so policies allow nothing.

-- 0.3.0: called by 0.1.0.
create or replace function storage.put_object(
    p_bucket text, p_key text, p_version uuid, p_size bigint, p_content_type text, p_etag text, p_max_age integer,
    p_owner uuid, p_as_service boolean, p_if_match text[], p_if_none_match text[],
    out outcome text, out replaced uuid, out stored storage.objects
) language sql as $$
    select * from storage.put_object(p_bucket, p_key, p_version, p_size, p_content_type, p_etag, p_max_age, null, null,
                                     null, null, p_owner, p_as_service, p_if_match, p_if_none_match, null, null)
$$;

-- 0.2.0: called by versions before 0.1.0.
create or replace function storage.put_object(
    p_bucket text, p_key text, p_version uuid, p_size bigint, p_content_type text, p_etag text, p_owner uuid,
    p_as_service boolean, p_if_match text[], p_if_none_match text[],
    out outcome text, out replaced uuid, out updated_at timestamptz
) language sql as $$
    select p.outcome, p.replaced, (p.stored).updated_at
    from storage.put_object(p_bucket, p_key, p_version, p_size, p_content_type, p_etag, null::integer, p_owner,
                            p_as_service, p_if_match, p_if_none_match) p
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

-- 0.3.0: called by versions between 0.1.0 and 0.2.0.
create or replace function storage.keep_rendition(
    p_bucket text, p_of uuid, p_name text, p_version uuid, p_size bigint, p_etag text, p_max integer
) returns table (version uuid, size bigint, etag text) language sql as $$
    select s.version, s.size, s.etag
    from storage.store_rendition(p_bucket, p_of, p_name, p_version, p_size, p_etag, p_max, '{}', '{}') s
    where s.version is not null
$$;

revoke all on all functions in schema storage from public;
