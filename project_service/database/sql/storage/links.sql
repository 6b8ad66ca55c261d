-- Links that take an upload.

-- Use up a link, in the transaction of the upload that has the outcome ``p_outcome``. Only one that makes an object is a
-- use. Raises PSL01 where the link is used up or was revoked, so that the object is not made.
create or replace function storage.use_upload_link(p_token_hash bytea, p_outcome text) returns void language plpgsql as $$
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
