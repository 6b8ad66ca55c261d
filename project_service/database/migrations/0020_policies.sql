-- Buckets in which row-level security on storage.objects decides.

alter table storage.buckets add column policies boolean not null default false;
-- With a role the link opens only what policies let these claims see.
alter table storage.links add column role text, add column claims text;

-- The pieces of a key, for policies.

create function storage.folder(key text) returns text[] language sql immutable parallel safe
    return trim_array(string_to_array(key, '/'), 1);
comment on function storage.folder(text) is
    'The folders of a key from the outermost: {a,b} for a/b/c.png; an empty array for a key in no folder.';

create function storage.filename(key text) returns text language sql immutable parallel safe
    return split_part(key, '/', -1);
comment on function storage.filename(text) is 'What follows the last slash of a key: c.png for a/b/c.png.';

create function storage.extension(key text) returns text language sql immutable parallel safe
    return coalesce(substring(storage.filename(key) from '.\.([^.]*)$'), '');
comment on function storage.extension(text) is
    'What follows the last dot of the filename, as it is written: png for a/b/c.png; an empty text without one.';

-- Policies are for anon and authenticated, so these need rights on the table. They are good only within the
-- transactions in which the service asks for what policies allow, also where an operator exposes this schema to the table API:
-- elsewhere the restrictive policy shows no row and lets none be written.

alter table storage.objects enable row level security;
grant usage on schema storage to anon, authenticated;
grant select, insert, update, delete on storage.objects to anon, authenticated;
create policy through_the_service on storage.objects as restrictive to anon, authenticated
    using (current_setting('storage.judging', true) = 'on');

-- Other roles that were granted rights keep them.
do $$
declare
    grantee name;
begin
    for grantee in
        select distinct r.rolname
        from pg_class c cross join aclexplode(c.relacl) acl join pg_roles r on r.oid = acl.grantee
        where c.oid = 'storage.objects'::regclass and r.oid <> c.relowner and not r.rolbypassrls
            and r.rolname not in ('anon', 'authenticated')
    loop
        execute format('create policy %I on storage.objects to %I using (true)', 'all for ' || grantee, grantee);
    end loop;
end
$$;

