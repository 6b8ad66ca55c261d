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

-- Use up a link, in the transaction of the upload that has the outcome ``p_outcome``. Only one that makes an object is a
-- use. Raises PSL01 where the link is used up or was revoked, so that the object is not made.
create function storage.use_upload_link(p_token_hash bytea, p_outcome text) returns void language plpgsql as $$
declare
    l storage.links;
begin
    -- After the locks of the bucket and of the key, in the order in which deleting a bucket takes them.
    select * into l from storage.links where token_hash = p_token_hash for update;
    if not found then
        raise exception 'token_not_found' using errcode = 'PSL01';
    elsif l.uses_left = 0 then
        raise exception 'token_used' using errcode = 'PSL01';
    elsif p_outcome = 'stored' then
        update storage.links set uses_left = uses_left - 1, used_at = now() where token_hash = p_token_hash;
    end if;
end
$$;

revoke all on all functions in schema storage from public;
