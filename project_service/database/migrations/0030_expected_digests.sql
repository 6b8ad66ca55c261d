-- The SHA-256 that a resumable upload must have as a whole, where the client has said so.

alter table storage.resumable add column sha256 text check (sha256 ~ '^[0-9a-f]{64}$');
