-- What an uploader may say of an object, and the SHA-256 of its bytes. Objects that were there before have none.

alter table storage.objects
    add column cache_control text,
    add column metadata jsonb check (jsonb_typeof(metadata) = 'object'),
    add column content_language text,
    add column sha256 text check (sha256 ~ '^[0-9a-f]{64}$');

-- The functions of 0019 with these columns, which policies see as well.

create or replace function storage.judge(
    p_command text, o storage.objects, n storage.objects, p_role text, p_claims text
) returns text language plpgsql as $$
declare
    seen boolean := false;
    code text;
    message text;
    missing text;
    in_schema text;
    in_table text;
    refusal text;
begin
    if p_role is null then
        return 'not_allowed';
    end if;
    begin
        perform set_config('storage.judging', 'on', true), set_config('request.jwt.claims', p_claims, true),
            set_config('role', p_role, true);
        if o.version is not null then
            perform from storage.objects where bucket = o.bucket and key = o.key;
            if not found then
                raise sqlstate 'SNONE';
            end if;
            seen := true;
        end if;
        n.version := null;
        if p_command = 'insert' then
            insert into storage.objects values (n.*);
        elsif p_command = 'update' then
            update storage.objects
            set (key, version, size, content_type, etag, owner, updated_at, max_age_seconds, cache_control,
                 metadata, content_language, sha256)
                = row(n.key, n.version, n.size, n.content_type, n.etag, n.owner, n.updated_at, n.max_age_seconds,
                      n.cache_control, n.metadata, n.content_language, n.sha256)
            where bucket = o.bucket and key = o.key;
        else
            delete from storage.objects where bucket = o.bucket and key = o.key and storage.pass(key);
        end if;
        -- Only where a trigger has given the new row a version is it complete by now.
        raise exception using errcode = case when found then 'SPASS' else 'SNONE' end;
    exception when others or query_canceled or assert_failure then
        get stacked diagnostics code = returned_sqlstate, message = message_text,
            missing = column_name, in_schema = schema_name, in_table = table_name;
        seen := seen or o.version is null;
        -- The project's own SQL may choose the status of a refusal, as it may without policies, but not for what may not
        -- be seen. What is nobody's fault (a deadlock, a full disk, a server that stops) is no refusal.
        if code ~ '^PT4\d\d$' and seen or code ~ '^(08|40|53|57P|58)' then
            raise;
        end if;
    end;
    -- An error of the policies for reading, before the change was begun, must not pass for one of these.
    if seen and (code = 'SPASS' or p_command <> 'delete' and code = '23502' and in_schema = 'storage'
                 and in_table = 'objects' and missing = 'version') then
        return null;
    end if;
    refusal := case when seen then 'not_allowed' else 'object_not_found' end;
    -- The message that a new row is refused names the table in quotes, whatever its language.
    if code = 'SNONE' or code = '42501' and message like '%"objects"%' then
        return refusal;
    end if;
    return format('%s: %s (%s)', refusal, message, code);
end
$$;

-- The row that an object becomes which is put where ``o`` is now, for policies.
create function storage.row_to_put(
    o storage.objects, p_bucket text, p_key text, p_size bigint, p_content_type text, p_etag text, p_max_age integer,
    p_cache_control text, p_metadata jsonb, p_content_language text, p_sha256 text, p_owner uuid
) returns storage.objects language plpgsql as $$
declare
    n storage.objects := o;
begin
    n.bucket := p_bucket;
    n.key := p_key;
    n.size := p_size;
    n.content_type := p_content_type;
    n.etag := p_etag;
    n.max_age_seconds := p_max_age;
    n.cache_control := p_cache_control;
    n.metadata := p_metadata;
    n.content_language := p_content_language;
    n.sha256 := p_sha256;
    n.owner := p_owner;
    n.updated_at := date_trunc('milliseconds', now());
    n.created_at := coalesce(o.created_at, n.updated_at);
    n.changed_twice := coalesce(o.changed_twice, false);
    return n;
end
$$;

-- As ``judge``, for an object ``n`` that is to be put at a key; ``o`` is the one that is there. That a key is taken cannot
-- be hidden, so this is 'not_allowed' also where the caller does not see by what.
create function storage.judge_put(o storage.objects, n storage.objects, p_role text, p_claims text)
returns text language sql as $$
    select regexp_replace(
        storage.judge(case when o.version is null then 'insert' else 'update' end, o, n, p_role, p_claims),
        '^object_not_found', 'not_allowed'
    )
$$;

-- What the commit of an upload would be told, before its bytes come: its size is the declared one, or 0, and it has no
-- etag and no digest yet.
create function storage.check_put(
    p_bucket text, p_key text, p_size bigint, p_content_type text, p_max_age integer, p_cache_control text,
    p_metadata jsonb, p_content_language text, p_owner uuid, p_role text, p_claims text
) returns text language plpgsql as $$
declare
    o storage.objects;
begin
    select * into o from storage.objects where bucket = p_bucket and key = p_key;
    return storage.judge_put(o, storage.row_to_put(
        o, p_bucket, p_key, p_size, p_content_type, '', p_max_age, p_cache_control, p_metadata, p_content_language, null,
        p_owner
    ), p_role, p_claims);
end
$$;

create function storage.put_object(
    p_bucket text, p_key text, p_version uuid, p_size bigint, p_content_type text, p_etag text, p_max_age integer,
    p_cache_control text, p_metadata jsonb, p_content_language text, p_sha256 text, p_owner uuid, p_as_service boolean,
    p_if_match text[], p_if_none_match text[], p_role text, p_claims text,
    out outcome text, out replaced uuid, out stored storage.objects
) language plpgsql as $$
declare
    b storage.buckets;
    u storage.usage;
    o storage.objects;
    others bigint;
    owner_now uuid := p_owner;
