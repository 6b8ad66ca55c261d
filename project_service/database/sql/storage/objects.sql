-- Objects: every change of one, with the counters and the garbage that go with it.
--
-- Writers of a bucket keep nobody waiting who wants its row for himself. PostgreSQL lets who shares a lock go before who
-- waits to have it alone: while many deleted, a change of the bucket's rules and, with a quota, uploads would wait for
-- good. An upload holds the row in place and no more, so that rules can change meanwhile. Who deletes or moves needs it
-- not at all: the locks of the slots, and that a bucket with objects is not deleted, are enough.

-- Whether the object now at a key lets a writer through; null when it does.
create or replace function storage.refusal(
    o storage.objects, p_owner_only boolean, p_owner uuid, p_as_service boolean,
    p_if_match text[], p_if_none_match text[]
) returns text language sql immutable as $$
    select case
        when p_owner_only and not p_as_service and o.version is not null and o.owner is distinct from p_owner
            then 'not_owner'
        when o.version is not null and '*' = any (p_if_none_match) then 'object_exists'
        when o.version is not null and o.etag = any (p_if_none_match) then 'precondition_failed'
        when p_if_match is not null and o.version is null then 'precondition_failed'
        when not ('*' = any (p_if_match) or o.etag = any (p_if_match)) then 'precondition_failed'
    end
$$;

-- Whether a writer may see an object of ``owner``; one that he may not see is treated as if there were none.
create or replace function storage.sees(b storage.buckets, owner uuid, p_owner uuid, p_as_service boolean)
returns boolean language sql immutable as $$
    select not b.owner_only_reads or p_as_service or coalesce(owner = p_owner, false)
$$;

-- Whether a change at ``earlier`` and one now get the same date in HTTP. A later moment counts too: whoever waited for a
-- lock began before the change that he waited for.
create or replace function storage.same_second(earlier timestamptz) returns boolean language sql stable as $$
    select coalesce(date_trunc('second', earlier) >= date_trunc('second', now()), false)
$$;

