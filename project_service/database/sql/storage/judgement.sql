-- What policies on storage.objects say to a change.

-- Ends a judgement: policies let the row of this key through.
create or replace function storage.pass(key text) returns boolean language plpgsql volatile as $$
begin
    raise sqlstate 'SPASS';
end
$$;

-- What policies say to a caller's change: null if they allow it; 'object_not_found' if they may not see the row ``o``,
-- which is to be updated or deleted; else 'not_allowed'. After ': ' follows why a policy failed, if one did. ``n`` is the
-- new row of an insert or an update. Whoever adds a column that a change can set adds it to the update below.
--
-- The statement is begun in the caller's role and never completed. PostgreSQL judges a new row before it finds that the
-- version is missing, and evaluates ``pass`` only for rows that policies let through. So there is no row to clean up, and
-- triggers AFTER a change do not fire; those BEFORE an insert or update do, since they decide what the new row is.
-- The error that is raised in any case also takes back role, claims and setting.
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
            insert into storage.objects (bucket, key, version, size, content_type, etag, owner, created_at, updated_at,
                                         max_age_seconds, changed_twice, cache_control, metadata, content_language,
                                         sha256, id)
            values (n.bucket, n.key, n.version, n.size, n.content_type, n.etag, n.owner, n.created_at, n.updated_at,
                    n.max_age_seconds, n.changed_twice, n.cache_control, n.metadata, n.content_language, n.sha256, n.id);
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
create or replace function storage.row_to_put(
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
create or replace function storage.judge_put(o storage.objects, n storage.objects, p_role text, p_claims text)
returns text language sql as $$
    select regexp_replace(
        storage.judge(case when o.version is null then 'insert' else 'update' end, o, n, p_role, p_claims),
        '^object_not_found', 'not_allowed'
    )
$$;

-- What the commit of an upload would be told, before its bytes come: its size is the declared one, or 0, and it has no
-- etag and no digest yet.
create or replace function storage.check_put(
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

revoke all on all functions in schema storage from public;
grant execute on function storage.pass(text) to anon, authenticated;
