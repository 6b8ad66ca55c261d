-- Pictures that were made of objects.

-- As the owner, because whoever may delete an object need not have rights on these tables.
create or replace function storage.discard_renditions() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    with gone as (
        delete from storage.renditions where rendition_of = old.version returning version
    )
    insert into storage.garbage (version, bucket, rendition_of) select gone.version, old.bucket, old.version from gone;
    return null;
end
$$;

create or replace trigger discard_renditions_of_deleted after delete on storage.objects
    for each row execute function storage.discard_renditions();
create or replace trigger discard_renditions_of_replaced after update of version on storage.objects
    for each row when (old.version is distinct from new.version) execute function storage.discard_renditions();

-- Stores a rendition, or makes garbage of it. Returns the one that is stored (null where none is) and the versions that
-- became garbage for it. p_used are renditions that the caller has sent lately, each the seconds of p_used_ago ago.
create or replace function storage.store_rendition(
    p_bucket text, p_of uuid, p_name text, p_version uuid, p_size bigint, p_etag text, p_max integer,
    p_used uuid[], p_used_ago double precision[],
    out version uuid, out size bigint, out etag text, out evicted uuid[]
) language plpgsql as $$
#variable_conflict use_column
begin
    evicted := '{}';
    delete from storage.uploads u where u.version = p_version;
    if not found then
        -- The sweeper has given it up.
        return;
    end if;
    -- Those who store renditions of one object take turns, so there are never too many. Whoever replaces or deletes it
    -- waits too, and then finds them.
    perform from storage.objects o where o.version = p_of for no key update;
    if found and p_max > 0
        and not exists (select from storage.renditions r where r.rendition_of = p_of and r.name = p_name)
    then
        update storage.renditions r set used_at = greatest(r.used_at, now() - make_interval(secs => u.ago))
        from unnest(p_used, p_used_ago) as u (version, ago)
        where r.rendition_of = p_of and r.version = u.version;
        with gone as (
            delete from storage.renditions r
            where r.rendition_of = p_of and r.version in (
                select s.version from storage.renditions s where s.rendition_of = p_of
                order by s.used_at desc, s.added_at desc offset p_max - 1
            )
            returning r.version
        ), garbage as (
            insert into storage.garbage (version, bucket) select gone.version, p_bucket from gone
        )
        select coalesce(array_agg(gone.version), '{}') into evicted from gone;
        insert into storage.renditions (rendition_of, name, version, size, etag, added_at, used_at)
        values (p_of, p_name, p_version, p_size, p_etag, clock_timestamp(), clock_timestamp());
    end if;
    if not exists (select from storage.renditions r where r.version = p_version) then
        insert into storage.garbage (version, bucket) values (p_version, p_bucket);
    end if;
    select r.version, r.size, r.etag into version, size, etag
    from storage.renditions r where r.rendition_of = p_of and r.name = p_name;
end
$$;

revoke all on all functions in schema storage from public;
