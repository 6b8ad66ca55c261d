-- The objects whose SHA-256 has still to be computed. Where there are none, looking for them costs nothing.

create index objects_without_sha256 on storage.objects (bucket, key) where sha256 is null;
