-- What an uploader may say of an object, and the SHA-256 of its bytes. Objects that were there before have none.

alter table storage.objects
    add column cache_control text,
    add column metadata jsonb check (jsonb_typeof(metadata) = 'object'),
    add column content_language text,
    add column sha256 text check (sha256 ~ '^[0-9a-f]{64}$');