begin
    -- With a quota the writers of a bucket take turns, after those who began before there was one.
    select * into b from storage.buckets where name = p_bucket and max_bucket_bytes is null for key share;
    if not found then
        select * into b from storage.buckets where name = p_bucket for update;
        if not found then
            outcome := 'bucket_not_found';
            return;
        end if;
    end if;
    select * into u from storage.usage where bucket = p_bucket and slot = storage.slot(p_key) for update;
    select * into o from storage.objects where bucket = p_bucket and key = p_key;
    if b.policies and not p_as_service then
        outcome := storage.judge_put(o, storage.row_to_put(
            o, p_bucket, p_key, p_size, p_content_type, p_etag, p_max_age, p_cache_control, p_metadata,
            p_content_language, p_sha256, p_owner
        ), p_role, p_claims);
        if outcome is not null then
            return;
        end if;
    end if;
    outcome := storage.refusal(o, b.owner_only_writes or b.owner_only_reads, p_owner, p_as_service, p_if_match, p_if_none_match);
    if outcome is not null then
        return;
    end if;
    if b.max_bucket_bytes is not null and p_size > coalesce(o.size, 0) then
        select sum(total_bytes) - coalesce(o.size, 0) into others from storage.usage where bucket = p_bucket;
        if others + p_size > b.max_bucket_bytes then
            outcome := 'bucket_full';
            return;
        end if;
    end if;
    delete from storage.uploads where version = p_version;
    if not found then
        outcome := 'upload_expired';
        return;
    end if;
    if p_as_service and p_owner is null then
        owner_now := o.owner;
    end if;
    insert into storage.objects as t (bucket, key, version, size, content_type, etag, owner, max_age_seconds,
                                      cache_control, metadata, content_language, sha256, changed_twice)
    values (p_bucket, p_key, p_version, p_size, p_content_type, p_etag, owner_now, p_max_age,
            p_cache_control, p_metadata, p_content_language, p_sha256,
            storage.same_second(coalesce(o.updated_at, u.removed_at)))
    on conflict (bucket, key) do update
    set version = excluded.version, size = excluded.size, content_type = excluded.content_type,
        etag = excluded.etag, owner = excluded.owner, updated_at = excluded.updated_at,
        max_age_seconds = excluded.max_age_seconds, cache_control = excluded.cache_control,
        metadata = excluded.metadata, content_language = excluded.content_language, sha256 = excluded.sha256,
        changed_twice = excluded.changed_twice
    returning t.* into stored;
    if o.version is not null then
        insert into storage.garbage (version, bucket) values (o.version, p_bucket);
    end if;
    update storage.usage
    set object_count = object_count + (o.version is null)::int, total_bytes = total_bytes + p_size - coalesce(o.size, 0)
    where bucket = p_bucket and slot = storage.slot(p_key);
    outcome := 'stored';
    replaced := o.version;
end
$$;

-- For processes of the previous version, during an upgrade.
create or replace function storage.put_object(
    p_bucket text, p_key text, p_version uuid, p_size bigint, p_content_type text, p_etag text, p_max_age integer,
    p_owner uuid, p_as_service boolean, p_if_match text[], p_if_none_match text[], p_role text, p_claims text,
    out outcome text, out replaced uuid, out stored storage.objects
) language sql as $$
    select * from storage.put_object(p_bucket, p_key, p_version, p_size, p_content_type, p_etag, p_max_age, null, null,
                                     null, null, p_owner, p_as_service, p_if_match, p_if_none_match, p_role, p_claims)
$$;

-- What can be changed without new bytes, by whoever may overwrite the object. ``p_changes`` has the columns that are to
-- change with their new values; that only the service sets an owner is decided before.
create function storage.change_object(
    p_bucket text, p_key text, p_changes jsonb, p_owner uuid, p_as_service boolean,
    p_if_match text[], p_if_none_match text[], p_role text, p_claims text,
    out outcome text, out changed storage.objects
) language plpgsql as $$
declare
    b storage.buckets;
    o storage.objects;
    wanted storage.objects;
begin
    select * into b from storage.buckets where name = p_bucket;
    perform from storage.usage where bucket = p_bucket and slot = storage.slot(p_key) for update;
    select * into o from storage.objects where bucket = p_bucket and key = p_key;
    if not found or not storage.sees(b, o.owner, p_owner, p_as_service) then
        outcome := 'object_not_found';
        return;
    end if;
    wanted := jsonb_populate_record(o, p_changes);
    if b.policies and not p_as_service then
        outcome := storage.judge('update', o, wanted, p_role, p_claims);
        if outcome is not null then
            return;
        end if;
    end if;
    outcome := storage.refusal(o, b.owner_only_writes or b.owner_only_reads, p_owner, p_as_service,
                               p_if_match, p_if_none_match);
    if outcome is not null then
        return;
    end if;
    update storage.objects
    set owner = wanted.owner, max_age_seconds = wanted.max_age_seconds, cache_control = wanted.cache_control,
        metadata = wanted.metadata, content_language = wanted.content_language
    where bucket = p_bucket and key = p_key returning * into changed;
    outcome := 'changed';
end
$$;

-- For processes of the previous version, which know no Cache-Control: an age replaces it.
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

revoke all on all functions in schema storage from public;
