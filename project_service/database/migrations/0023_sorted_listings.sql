-- Listings of a bucket by size and by date, each with the key last, so that a page goes on where the one before ended.

create index objects_by_size on storage.objects (bucket, size, key);
create index objects_by_date on storage.objects (bucket, updated_at, key);