-- Ends a judgement: policies let the row of this key through.
create function storage.pass(key text) returns boolean language plpgsql volatile as $$
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
create function storage.judge(
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

create function storage.create_bucket(
    p_name text, p_visibility text, p_max_object bigint, p_max_bucket bigint, p_types text[], p_owner_only_writes boolean,
    p_owner_only_reads boolean, p_anonymous_reads boolean, p_policies boolean
) returns boolean language plpgsql as $$
begin
    if not storage.create_bucket(p_name, p_visibility, p_max_object, p_max_bucket, p_types, p_owner_only_writes,
                                 p_owner_only_reads, p_anonymous_reads) then
        return false;
    end if;
    update storage.buckets set policies = p_policies where name = p_name;
    return true;
end
$$;

-- The functions of 0016 and 0012 with this rule, and with what an uploader says of an object.

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

-- All of them or, when one may not be deleted, none.
create function storage.delete_objects(
    p_bucket text, p_keys text[], p_owner uuid, p_as_service boolean, p_if_match text[], p_if_none_match text[],
    p_role text, p_claims text
)
returns table (outcome text, key text, version uuid) language plpgsql as $$
#variable_conflict use_column
declare
    b storage.buckets;
    there storage.objects;
    judgement text;
    hidden text[] := '{}';
begin
    select * into b from storage.buckets where name = p_bucket;
    if not found then
        return query select 'bucket_not_found'::text, null::text, null::uuid;
        return;
    end if;
    -- In the order of the slots, so that two bulk deletes cannot wait for each other.
    perform from storage.usage
    where bucket = p_bucket and slot in (select storage.slot(k) from unnest(p_keys) k)
    order by slot for update;
    if b.policies and not p_as_service then
        for there in
            select * from storage.objects s
            where s.bucket = p_bucket and s.key = any (p_keys) and storage.sees(b, s.owner, p_owner, p_as_service)
        loop
            judgement := storage.judge('delete', there, null, p_role, p_claims);
            if judgement like 'object_not_found%' then
                hidden := hidden || there.key;
            end if;
            -- Those with a reason are for the log. The first that they see and may not delete refuses all.
            if judgement <> 'object_not_found' then
                return query select replace(judgement, 'object_not_found', 'missing'), there.key, null::uuid;
            end if;
            if judgement like 'not_allowed%' then
                return;
            end if;
        end loop;
    end if;
    return query
    with wanted as (
        select distinct k as key from unnest(p_keys) k
    ), found as (
        select w.key as key, o as o,
            storage.refusal(o, b.owner_only_writes or b.owner_only_reads, p_owner, p_as_service, p_if_match, p_if_none_match) as refused
        from wanted w left join storage.objects o on o.bucket = p_bucket and o.key = w.key
            and storage.sees(b, o.owner, p_owner, p_as_service) and o.key <> all (hidden)
    ), gone as (
        delete from storage.objects o using found f
        where o.bucket = p_bucket and o.key = f.key and o.version = (f.o).version
            and not exists (select from found where refused is not null)
        returning o.key, o.version, o.size
    ), counted as (
        update storage.usage u
        set object_count = u.object_count - g.objects, total_bytes = u.total_bytes - g.bytes, removed_at = now()
        from (
            select storage.slot(gone.key) as slot, count(*) as objects, sum(gone.size) as bytes from gone group by 1
        ) g
        where u.bucket = p_bucket and u.slot = g.slot
    ), thrown as (
        insert into storage.garbage (version, bucket) select gone.version, p_bucket from gone
    )
    select case when g.version is not null then 'deleted' else coalesce(f.refused, 'missing') end, f.key, g.version
    from found f left join gone g on g.key = f.key;
end
$$;

-- Each row of the counters is changed once; 0010 says why.
create function storage.move_object(
    p_bucket text, p_from text, p_to text, p_owner uuid, p_as_service boolean,
    p_if_match text[], p_if_none_match text[], p_role text, p_claims text,
    out outcome text, out replaced uuid, out moved storage.objects
) language plpgsql as $$
declare
    b storage.buckets;
    o storage.objects;
    t storage.objects;
    n storage.objects;
    removed_before timestamptz;
begin
    select * into b from storage.buckets where name = p_bucket;
    if not found then
        outcome := 'bucket_not_found';
        return;
    end if;
    perform from storage.usage
    where bucket = p_bucket and slot in (storage.slot(p_from), storage.slot(p_to)) order by slot for update;
    select * into o from storage.objects where bucket = p_bucket and key = p_from;
    if not found or not storage.sees(b, o.owner, p_owner, p_as_service) then
        outcome := 'object_not_found';
        return;
    end if;
    select * into t from storage.objects where bucket = p_bucket and key = p_to;
    if b.policies and not p_as_service then
        n := o;
        n.key := p_to;
        n.updated_at := date_trunc('milliseconds', now());
        outcome := storage.judge('update', o, n, p_role, p_claims);
        if outcome is null and t.version is not null then
            -- That a key is taken cannot be hidden.
            outcome := regexp_replace(storage.judge('delete', t, null, p_role, p_claims), '^object_not_found', 'not_allowed');
        end if;
        if outcome is not null then
            return;
        end if;
    end if;
    outcome := coalesce(
        storage.refusal(o, b.owner_only_writes or b.owner_only_reads, p_owner, p_as_service, null, null),
        storage.refusal(t, b.owner_only_writes or b.owner_only_reads, p_owner, p_as_service, p_if_match, p_if_none_match)
    );
    if outcome is not null then
        return;
    end if;
    if t.version is not null then
        delete from storage.objects where bucket = p_bucket and key = p_to;
        insert into storage.garbage (version, bucket) values (t.version, p_bucket);
        replaced := t.version;
    end if;
    select removed_at into removed_before from storage.usage where bucket = p_bucket and slot = storage.slot(p_to);
    update storage.objects
    set key = p_to, updated_at = date_trunc('milliseconds', now()),
        changed_twice = storage.same_second(coalesce(t.updated_at, removed_before))
    where bucket = p_bucket and key = p_from returning * into moved;
    update storage.usage u
    set object_count = u.object_count + c.objects, total_bytes = u.total_bytes + c.bytes,
        removed_at = case when c.removed then now() else u.removed_at end
    from (
        select slot, sum(objects) as objects, sum(bytes) as bytes, bool_or(removed) as removed
        from (values
            (storage.slot(p_from), -1, -o.size, true),
            (storage.slot(p_to), (t.version is null)::int, o.size - coalesce(t.size, 0), false)
        ) as change (slot, objects, bytes, removed)
        group by slot
    ) c
    where u.bucket = p_bucket and u.slot = c.slot;
    outcome := 'moved';
end
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

-- For processes of the previous version, during an upgrade. They do not say who calls, so policies allow nothing.

create or replace function storage.put_object(
    p_bucket text, p_key text, p_version uuid, p_size bigint, p_content_type text, p_etag text, p_max_age integer,
    p_owner uuid, p_as_service boolean, p_if_match text[], p_if_none_match text[],
    out outcome text, out replaced uuid, out stored storage.objects
) language sql as $$
    select * from storage.put_object(p_bucket, p_key, p_version, p_size, p_content_type, p_etag, p_max_age, null, null,
                                     null, null, p_owner, p_as_service, p_if_match, p_if_none_match, null, null)
$$;

create or replace function storage.delete_objects(
    p_bucket text, p_keys text[], p_owner uuid, p_as_service boolean, p_if_match text[], p_if_none_match text[]
)
returns table (outcome text, key text, version uuid) language sql as $$
    select * from storage.delete_objects(p_bucket, p_keys, p_owner, p_as_service, p_if_match, p_if_none_match, null, null)
$$;

create or replace function storage.move_object(
    p_bucket text, p_from text, p_to text, p_owner uuid, p_as_service boolean,
    p_if_match text[], p_if_none_match text[],
    out outcome text, out replaced uuid, out moved storage.objects
) language sql as $$
    select * from storage.move_object(p_bucket, p_from, p_to, p_owner, p_as_service, p_if_match, p_if_none_match, null, null)
$$;

-- These know no Cache-Control either: an age replaces it.
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
grant execute on function storage.folder(text), storage.filename(text), storage.extension(text), storage.pass(text)
    to anon, authenticated;
