-- How caches may store the objects of a public bucket that say nothing themselves.

alter table storage.buckets add column cache_control text;
