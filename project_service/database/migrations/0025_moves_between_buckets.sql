-- An object that goes into another bucket, with the bytes under a new version, since their path begins with the bucket.
-- Its row stays the same one, so rows of the project's own tables that refer to it follow. 'object_changed' if the object is not
-- ``p_version`` any more, whose bytes were copied.
create function storage.move_to_bucket(
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
    set bucket = p_to_bucket, key = p_to, version = p_new_version, etag = p_etag, updated_at = n.updated_at,
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

revoke all on function storage.move_to_bucket from public;
