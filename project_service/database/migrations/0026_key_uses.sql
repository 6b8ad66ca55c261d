-- When each project key was last used, by the minute. A table of its own: an update of auth.project_keys would have every
-- process read all keys again.

create table auth.project_key_uses (
  key_id   uuid primary key references auth.project_keys on delete cascade,
  used_at  timestamptz not null
);
comment on table auth.project_key_uses is 'When a project key was last used, to the minute. Written by the service.';
