-- Pictures that were made of objects, so that each is made once. Their bytes are in the store under a version of their
-- own. A rendition belongs to one version of an object, and becomes garbage in the transaction that ends that version.

create table storage.renditions (
    rendition_of uuid not null,
    name text collate "C" not null,
    version uuid not null unique,
    size bigint not null,
    etag text not null,
    added_at timestamptz not null default now(),
    primary key (rendition_of, name)
);

-- The version that a piece of garbage was made of: both are deleted from the store together.
alter table storage.garbage add column rendition_of uuid;
create index garbage_rendition_of on storage.garbage (rendition_of) where rendition_of is not null;

-- As the owner, because whoever may delete an object need not have rights on these tables.
create function storage.discard_renditions() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    with gone as (
        delete from storage.renditions where rendition_of = old.version returning version
    )
    insert into storage.garbage (version, bucket, rendition_of) select gone.version, old.bucket, old.version from gone;
    return null;
end
$$;
create trigger discard_renditions_of_deleted after delete on storage.objects
    for each row execute function storage.discard_renditions();
create trigger discard_renditions_of_replaced after update of version on storage.objects
    for each row when (old.version is distinct from new.version) execute function storage.discard_renditions();

-- Stores a rendition, or makes garbage of it. Returns the one that is stored; no row where none is.
create function storage.keep_rendition(
    p_bucket text, p_of uuid, p_name text, p_version uuid, p_size bigint, p_etag text, p_max integer
) returns table (version uuid, size bigint, etag text) language plpgsql as $$
#variable_conflict use_column
begin
    delete from storage.uploads u where u.version = p_version;
    if not found then
        -- The sweeper has given it up.
        return;
    end if;
    -- Whoever replaces or deletes the object waits for this, and then finds the rendition.
    perform from storage.objects o where o.version = p_of for share;
    if found and (select count(*) from storage.renditions r where r.rendition_of = p_of) < p_max then
        insert into storage.renditions (rendition_of, name, version, size, etag)
        values (p_of, p_name, p_version, p_size, p_etag)
        on conflict (rendition_of, name) do nothing;
    end if;
    if not exists (select from storage.renditions r where r.version = p_version) then
        insert into storage.garbage (version, bucket) values (p_version, p_bucket);
    end if;
    return query
        select r.version, r.size, r.etag from storage.renditions r where r.rendition_of = p_of and r.name = p_name;
end
$$;

revoke all on all functions in schema storage from public;
