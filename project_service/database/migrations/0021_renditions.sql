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
