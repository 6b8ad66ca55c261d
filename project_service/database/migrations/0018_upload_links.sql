-- Links that take an upload, beside those that download; and what lists and revokes links of both kinds.

alter table storage.links
    -- Names a link in lists and for its revocation: the token itself is not stored.
    add column id uuid not null default gen_random_uuid(),
    add column created_at timestamptz not null default now(),
    -- The user who made it; null: a service, or somebody who was not signed in.
    add column created_by uuid,
    -- PUT: it takes an upload, which belongs to ``owner``. A process of an older version does not know the method, but
    -- does not find such a link either: the digest of its token is made in another way.
    add column method text not null default 'GET' check (method in ('GET', 'PUT')),
    -- Of an upload. With ``by_prefix`` its key begins with the link's, and the uploader chooses the rest. ``as_service``:
    -- it has the rights of the service key, with which the link was made.
    add column by_prefix boolean not null default false,
    add column max_bytes bigint check (max_bytes > 0),
    add column content_types text[],
    add column overwrite boolean not null default false,
    add column as_service boolean not null default false;

create unique index links_id on storage.links (id);
create index links_of_bucket on storage.links (bucket, created_at, id);
create index links_of_creator on storage.links (bucket, created_by, created_at, id);
