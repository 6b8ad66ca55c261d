-- Buckets in which a user sees only his own objects.

alter table storage.buckets
    add column owner_only_reads boolean not null default false,
    add constraint buckets_owner_only_reads check (not owner_only_reads or visibility = 'private');
-- With a value the link opens only an object of this user, whatever its key holds by then.
alter table storage.links add column owner uuid;
-- For the listing of one owner's objects.
create index objects_of_owner on storage.objects (bucket, owner, key);

create function storage.create_bucket(
    p_name text, p_visibility text, p_max_object bigint, p_max_bucket bigint, p_types text[], p_owner_only_writes boolean,
    p_owner_only_reads boolean
) returns boolean language plpgsql as $$
begin
    if not storage.create_bucket(p_name, p_visibility, p_max_object, p_max_bucket, p_types, p_owner_only_writes) then
        return false;
    end if;
    update storage.buckets set owner_only_reads = p_owner_only_reads where name = p_name;
    return true;
end
$$;

-- Whether a writer may see an object of ``owner``; one that he may not see is treated as if there were none.
create function storage.sees(b storage.buckets, owner uuid, p_owner uuid, p_as_service boolean)
returns boolean language sql immutable as $$
    select not b.owner_only_reads or p_as_service or coalesce(owner = p_owner, false)
$$;

-- The functions of 0012 with this rule. What a writer may not see he may not change either.

create or replace function storage.put_object(
    p_bucket text, p_key text, p_version uuid, p_size bigint, p_content_type text, p_etag text, p_max_age integer,
    p_owner uuid, p_as_service boolean, p_if_match text[], p_if_none_match text[],
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
                                      changed_twice)
    values (p_bucket, p_key, p_version, p_size, p_content_type, p_etag, owner_now, p_max_age,
            storage.same_second(coalesce(o.updated_at, u.removed_at)))
    on conflict (bucket, key) do update
    set version = excluded.version, size = excluded.size, content_type = excluded.content_type,
        etag = excluded.etag, owner = excluded.owner, updated_at = excluded.updated_at,
        max_age_seconds = excluded.max_age_seconds, changed_twice = excluded.changed_twice
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
    p_bucket text, p_keys text[], p_owner uuid, p_as_service boolean, p_if_match text[], p_if_none_match text[]
)
returns table (outcome text, key text, version uuid) language plpgsql as $$
#variable_conflict use_column
declare
    b storage.buckets;
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
    return query
    with wanted as (
        select distinct k as key from unnest(p_keys) k
    ), found as (
        select w.key as key, o as o,
            storage.refusal(o, b.owner_only_writes or b.owner_only_reads, p_owner, p_as_service, p_if_match, p_if_none_match) as refused
        from wanted w left join storage.objects o on o.bucket = p_bucket and o.key = w.key
            and storage.sees(b, o.owner, p_owner, p_as_service)
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
create or replace function storage.move_object(
    p_bucket text, p_from text, p_to text, p_owner uuid, p_as_service boolean,
    p_if_match text[], p_if_none_match text[],
    out outcome text, out replaced uuid, out moved storage.objects
) language plpgsql as $$
declare
    b storage.buckets;
    o storage.objects;
    t storage.objects;
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

revoke all on all functions in schema storage from public;
