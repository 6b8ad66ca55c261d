-- Object storage: one row per object here, its bytes in the store under {bucket}/{version}.
-- Nothing in this schema is for the API roles: only the service itself reads and writes it.

create table storage.buckets (
    name text collate "C" primary key check (name ~ '^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$'),
    visibility text not null default 'private' check (visibility in ('public', 'private')),
    max_object_bytes bigint check (max_object_bytes > 0),
    max_bucket_bytes bigint check (max_bucket_bytes > 0),
    allowed_content_types text[],
    owner_only_writes boolean not null default false,
    created_at timestamptz not null default date_trunc('milliseconds', now())
);

-- A bucket's counters, spread over slots by key, so that writers of one bucket do not wait for one row.
-- Whoever changes a key holds the lock of its slot, which makes the slots the keys' locks as well.
create table storage.usage (
    bucket text collate "C" not null references storage.buckets (name) on delete cascade,
    slot smallint not null,
    object_count bigint not null default 0,
    total_bytes bigint not null default 0,
    primary key (bucket, slot)
) with (fillfactor = 50);

create table storage.objects (
    bucket text collate "C" not null references storage.buckets (name),
    key text collate "C" not null,
    version uuid not null unique,
    size bigint not null check (size >= 0),
    content_type text not null,
    etag text not null,
    owner uuid,
    created_at timestamptz not null default date_trunc('milliseconds', now()),
    updated_at timestamptz not null default date_trunc('milliseconds', now()),
    -- In the "C" collation order is bytewise, which for UTF-8 is the order of code points.
    primary key (bucket, key)
);

-- Versions whose bytes may be on their way to the store: written before the first byte, gone with the switch.
create table storage.uploads (
    version uuid primary key,
    bucket text collate "C" not null,
    seen_at timestamptz not null default now()
);
create index uploads_seen_at on storage.uploads (seen_at);

-- Versions whose bytes nobody refers to any more and that are still to be deleted from the store.
create table storage.garbage (
    version uuid primary key,
    bucket text collate "C" not null,
    added_at timestamptz not null default now()
);
create index garbage_added_at on storage.garbage (added_at);

create table storage.links (
    token_hash bytea primary key,
    bucket text collate "C" not null references storage.buckets (name) on delete cascade,
    key text collate "C" not null,
    expires_at timestamptz not null,
    uses_left integer check (uses_left >= 0)   -- null: any number until it expires
);
create index links_expires_at on storage.links (expires_at);
create index links_bucket on storage.links (bucket);

create function storage.slot(key text) returns smallint language sql immutable as $$
    select (hashtext(key) & 15)::smallint
$$;

create function storage.create_bucket(
    p_name text, p_visibility text, p_max_object bigint, p_max_bucket bigint, p_types text[], p_owner_only boolean
) returns boolean language plpgsql as $$
begin
    insert into storage.buckets (name, visibility, max_object_bytes, max_bucket_bytes, allowed_content_types,
                                 owner_only_writes)
    values (p_name, p_visibility, p_max_object, p_max_bucket, p_types, p_owner_only)
    on conflict do nothing;
    if not found then
        return false;
    end if;
    insert into storage.usage (bucket, slot) select p_name, generate_series(0, 15);
    return true;
end
$$;

create function storage.delete_bucket(p_name text) returns text language plpgsql as $$
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

-- Whether the object now at a key lets a writer through; null when it does.
create function storage.refusal(
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

-- The switch: from here on the key's object is p_version. Refuses, and changes nothing, by its outcome.
create function storage.put_object(
    p_bucket text, p_key text, p_version uuid, p_size bigint, p_content_type text, p_etag text, p_owner uuid,
    p_as_service boolean, p_if_match text[], p_if_none_match text[],
    out outcome text, out replaced uuid, out updated_at timestamptz
) language plpgsql as $$
declare
    b storage.buckets;
    o storage.objects;
    others bigint;
begin
    -- With a quota the writers of a bucket take turns; without one they only hold its row in place.
    select * into b from storage.buckets where name = p_bucket and max_bucket_bytes is null for share;
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
create function storage.delete_objects(
    p_bucket text, p_keys text[], p_owner uuid, p_as_service boolean, p_if_match text[], p_if_none_match text[]
)
returns table (outcome text, key text, version uuid) language plpgsql as $$
#variable_conflict use_column
declare
    b storage.buckets;
begin
    select * into b from storage.buckets where name = p_bucket for share;
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

create function storage.move_object(
    p_bucket text, p_from text, p_to text, p_owner uuid, p_as_service boolean,
    p_if_match text[], p_if_none_match text[],
    out outcome text, out replaced uuid, out moved storage.objects
) language plpgsql as $$
declare
    b storage.buckets;
    o storage.objects;
    t storage.objects;
begin
    select * into b from storage.buckets where name = p_bucket for share;
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

-- Uploads that will not be finished become garbage. True for those that this call claimed: a version that the
-- switch has taken meanwhile is not among them, and one that is can no longer be switched to.
create function storage.discard_uploads(p_versions uuid[]) returns setof uuid language sql as $$
    with claimed as (
        delete from storage.uploads where version = any (p_versions) returning version, bucket
    ), thrown as (
        insert into storage.garbage (version, bucket) select version, bucket from claimed
    )
    select version from claimed
$$;

revoke all on all tables in schema storage from public;
revoke all on all functions in schema storage from public;