-- The switch: from here on the key's object is p_version. Refuses, and changes nothing, by its outcome.
create or replace function storage.put_object(
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
                                      cache_control, metadata, content_language, sha256, changed_twice, id)
    values (p_bucket, p_key, p_version, p_size, p_content_type, p_etag, owner_now, p_max_age,
            p_cache_control, p_metadata, p_content_language, p_sha256,
            storage.same_second(coalesce(o.updated_at, u.removed_at)), coalesce(o.id, o.version, p_version))
    on conflict (bucket, key) do update
    set version = excluded.version, size = excluded.size, content_type = excluded.content_type,
        etag = excluded.etag, owner = excluded.owner, updated_at = excluded.updated_at,
        max_age_seconds = excluded.max_age_seconds, cache_control = excluded.cache_control,
        metadata = excluded.metadata, content_language = excluded.content_language, sha256 = excluded.sha256,
        changed_twice = excluded.changed_twice, id = excluded.id
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
create or replace function storage.delete_objects(
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

-- Each row of the counters is changed once. PostgreSQL looks up the row that a foreign key names when a row is changed
-- that the same transaction has written before, even if the key stays as it is. So a second change would wait for the
-- bucket's row while it holds the slots' locks; an upload under a quota takes them the other way round, and one of the
-- two would be broken off as a deadlock.
create or replace function storage.move_object(
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

-- An object that goes into another bucket, with the bytes under a new version, since their path begins with the bucket.
-- Its row stays the same one, so rows of the project's own tables that refer to it follow. 'object_changed' if the object is not
-- ``p_version`` any more, whose bytes were copied.
create or replace function storage.move_to_bucket(
    p_bucket text, p_from text, p_version uuid, p_to_bucket text, p_to text, p_new_version uuid, p_etag text,
    p_owner uuid, p_as_service boolean, p_if_match text[], p_if_none_match text[], p_role text, p_claims text,
    out outcome text, out replaced uuid, out moved storage.objects
) language plpgsql as $$
declare
    b storage.buckets;
    c storage.buckets;
    o storage.objects;
    t storage.objects;
    n storage.objects;
    others bigint;
    removed_before timestamptz;
begin
    -- In the order of names, so that two moves in opposite directions cannot wait for each other; buckets before keys, as
    -- everywhere. With a quota the writers of a bucket take turns.
    perform from storage.buckets where name in (p_bucket, p_to_bucket) order by name for update;
    select * into b from storage.buckets where name = p_bucket;
    select * into c from storage.buckets where name = p_to_bucket;
    if b.name is null or c.name is null then
        outcome := 'bucket_not_found';
        return;
    end if;
    perform from storage.usage
    where bucket = p_bucket and slot = storage.slot(p_from) or bucket = p_to_bucket and slot = storage.slot(p_to)
    order by bucket, slot for update;
    select * into o from storage.objects where bucket = p_bucket and key = p_from;
    if not found or not storage.sees(b, o.owner, p_owner, p_as_service) then
        outcome := 'object_not_found';
        return;
    end if;
    select * into t from storage.objects where bucket = p_to_bucket and key = p_to;
    n := o;
    n.bucket := p_to_bucket;
    n.key := p_to;
    n.etag := p_etag;
    n.updated_at := date_trunc('milliseconds', now());
    if b.policies and not p_as_service then
        outcome := storage.judge('delete', o, null, p_role, p_claims);
    end if;
    if outcome is null and c.policies and not p_as_service then
        outcome := storage.judge_put(t, n, p_role, p_claims);
    end if;
    outcome := coalesce(
        outcome,
        storage.refusal(o, b.owner_only_writes or b.owner_only_reads, p_owner, p_as_service, null, null),
        storage.refusal(t, c.owner_only_writes or c.owner_only_reads, p_owner, p_as_service, p_if_match, p_if_none_match),
        case when o.version <> p_version then 'object_changed' end
    );
    if outcome is not null then
        return;
    end if;
    if c.max_bucket_bytes is not null and o.size > coalesce(t.size, 0) then
        select sum(total_bytes) - coalesce(t.size, 0) into others from storage.usage where bucket = p_to_bucket;
        if others + o.size > c.max_bucket_bytes then
            outcome := 'bucket_full';
            return;
        end if;
    end if;
    delete from storage.uploads where version = p_new_version;
    if not found then
        outcome := 'upload_expired';
        return;
    end if;
    if t.version is not null then
        delete from storage.objects where bucket = p_to_bucket and key = p_to;
        insert into storage.garbage (version, bucket) values (t.version, p_to_bucket);
        replaced := t.version;
    end if;
    insert into storage.garbage (version, bucket) values (o.version, p_bucket);
    select removed_at into removed_before from storage.usage where bucket = p_to_bucket and slot = storage.slot(p_to);
    update storage.objects
    set bucket = p_to_bucket, key = p_to, version = p_new_version, id = coalesce(o.id, o.version), etag = p_etag,
        updated_at = n.updated_at,
        changed_twice = storage.same_second(coalesce(t.updated_at, removed_before))
    where bucket = p_bucket and key = p_from returning * into moved;
    update storage.usage
    set object_count = object_count - 1, total_bytes = total_bytes - o.size, removed_at = now()
    where bucket = p_bucket and slot = storage.slot(p_from);
    update storage.usage
    set object_count = object_count + (t.version is null)::int, total_bytes = total_bytes + o.size - coalesce(t.size, 0)
    where bucket = p_to_bucket and slot = storage.slot(p_to);
    outcome := 'moved';
end
$$;

-- What can be changed without new bytes, by whoever may overwrite the object. ``p_changes`` has the columns that are to
-- change with their new values; that only the service sets an owner is decided before.
create or replace function storage.change_object(
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

revoke all on all functions in schema storage from public;
