-- Buckets in which a user sees only his own objects.

alter table storage.buckets
    add column owner_only_reads boolean not null default false,
    add constraint buckets_owner_only_reads check (not owner_only_reads or visibility = 'private');
-- With a value the link opens only an object of this user, whatever its key holds by then.
alter table storage.links add column owner uuid;
-- For the listing of one owner's objects.
create index objects_of_owner on storage.objects (bucket, owner, key);
