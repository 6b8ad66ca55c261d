-- Uploads that take several requests (tus). The version and the tail of each are in storage.uploads too, where seen_at
-- is the time at which the upload expires, so that the sweeper does not give them up before.

create table storage.resumable (
    version uuid primary key,
    bucket text collate "C" not null references storage.buckets (name) on delete cascade,
    key text collate "C" not null,
    content_type text not null,
    owner uuid,
    by_service boolean not null,
    details jsonb not null,
    if_match text[],
    if_none_match text[],
    unmodified_since timestamptz,
    metadata text not null,
    length bigint,                          -- null until the client knows it
    first_part bigint not null,
    part_step bigint not null,
    received bigint not null default 0,     -- what the store has: the parts, and the tail
    upload_id text,
    etags text[] not null default '{}',     -- of the parts, from the first
    tail uuid,                              -- the version that has the bytes which fill no part yet
    etag text,                              -- of all bytes together, once they are under the version
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    committed_at timestamptz,
    holder uuid,                            -- the request that writes; nobody's from held_until on
    held_until timestamptz,
    wanted_at timestamptz                   -- when another request last waited for it
);
create index resumable_expires_at on storage.resumable (expires_at);
create index resumable_bucket on storage.resumable (bucket);

revoke all on all tables in schema storage from public;
