-- Writers of a bucket keep nobody waiting who wants its row for himself. PostgreSQL lets who shares a lock go before who
-- waits to have it alone: while many deleted, a change of the bucket's rules and, with a quota, uploads waited for good.
-- An upload holds the row in place and no more, so that rules can change meanwhile. Who deletes or moves needs it not
-- at all: the locks of the slots, and that a bucket with objects is not deleted, are enough.

create or replace function storage.put_object(
    p_bucket text, p_key text, p_version uuid, p_size bigint, p_content_type text, p_etag text, p_owner uuid,
    p_as_service boolean, p_if_match text[], p_if_none_match text[],
    out outcome text, out replaced uuid, out updated_at timestamptz
) language plpgsql as $$
declare
    b storage.buckets;
    o storage.objects;
    others bigint;
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
    perform from storage.usage where bucket = p_bucket and slot = storage.slot(p_key) for update;
    select * into o from storage.objects where bucket = p_bucket and key = p_key;
    outcome := storage.refusal(o, b.owner_only_writes, p_owner, p_as_service, p_if_match, p_if_none_match);
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
    insert into storage.objects as t (bucket, key, version, size, content_type, etag, owner)
    values (p_bucket, p_key, p_version, p_size, p_content_type, p_etag, p_owner)
    on conflict (bucket, key) do update
    set version = excluded.version, size = excluded.size, content_type = excluded.content_type,
        etag = excluded.etag, owner = excluded.owner, updated_at = excluded.updated_at
    returning t.updated_at into updated_at;
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
            storage.refusal(o, b.owner_only_writes, p_owner, p_as_service, p_if_match, p_if_none_match) as refused
        from wanted w left join storage.objects o on o.bucket = p_bucket and o.key = w.key
    ), gone as (
        delete from storage.objects o using found f
        where o.bucket = p_bucket and o.key = f.key and not exists (select from found where refused is not null)
        returning o.key, o.version, o.size
    ), counted as (
        update storage.usage u
        set object_count = u.object_count - g.objects, total_bytes = u.total_bytes - g.bytes
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

create or replace function storage.move_object(
    p_bucket text, p_from text, p_to text, p_owner uuid, p_as_service boolean,
    p_if_match text[], p_if_none_match text[],
    out outcome text, out replaced uuid, out moved storage.objects
) language plpgsql as $$
declare
    b storage.buckets;
    o storage.objects;
    t storage.objects;
begin
    select * into b from storage.buckets where name = p_bucket;
    if not found then
        outcome := 'bucket_not_found';
        return;
    end if;
    perform from storage.usage
    where bucket = p_bucket and slot in (storage.slot(p_from), storage.slot(p_to)) order by slot for update;
    select * into o from storage.objects where bucket = p_bucket and key = p_from;
    if not found then
        outcome := 'object_not_found';
        return;
    end if;
    select * into t from storage.objects where bucket = p_bucket and key = p_to;
    outcome := coalesce(
        storage.refusal(o, b.owner_only_writes, p_owner, p_as_service, null, null),
        storage.refusal(t, b.owner_only_writes, p_owner, p_as_service, p_if_match, p_if_none_match)
    );
    if outcome is not null then
        return;
    end if;
    if t.version is not null then
        delete from storage.objects where bucket = p_bucket and key = p_to;
        insert into storage.garbage (version, bucket) values (t.version, p_bucket);
        update storage.usage set object_count = object_count - 1, total_bytes = total_bytes - t.size
        where bucket = p_bucket and slot = storage.slot(p_to);
        replaced := t.version;
    end if;
    update storage.objects set key = p_to, updated_at = date_trunc('milliseconds', now())
    where bucket = p_bucket and key = p_from returning * into moved;
    update storage.usage set object_count = object_count - 1, total_bytes = total_bytes - o.size
    where bucket = p_bucket and slot = storage.slot(p_from);
    update storage.usage set object_count = object_count + 1, total_bytes = total_bytes + o.size
    where bucket = p_bucket and slot = storage.slot(p_to);
    outcome := 'moved';
end
$$;
