-- Deletes objects in a project's own SQL, as storage does with the service key, whatever the bucket's rules. The sweeper
-- removes the bytes. Nobody may execute it until the owner grants it.

create or replace function storage.delete(bucket text, keys text[]) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    deleted integer;
begin
    -- Where a row goes with its object, that is gone by now, and whoever deletes it holds locks of counters: to wait for
    -- the bucket then would be the wrong order.
    if not exists (select from storage.objects o where o.bucket = $1 and o.key = any ($2)) then
        return 0;
    end if;
    -- In the order in which an upload takes its locks. A second call in the same transaction changes counters again,
    -- for which PostgreSQL looks up the bucket: whoever then held its row would wait for these counters.
    perform from storage.buckets b where b.name = $1 and b.max_bucket_bytes is null for key share;
    if not found then
        perform from storage.buckets b where b.name = $1 for update;
    end if;
    select count(*) into deleted
    from storage.delete_objects($1, $2, null, true, null, null, null, null) d where d.outcome = 'deleted';
    return deleted;
end
$$;
comment on function storage.delete(text, text[]) is
    'Deletes those of the objects that there are, with their bytes once the transaction has ended; returns their number.';

create or replace function storage.delete(bucket text, key text) returns boolean
language sql security definer set search_path = pg_catalog, pg_temp as $$
    select storage.delete($1, array[$2]) > 0
$$;
comment on function storage.delete(text, text) is
    'Deletes an object, with its bytes once the transaction has ended; false if there is none.';

revoke all on function storage.delete(text, text[]), storage.delete(text, text) from public;
