-- Uploads that are not finished.

-- Uploads that will not be finished become garbage. True for those that this call claimed: a version that the
-- switch has taken meanwhile is not among them, and one that is can no longer be switched to.
create or replace function storage.discard_uploads(p_versions uuid[]) returns setof uuid language sql as $$
    with claimed as (
        delete from storage.uploads where version = any (p_versions) returning version, bucket
    ), thrown as (
        insert into storage.garbage (version, bucket) select version, bucket from claimed
    )
    select version from claimed
$$;

-- Records what p_holder has brought into the store. Null, and no change, unless it holds the upload and its versions
-- are reserved. A tail that is replaced becomes garbage.
create or replace function storage.advance_upload(
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

revoke all on all functions in schema storage from public;
