-- How caches may store the objects of a public bucket that say nothing themselves.

alter table storage.buckets add column cache_control text;

create function storage.create_bucket(
    p_name text, p_visibility text, p_max_object bigint, p_max_bucket bigint, p_types text[], p_owner_only_writes boolean,
    p_owner_only_reads boolean, p_anonymous_reads boolean, p_policies boolean, p_cache_control text
) returns boolean language plpgsql as $$
begin
    if not storage.create_bucket(p_name, p_visibility, p_max_object, p_max_bucket, p_types, p_owner_only_writes,
                                 p_owner_only_reads, p_anonymous_reads, p_policies) then
        return false;
    end if;
    update storage.buckets set cache_control = p_cache_control where name = p_name;
    return true;
end
$$;

revoke all on all functions in schema storage from public;
