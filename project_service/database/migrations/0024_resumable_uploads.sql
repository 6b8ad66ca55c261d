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

-- Records what p_holder has brought into the store. Null, and no change, unless it holds the upload and its versions
-- are reserved. A tail that is replaced becomes garbage.
create function storage.advance_upload(
    p_version uuid, p_holder uuid, p_received bigint, p_length bigint, p_upload_id text, p_etags text[], p_tail uuid,
    p_etag text, p_lasts interval
) returns storage.resumable language plpgsql as $$
declare
    r storage.resumable;
    old_tail uuid;
    reserved integer;
begin
    select * into r from storage.resumable where version = p_version and holder = p_holder for update;
    if not found then
        return null;
    end if;
    perform from storage.uploads where version in (p_version, p_tail) order by version for update;
    get diagnostics reserved = row_count;
    if reserved < 1 + (p_tail is not null)::int then
        return null;
    end if;
    update storage.uploads set seen_at = now() + p_lasts where version in (p_version, p_tail);
    old_tail := r.tail;
    update storage.resumable
    set received = p_received, length = p_length, upload_id = p_upload_id, etags = etags || p_etags, tail = p_tail,
        etag = p_etag, expires_at = now() + p_lasts
    where version = p_version returning * into r;
    if old_tail is distinct from p_tail then
        perform storage.discard_uploads(array[old_tail]);
    end if;
    return r;
end
$$;

revoke all on all tables in schema storage from public;
revoke all on all functions in schema storage from public;
