-- A move changes each row of its bucket's counters once. PostgreSQL looks up the row that a foreign key names when a
-- row is changed that the same transaction has written before, even if the key stays as it is. A move onto an object, or
-- within one slot, changed a row of counters twice, and so waited for the bucket's row while it held the slots' locks:
-- an upload under a quota takes them the other way round, and one of the two was broken off as a deadlock.

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
        replaced := t.version;
    end if;
    update storage.objects set key = p_to, updated_at = date_trunc('milliseconds', now())
    where bucket = p_bucket and key = p_from returning * into moved;
    update storage.usage u
    set object_count = u.object_count + c.objects, total_bytes = u.total_bytes + c.bytes
    from (
        select slot, sum(objects) as objects, sum(bytes) as bytes
        from (values
            (storage.slot(p_from), -1, -o.size),
            (storage.slot(p_to), (t.version is null)::int, o.size - coalesce(t.size, 0))
        ) as change (slot, objects, bytes)
        group by slot
    ) c
    where u.bucket = p_bucket and u.slot = c.slot;
    outcome := 'moved';
end
$$;
