-- Public buckets whose objects are pages of the web: GET /storage/public/{bucket}/{key} takes no key.

alter table storage.buckets
    add column anonymous_reads boolean not null default false,
    add constraint buckets_anonymous_reads check (not anonymous_reads or visibility = 'public');
