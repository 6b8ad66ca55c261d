-- Public buckets whose objects are pages of the web: GET /storage/public/{bucket}/{key} takes no key.

alter table storage.buckets
    add column anonymous_reads boolean not null default false,
    add constraint buckets_anonymous_reads check (not anonymous_reads or visibility = 'public');

create function storage.create_bucket(
    p_name text, p_visibility text, p_max_object bigint, p_max_bucket bigint, p_types text[], p_owner_only_writes boolean,
    p_owner_only_reads boolean, p_anonymous_reads boolean
) returns boolean language plpgsql as $$
begin
    if not storage.create_bucket(p_name, p_visibility, p_max_object, p_max_bucket, p_types, p_owner_only_writes,
                                 p_owner_only_reads) then
        return false;
    end if;
    update storage.buckets set anonymous_reads = p_anonymous_reads where name = p_name;
    return true;
end
$$;

revoke all on all functions in schema storage from public;
