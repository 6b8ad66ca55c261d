-- An object that has as many renditions as it may have loses those that were not used for the longest time, so that new
-- sizes are still stored.

alter table storage.renditions add column used_at timestamptz not null default now();
