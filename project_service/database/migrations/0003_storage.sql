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

revoke all on all tables in schema storage from public;
